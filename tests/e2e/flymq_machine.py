"""The state machine of FlyMQ over its wire: topics, groups and members, delayed messages, dead letters,
bound topics and transactions, against a model of dictionaries, on a server that restarts now and then.

Subclasses say what kind of server it is; the test is test_flymq_machine.py. Every request is answered
before the next one, so that the model knows exactly what must be there; requests under way when a server
dies are the subject of test_flymq_kills.py.
"""

import shutil
import struct
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from conformance.blipmq.peer import until
from conformance.flymq.peer import OK, FlyMQPeer, Reply, blob, frame, placed, produce, text
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.cli.http import Api

HOUR_MS: Final = 3_600_000
# What the wall clocks of two processes may differ by when they look at the same time, and rounding.
SLACK_MS: Final = 3
BOUND: Final = "bound"
SCHEMA: Final = b'{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}'

TOPICS: Final = st.sampled_from(["a", "b", "c"])
GROUPS: Final = st.sampled_from(["g", "h"])
KEYS: Final = st.sampled_from([b"", b"", b"user-123", b"k"])

Place = tuple[str, str]


def fnv1a(data: bytes) -> int:
    found = 0x811C9DC5
    for byte in data:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


@dataclass(slots=True)
class Partition:
    """What was read of it: offset, key and value. `end`: where to read on."""

    records: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    end: int = 0


@dataclass(slots=True)
class Late:
    """A delayed message, and between which times it is due."""

    topic: str
    value: bytes
    earliest_ms: float
    latest_ms: float


def now_ms() -> float:
    return time.time_ns() / 1_000_000


