"""Transactions, groups and delayed messages of FlyMQ while the server is killed, again and again on one
data directory, with requests under way. After each kill the next server is asked what became of them:

- a commit that was answered is there, and each of its messages once; one that was not is there as a whole
  or not at all, as a second commit says; one that was rolled back or left open never is;
- while it runs, no reader sees a part of a transaction;
- a committed offset is the last one that was answered, or the one that was under way;
- a delayed message that was answered comes once, in the order of due times; one that was cancelled never;
- a dead letter that is replayed, again when no answer came, is in its topic once.
"""

import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.flymq.peer import OK, FlyMQPeer, blob, frame, placed, text
from kit.limits import HANG_S
from kit.live_server import ServerProcess

SEED = 10
# A life ends up to this long after its clients have begun, on a slow machine when each of them has up to so
# many answers.
LIFE_S = 0.5
LEAST = 4
WORK = ("committed", "delayed", "commits", "resets", "replayed")
# What the wall clocks of two processes may differ by, and rounding.
SLACK_MS = 3
TRANSACTED = {"x": 3, "y": 1}
DELAYED = ("d", "e")
GROUPS = ("commits", "resets")


class Gone(Exception):
    """The server was killed."""


class Client(FlyMQPeer):
    def send(self, data: bytes) -> None:
        try:
            super().send(data)
        except OSError:
            raise Gone from None

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data))
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise Gone
            data += chunk
        return data


@dataclass(slots=True)
class Transaction:
    """`state`: open, committing, committed or rolled back. Values by topic, staged and answered."""

    values: list[bytes] = field(default_factory=list)
    state: str = "open"


@dataclass(slots=True)
class Late:
    topic: str
    earliest_ms: float
    latest_ms: float = 0.0
    id: int | None = None
    # Asked for, and answered with whether it is so.
    cancelled: bool | None = None
    cancelling: bool = False


@dataclass(slots=True)
class History:
    """What the clients of all lives know."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    late: dict[bytes, Late] = field(default_factory=dict)
    # By group: the offset of the last answer, and that of the request under way; None: no group.
    answered: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(GROUPS))
    asked: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(GROUPS))
    # Dead letters by offset: the value, and whether a replay was answered.
    letters: dict[int, tuple[bytes, bool]] = field(default_factory=dict)
    # What the topics hold, by topic and partition.
    found: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)


def now_ms() -> float:
    return time.time_ns() / 1_000_000


# --- clients --------------------------------------------------------------------------------------


def transact(peer: Client, history: History, name: str, choices: random.Random) -> None:
    """One transaction after another, of any size, to both topics; some are rolled back."""
    for number in range(1_000_000):
        reply = peer.want(0x40)
        id = reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()
        one = history.transactions[id] = Transaction()
        total = choices.choice([1, 2, 7, 40])
        big = choices.random() < 0.05
        staged = [b"%s.%d/%d/%d" % (name.encode(), number, n, total) for n in range(total)]
        one.values = [value + b" " * (40_000 if big else 0) for value in staged]
        topics = [choices.choice(list(TRANSACTED)) for _ in one.values]
        requests = zip(topics, one.values, strict=True)
        peer.send(b"".join(frame(0x43, text(id) + text(t) + blob(v)) for t, v in requests))
        for _ in one.values:
            assert peer.hear().opcode == 0x43
        if choices.random() < 0.2:
            one.state = "rolled back"
            assert peer.want(0x42, text(id)) == text(id) + b"\x01"
            continue
        one.state = "committing"
        assert peer.want(0x41, text(id)) == text(id) + b"\x01"
        one.state = "committed"
        history.done["committed"] += 1


def watch(peer: Client, history: History) -> None:
    """Whatever one look has seen of a transaction, the next look has seen all of it."""
    ends: Counter[tuple[str, int]] = Counter()
    seen: Counter[bytes] = Counter()
    totals: dict[bytes, int] = {}
    first = True
    while True:
        before = [] if first else list(seen)
        for topic, partitions in TRANSACTED.items():
            for partition in range(partitions):
                at = ends[topic, partition]
                if first:
                    at = history.ends.get((topic, partition), 0)
                records, at = peer.fetch(topic, at, 1_000, partition)
                while records:
                    for _, _, value in records:
                        stem, _, total = value.strip().rsplit(b"/", 2)
                        seen[stem] += 1
                        totals[stem] = int(total)
                    records, at = peer.fetch(topic, at, 1_000, partition)
                ends[topic, partition] = at
        for stem in before:
            assert seen[stem] == totals[stem], f"{stem!r} was seen in part"
        first = False
        history.done["looks"] += 1


def delay(peer: Client, history: History, name: str, choices: random.Random) -> None:
    """Runs of delayed messages, of which some are cancelled before they are due or too late."""
    for number in range(1_000_000):
        run: list[bytes] = []
        requests = []
        for n in range(choices.randrange(1, 30)):
            value = b"%s.%d.%d" % (name.encode(), number, n)
            delay_ms = choices.choice([0, 3, 20, 60, 150, 400])
            topic = choices.choice(DELAYED)
            history.late[value] = Late(topic, now_ms() + delay_ms)
            history.late[value].latest_ms = delay_ms
            run.append(value)
            payload = text(topic) + blob(value) + struct.pack(">q", delay_ms)
            requests.append(frame(0x30, payload))
        peer.send(b"".join(requests))
        for value in run:
            reply = peer.hear()
            assert reply.opcode == 0x30
            late = history.late[value]
            late.latest_ms += now_ms()
            late.id = placed(reply.payload)[1]
            history.done["delayed"] += 1
        for value in choices.sample(run, len(run) // 5):
            late = history.late[value]
            late.cancelling = True
            reply_bytes = peer.want(0x31, text(f"delayed-{late.id}"))
            late.cancelled = reply_bytes[:1] == b"\x01"
            history.done["cancelled"] += late.cancelled


def commit(peer: Client, history: History, choices: random.Random) -> None:
    """A member of a group that commits, joins and leaves; a group that is reset and deleted."""
    number = max((history.answered["commits"] or 0), (history.asked["commits"] or 0))
    place = text("y") + text("commits")
    member = ""
    while True:
        joining = text("y") + text("commits") + text(member) + struct.pack(">I", 30_000)
        reply = peer.want(0x67, joining)
        member = reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()
        for _ in range(choices.randrange(1, 10)):
            number += 1
            history.asked["commits"] = number
            assert peer.want(0x06, place + struct.pack(">iQ", 0, number)) == OK
            history.answered["commits"] = number
            history.done["commits"] += 1
        peer.want(0x68, place + text(member) + bytes(4))
        if choices.random() < 0.3:
            assert peer.want(0x69, place + text(member)) == OK
            member = ""


def reset(peer: Client, history: History, choices: random.Random) -> None:
    place = text("y") + text("resets")
    mode = bytes((6,)) + b"offset"
    while True:
        target = choices.randrange(1 << 40)
        history.asked["resets"] = target
        assert peer.want(0x61, place + bytes(4) + mode + struct.pack(">Q", target)) == OK
        history.answered["resets"] = target
        history.done["resets"] += 1
        if choices.random() < 0.3:
            history.asked["resets"] = None
            assert peer.want(0x65, place) == OK
            history.answered["resets"] = None


def bury_and_replay(peer: Client, history: History, name: str) -> None:
    for number in range(1_000_000):
        value = b"%s.%d" % (name.encode(), number)
        _, offset = peer.produce("r.dlq", value)
        history.letters[offset] = value, False
        assert peer.want(0x21, text("r") + text(f"0-{offset}")) == OK
        history.letters[offset] = value, True
        history.done["replayed"] += 1


# --- one life -------------------------------------------------------------------------------------


def live_and_die(directory: Path, history: History, number: int, choices: random.Random) -> None:
    failures: list[BaseException] = []
    failed = threading.Event()
    with ServerProcess(directory) as process:
        port = process.ports["tcp"]
        resolve(port, history)

        def run(work: Callable[[Client], None]) -> None:
            try:
                with Client(port) as peer:
                    work(peer)
            except (Gone, ConnectionError):
                return
            except BaseException as error:
                failures.append(error)
                failed.set()

        seeds = [random.Random(choices.random()) for _ in range(6)]
        clients: list[Callable[[Client], None]] = [
            lambda peer: transact(peer, history, f"{number}a", seeds[0]),
            lambda peer: transact(peer, history, f"{number}b", seeds[1]),
            lambda peer: delay(peer, history, f"{number}c", seeds[2]),
            lambda peer: delay(peer, history, f"{number}d", seeds[3]),
            lambda peer: commit(peer, history, seeds[4]),
            lambda peer: reset(peer, history, seeds[5]),
            lambda peer: bury_and_replay(peer, history, f"{number}e"),
            lambda peer: watch(peer, history),
        ]
        threads = [threading.Thread(target=run, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        before, least = history.done.copy(), choices.randrange(LEAST)
        failed.wait(choices.uniform(0, LIFE_S))
        end_s = time.monotonic() + HANG_S
        while any(history.done[what] - before[what] < least for what in WORK):
            assert time.monotonic() < end_s, "the server hangs"
            if failed.wait(0.01):
                break
        process.kill()
        for thread in threads:
            thread.join(HANG_S)
    if failures:
        raise failures[0]


# --- what became of it ----------------------------------------------------------------------------


def read_on(peer: FlyMQPeer, history: History, topic: str, partition: int) -> list[bytes]:
    """What is new, kept with what was there."""
    place = topic, partition
    fresh: list[bytes] = []
    while True:
        at = history.ends.get(place, 0)
        records, history.ends[place] = peer.fetch(topic, at, 1_000, partition)
        fresh += [value for _, _, value in records]
        if not records:
            history.found.setdefault(place, []).extend(fresh)
            return fresh


def resolve(port: int, history: History) -> None:
    """Before anything new is sent."""
    with FlyMQPeer(port) as peer:
        for topic, partitions in TRANSACTED.items():
            peer.create(topic, partitions)
        for topic in (*DELAYED, "r", "r.dlq"):
            peer.create(topic)
        resolve_groups(peer, history)
        resolve_transactions(peer, history)
        resolve_letters(peer, history)
        resolve_delayed(peer, history)


def resolve_groups(peer: FlyMQPeer, history: History) -> None:
    for group in GROUPS:
        reply = peer.ask(0x60, text("y") + text(group) + bytes(4))
        found = int.from_bytes(reply.payload, "big") if reply.opcode == 0x60 else None
        assert found in (history.answered[group], history.asked[group]), group
        history.answered[group] = history.asked[group] = found


def resolve_transactions(peer: FlyMQPeer, history: History) -> None:
    expected: Counter[bytes] = Counter()
    for id, one in history.transactions.items():
        reply = peer.ask(0x41, text(id))
        if one.state == "committed":
            assert reply.opcode == 0x41, "a commit that was answered is not known any more"
        elif one.state != "committing":
            assert reply.error == f"transaction not found: {id}"
        if reply.opcode == 0x41:
            expected.update(one.values)
    fresh: Counter[bytes] = Counter()
    for topic, partitions in TRANSACTED.items():
        for partition in range(partitions):
            fresh.update(read_on(peer, history, topic, partition))
    assert fresh == expected, "lost, twice, in part, or never committed"
    history.transactions.clear()


def resolve_letters(peer: FlyMQPeer, history: History) -> None:
    for offset, (_, answered) in history.letters.items():
        reply = peer.want(0x21, text("r") + text(f"0-{offset}"))
        assert reply == OK or b"replayed already" in reply
        assert reply != OK or not answered
    fresh = read_on(peer, history, "r", 0)
    assert Counter(fresh) == Counter(value for value, _ in history.letters.values())
    history.letters.clear()


def resolve_delayed(peer: FlyMQPeer, history: History) -> None:
    """Waits for all that was answered, and for one more that is due behind them."""
    late, history.late = history.late, {}
    for topic in DELAYED:
        mine = {value: one for value, one in late.items() if one.topic == topic}
        must = {v for v, one in mine.items() if one.id is not None and not one.cancelled}
        must -= {v for v, one in mine.items() if one.cancelling and one.cancelled is None}
        may = {v for v, one in mine.items() if not one.cancelled}
        end = b"end of %d" % len(history.found.get((topic, 0), []))
        peer.want(0x30, text(topic) + blob(end) + struct.pack(">q", 450))
        fresh: list[bytes] = []

        def complete(topic: str = topic, end: bytes = end, fresh: list[bytes] = fresh) -> bool:
            fresh += read_on(peer, history, topic, 0)
            return end in fresh

        until(complete, f"the end of the delayed messages of {topic}")
        counted = Counter(fresh)
        assert all(times == 1 for times in counted.values()), "delivered twice"
        assert must <= set(fresh), "answered and lost"
        assert set(fresh) <= may | {end}, "cancelled, or never sent"
        check_order([mine[value] for value in fresh if value in must])


def check_order(delivered: list[Late]) -> None:
    latest_ms = 0.0
    for one in delivered:
        assert one.latest_ms + SLACK_MS >= latest_ms, "not in the order of due times"
        latest_ms = max(latest_ms, one.earliest_ms)


@pytest.mark.parametrize(
    "kills", [5, pytest.param(60, marks=pytest.mark.soak)], ids=["a few", "many"]
)
def test_kills(tmp_path: Path, kills: int) -> None:
    choices = random.Random(SEED)
    history = History()
    for number in range(kills):
        live_and_die(tmp_path, history, number, choices)
    with ServerProcess(tmp_path) as process:
        resolve(process.ports["tcp"], history)
        everything = History(ends={}, found={})
        with FlyMQPeer(process.ports["tcp"]) as peer:
            for place, found in history.found.items():
                assert read_on(peer, everything, *place) == found, "what was there has changed"
    print(f"{kills} kills: {dict(history.done)}")
    assert all(history.done[what] > kills // 2 for what in WORK), "the clients did next to nothing"