class FlyMQMachine(RuleBasedStateMachine):
    peer: FlyMQPeer

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-flymq-"))
        self.topics: dict[str, list[Partition]] = {}
        self.offsets: dict[Place, dict[int, int]] = {}
        self.members: dict[Place, list[str]] = {}
        # Staged values by topic, by the id of an open transaction.
        self.open: dict[str, dict[str, list[bytes]]] = {}
        self.committed: list[str] = []
        self.soon: list[Late] = []
        self.far: dict[int, Late] = {}
        self.replayed: set[tuple[str, str]] = set()
        self._count = 0

    # --- the server -------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Sets `peer`."""
        raise NotImplementedError

    def stop_server(self) -> None:
        raise NotImplementedError

    def http_port(self) -> int:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.start_server()
        self.peer.want(0x10, text("s") + b"\x04json" + blob(SCHEMA))
        self.peer.create(BOUND)
        api = Api(f"http://127.0.0.1:{self.http_port()}", "dev-key", 300)
        api.call("PATCH", f"/topics/{BOUND}", {"settings": {"schema": "s"}})
        self.topics[BOUND] = [Partition()]

    def restarted(self) -> None:
        """What lives in memory is gone, and everything else is there."""
        for id in self.open:
            assert "not found" in self.peer.ask(0x41, text(id)).error
        for place, found in self.members.items():
            for member in found:
                assert "join again" in self.heartbeat(place, member).error
        self.open = {}
        self.members = {}
        self.check_everything()

    def teardown(self) -> None:
        try:
            if hasattr(self, "peer"):
                self.check_everything()
        finally:
            self.stop_server()
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------------

    def fresh(self, topic: str) -> dict[int, list[tuple[int, bytes, bytes]]]:
        """What came to each partition since the last look, which the model then has."""
        found: dict[int, list[tuple[int, bytes, bytes]]] = {}
        for number, partition in enumerate(self.topics[topic]):
            records, after = self.peer.fetch(topic, partition.end, 1_000, number)
            assert after >= partition.end
            partition.records += records
            partition.end = after
            found[number] = records
        return found

    def absorb(self, topic: str, values: list[bytes]) -> None:
        """Exactly these are new, each once; those of one partition in this order."""
        found = [[value for _, _, value in records] for records in self.fresh(topic).values()]
        assert Counter(value for part in found for value in part) == Counter(values)
        positions = {value: at for at, value in enumerate(values)}
        for part in found:
            assert part == sorted(part, key=lambda value: positions[value])

    def ensure(self, topic: str, partitions: int = 1) -> list[Partition]:
        if topic not in self.topics:
            self.topics[topic] = [Partition() for _ in range(partitions)]
        return self.topics[topic]

    def check_everything(self) -> None:
        self.settle_soon()
        listed = self.peer.want(0x08)
        assert listed == struct.pack(">I", len(self.topics)) + b"".join(
            map(text, sorted(self.topics, key=str.encode))
        )
        for topic, partitions in self.topics.items():
            for number, partition in enumerate(partitions):
                records, after = self.peer.fetch(topic, 0, 1_000, number)
                assert records == partition.records, (topic, number)
                assert after == partition.end
        for (topic, group), offsets in self.offsets.items():
            for number, offset in offsets.items():
                place = text(topic) + text(group) + struct.pack(">i", number)
                assert int.from_bytes(self.peer.want(0x60, place), "big") == offset
        for id in self.committed[-3:]:
            assert self.peer.want(0x41, text(id)) == text(id) + b"\x01"

    def value(self) -> bytes:
        self._count += 1
        return b"%d" % self._count

    # --- topics and records -----------------------------------------------------------------------

    @rule(topic=TOPICS, partitions=st.sampled_from([1, 2, 3]))
    def create_topic(self, topic: str, partitions: int) -> None:
        self.peer.create(topic, partitions)
        self.ensure(topic, partitions)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.settle_soon()
        assert self.peer.want(0x09, text(topic)) == OK
        self.topics.pop(topic, None)
        for known in (self.offsets, self.members):
            for place in [place for place in known if place[0] == topic]:
                del known[place]

    @rule(topic=TOPICS, key=KEYS, count=st.integers(1, 5), chosen=st.integers(-1, 3))
    def produce(self, topic: str, key: bytes, count: int, chosen: int) -> None:
        self.settle_soon()
        partitions = self.ensure(topic)
        values = [self.value() for _ in range(count)]
        self.peer.send(b"".join(frame(0x01, produce(topic, one, key, chosen)) for one in values))
        replies = [self.peer.hear() for _ in values]
        if chosen >= len(partitions):
            assert all(reply.error == f"partition {chosen} out of range" for reply in replies)
            return
        places = [placed(reply.payload) for reply in replies]
        found = self.fresh(topic)
        for value, (number, offset) in zip(values, places, strict=True):
            assert (offset, key, value) in found[number]
            if chosen >= 0:
                assert number == chosen
            elif key:
                assert number == fnv1a(key) % len(partitions)
        assert sum(map(len, found.values())) == count

    @rule(topic=TOPICS, brief=st.booleans())
    def produce_with_ttl(self, topic: str, brief: bool) -> None:
        self.settle_soon()
        self.ensure(topic)
        value = self.value()
        payload = text(topic) + blob(value) + struct.pack(">q", 1 if brief else HOUR_MS)
        number, offset = placed(self.peer.want(0x35, payload))
        if not brief:
            self.absorb(topic, [value])
            return
        until(lambda: self.peer.ask(0x02, self.at(topic, number, offset)).opcode == 0xFF, "expiry")
        self.absorb(topic, [])

    def at(self, topic: str, number: int, offset: int) -> bytes:
        return text(topic) + struct.pack(">iQ", number, offset)

    @rule(good=st.booleans(), how=st.sampled_from([0x01, 0x14, 0x30, 0x35, 0x43]))
    def produce_to_a_bound_topic(self, good: bool, how: int) -> None:
        number = self._count = self._count + 1
        value = b'{"a":%d}' % number if good else b'{"a":"%d"}' % number
        behind = text(BOUND) + blob(value) + bytes(8)
        started_ms = now_ms()
        if how == 0x43:
            id = self.begin_transaction()
            behind = text(id) + text(BOUND) + blob(value)
        payload = {0x01: produce(BOUND, value), 0x14: text(BOUND) + text("s") + blob(value)}
        reply = self.peer.ask(how, payload.get(how, behind))
        if not good:
            assert "type mismatch at a: expected integer, got string" in reply.error
            return
        assert reply.opcode == how
        if how == 0x43:
            self.open[id].setdefault(BOUND, []).append(value)
        elif how == 0x30:
            self.soon.append(Late(BOUND, value, started_ms, now_ms()))
            self.settle_soon()
        else:
            self.absorb(BOUND, [value])

    # --- delayed messages -------------------------------------------------------------------------

    @rule(
        topic=TOPICS, delays=st.lists(st.sampled_from([-1, 0, 1, 15, 30]), min_size=1, max_size=6)
    )
    def produce_delayed(self, topic: str, delays: list[int]) -> None:
        self.ensure(topic)
        for delay_ms in delays:
            value = self.value()
            began_ms = now_ms()
            self.delay(topic, value, delay_ms)
            wait_ms = max(delay_ms, 0)
            self.soon.append(Late(topic, value, began_ms + wait_ms, now_ms() + wait_ms))

    def delay(self, topic: str, value: bytes, delay_ms: int) -> int:
        payload = text(topic) + blob(value) + struct.pack(">q", delay_ms)
        return placed(self.peer.want(0x30, payload))[1]

    @rule(topic=TOPICS)
    def produce_far(self, topic: str) -> None:
        self.ensure(topic)
        value = self.value()
        self.far[self.delay(topic, value, HOUR_MS)] = Late(topic, value, 0, 0)

    @precondition(lambda self: self.far)
    @rule(data=st.data(), by_text=st.booleans())
    def cancel(self, data: st.DataObject, by_text: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.far)))
        late = self.far.pop(id)
        number = text(late.topic) + struct.pack(">Q", id)
        request = text(f"delayed-{id}") if by_text else number
        assert self.peer.want(0x31, request) == OK
        assert self.peer.want(0x31, request)[:1] == b"\x00"

    def settle_soon(self) -> None:
        """Waits for what is due: each comes once, and by partition in the order of due times."""
        soon, self.soon = self.soon, []
        for topic in {late.topic for late in soon}:
            expected = {late.value: late for late in soon if late.topic == topic}
            found: dict[int, list[bytes]] = {}

            def arrived(
                topic: str = topic,
                found: dict[int, list[bytes]] = found,
                expected: dict[bytes, Late] = expected,
            ) -> bool:
                for number, records in self.fresh(topic).items():
                    found.setdefault(number, []).extend(value for _, _, value in records)
                return sum(map(len, found.values())) >= len(expected)

            until(arrived, f"delayed messages of {topic}")
            assert Counter(one for part in found.values() for one in part) == Counter(
                list(expected)
            )
            for part in found.values():
                for number, value in enumerate(part):
                    for later in part[number + 1 :]:
                        ahead = expected[value].earliest_ms - SLACK_MS
                        assert ahead <= expected[later].latest_ms, "not in the order of due times"

    # --- transactions -----------------------------------------------------------------------------

    @rule()
    def begin(self) -> None:
        self.begin_transaction()

    def begin_transaction(self) -> str:
        reply = self.peer.want(0x40)
        id = reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()
        self.open[id] = {}
        return id

    @precondition(lambda self: self.open)
    @rule(data=st.data(), topic=TOPICS, count=st.sampled_from([1, 3, 400]))
    def stage(self, data: st.DataObject, topic: str, count: int) -> None:
        """400 of them are more than a transaction has in memory."""
        id = data.draw(st.sampled_from(sorted(self.open)))
        size = 4_000 if count == 400 else 0
        values = [self.value() + b"." * size for _ in range(count)]
        requests = [frame(0x43, text(id) + text(topic) + blob(value)) for value in values]
        self.peer.send(b"".join(requests))
        assert all(self.peer.hear().opcode == 0x43 for _ in values)
        self.open[id].setdefault(topic, []).extend(values)
        if count == 400:  # what leaves the memory has its topic made
            self.ensure(topic)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.settle_soon()
        id = data.draw(st.sampled_from(sorted(self.open)))
        assert self.peer.want(0x41, text(id)) == text(id) + b"\x01"
        for topic, values in self.open.pop(id).items():
            self.ensure(topic)
            self.absorb(topic, values)
        self.committed.append(id)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open)))
        assert self.peer.want(0x42, text(id)) == text(id) + b"\x01"
        del self.open[id]
        assert self.peer.want(0x42, text(id)) == text(id) + b"\x00"

    # --- groups -----------------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), group=GROUPS, offset=st.integers(0, 1 << 40), reset=st.booleans())
    def move(self, data: st.DataObject, group: str, offset: int, reset: bool) -> None:
        self.settle_soon()
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        number = data.draw(st.integers(0, len(self.topics[topic]) - 1))
        place = text(topic) + text(group) + struct.pack(">i", number)
        if reset:
            mode = data.draw(st.sampled_from(["earliest", "latest"]))
            assert self.peer.want(0x61, place + text(mode)) == OK
            offset = self.topics[topic][number].end if mode == "latest" else -1
        else:
            assert self.peer.want(0x06, place + struct.pack(">Q", offset)) == OK
        found = int.from_bytes(self.peer.want(0x60, place), "big")
        assert found == offset or offset < 0
        self.offsets.setdefault((topic, group), {})[number] = found

    @precondition(lambda self: self.offsets)
    @rule(data=st.data())
    def delete_group(self, data: st.DataObject) -> None:
        topic, group = data.draw(st.sampled_from(sorted(self.offsets)))
        assert self.peer.want(0x65, text(topic) + text(group)) == OK
        del self.offsets[topic, group]
        self.members.pop((topic, group), None)
        assert "group not found" in self.peer.ask(0x60, text(topic) + text(group) + bytes(4)).error

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), group=GROUPS)
    def join(self, data: st.DataObject, group: str) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        request = text(topic) + text(group) + text("") + struct.pack(">I", 300_000)
        reply = self.peer.want(0x67, request)
        member = reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()
        self.members.setdefault((topic, group), []).append(member)

    def heartbeat(self, place: Place, member: str) -> Reply:
        return self.peer.ask(0x68, text(place[0]) + text(place[1]) + text(member) + bytes(4))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members[place].pop(0)
        assert self.peer.want(0x69, text(place[0]) + text(place[1]) + text(member)) == OK
        if not self.members[place]:
            del self.members[place]
        assert "join again" in self.heartbeat(place, member).error

    @invariant()
    def members_share_the_partitions(self) -> None:
        """Each partition has one reader, and the shares are as even as can be."""
        for place, found in self.members.items():
            shares = []
            for member in found:
                payload = self.heartbeat(place, member).payload
                at = 2 + int.from_bytes(payload[:2], "big")
                (count,) = struct.unpack_from(">I", payload, at + 4)
                shares.append(struct.unpack_from(f">{count}i", payload, at + 8))
            owned = sorted(number for share in shares for number in share)
            assert owned == list(range(len(self.topics[place[0]])))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1

    # --- dead letters -----------------------------------------------------------------------------

    @rule(topic=TOPICS)
    def bury(self, topic: str) -> None:
        value = self.value()
        name = f"{topic}.dlq"
        self.ensure(name)
        self.peer.produce(name, value)
        self.absorb(name, [value])

    @rule(topic=TOPICS, data=st.data(), by_offset=st.booleans())
    def replay(self, topic: str, data: st.DataObject, by_offset: bool) -> None:
        letters = self.topics.get(f"{topic}.dlq", [Partition()])[0].records
        if not letters:
            reply = self.peer.want(0x21, text(topic) + text("0-0"))
            assert reply == b"\x00" + text("message not found")
            return
        self.settle_soon()
        offset, _, value = data.draw(st.sampled_from(letters))
        id = struct.pack(">Q", offset) if by_offset else text(f"0-{offset}")
        reply = self.peer.want(0x21, text(topic) + id)
        known = topic, f"{offset} {value!r}"
        if known in self.replayed:
            assert reply[:1] == b"\x00" and b"replayed already" in reply
            return
        assert reply == OK
        self.replayed.add(known)
        self.ensure(topic)
        self.absorb(topic, [value])

    @rule(topic=TOPICS)
    def purge(self, topic: str) -> None:
        assert self.peer.want(0x22, text(topic)) == OK
        name = f"{topic}.dlq"
        if name in self.topics:
            self.topics[name][0].records.clear()
            assert self.peer.want(0x20, text(topic) + struct.pack(">i", 10)) == bytes(4)
