"""Several clients of both protocols, a server that is killed again and again, and the history checked.

SIGKILL loses no page cache, so this proves safety against a crash of the process; power loss is proved on
the simulated disk. A kill falls after a random number of answers, so some requests are always under way.
"""

import json
import os
import random
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from conformance.blipmq.peer import BlipMQPeer, message
from conformance.rustlog.peer import BINARY, DIALECTS, JSON, Dialect, Talker
from e2e.history import History, Log, Outcome, Write, anomalies
from kit.live_server import WAIT_S, RawPeer, ServerProcess

TOPIC = "history"
PARTITIONS = 2
# Requests that one RustLog producer has under way, and records in each at most.
PIPELINE = 4
BATCH = 5
# BlipMQ messages of one write; the next follows when a reader has seen one of them or a little later.
BURST = 20
IDLE_S = 0.05
# Answers between two kills.
LEAST_ANSWERS, MOST_ANSWERS = 30, 300


class Lost(RawPeer):
    """The end of a connection is no failure of the test: the server was killed."""

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionResetError("the server is gone")
            data += chunk
        return data


class RustLogLink(Lost, Talker):
    def _receive_much(self, size: int) -> bytes:
        return self.receive(size)


class BlipMQLink(Lost, BlipMQPeer):
    """As it is."""


class Whereabouts:
    """Where the server is now. Clients wait here while it is down."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._port: int | None = None
        self.over = False

    def move(self, port: int | None) -> None:
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def port(self) -> int | None:
        """None when there is nothing more to do."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._port is not None)
            return None if self.over else self._port


class Clients:
    """Threads that do one thing over and over, on a new connection after each loss."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self.where = Whereabouts()
        self._seed = seed
        self._threads: list[threading.Thread] = []
        self._failures: list[str] = []

    def start(self, name: str, work: Callable[[int, random.Random], None]) -> None:
        chance = random.Random(f"{self._seed} {name}")

        def run() -> None:
            while (port := self.where.port()) is not None:
                try:
                    work(port, chance)
                except OSError:
                    continue  # killed, or not there yet
                except Exception as error:
                    self._failures.append(f"{name}: {error!r}")
                    return

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> list[str]:
        self.where.finish()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
        return self._failures + [f"{t.name} hangs" for t in self._threads if t.is_alive()]

    # ---- what clients do ----

    def produce(self, name: str, dialect: Dialect) -> None:
        def work(port: int, chance: random.Random) -> None:
            with RustLogLink(port) as peer:
                while not self.where.over:
                    writes = [
                        self.history.invoke(
                            name, chance.randint(1, BATCH), chance.randrange(PARTITIONS)
                        )
                        for _ in range(chance.randint(1, PIPELINE))
                    ]
                    peer.tell(*[_request(dialect, write) for write in writes])
                    for write in writes:
                        self._answer(dialect, write, peer.hear())

        self.start(name, work)

    def _answer(self, dialect: Dialect, write: Write, reply: bytes) -> None:
        base = _base_offset(dialect, reply)
        if base is None:
            self.history.refused(write)
        else:
            assert reply == dialect.produced(base, write.count)
            self.history.ok(write, base)

    def publish(self, name: str) -> None:
        """A publish has no answer: it is confirmed when a reader sees it."""
        numbers = count()

        def work(port: int, chance: random.Random) -> None:
            with BlipMQLink(port) as peer:
                peer.login()
                while not self.where.over:
                    burst = [self.history.invoke(name, 1, None) for _ in range(BURST)]
                    peer.send(b"".join(message(next(numbers), TOPIC, w.values()[0]) for w in burst))
                    peer.quiet()
                    self.history.wait_for_more(IDLE_S)

        self.start(name, work)

    def read(self, name: str, dialect: Dialect, partition: int) -> None:
        """Reads from where its group is, and commits. J lets the server find the place."""
        history = self.history

        def work(port: int, chance: random.Random) -> None:
            with RustLogLink(port) as peer:
                position = _committed(
                    dialect, peer.ask(dialect.offset_fetch(name, TOPIC, partition))
                )
                history.group_is_at(name, partition, position)
                at = position or 0
                while not self.where.over:
                    group, offset = (name, 0) if dialect is JSON else (None, at)
                    reply = peer.ask(dialect.fetch(TOPIC, partition, offset, 4_000, group))
                    first, values, following = _records(dialect, reply, at)
                    assert first == at, f"asked for {at}, got {first}"
                    if not values:
                        history.wait_for_more(IDLE_S)
                        continue
                    history.saw(partition, first, values)
                    history.committing(name, partition, following)
                    reply = peer.ask(dialect.commit(name, TOPIC, partition, following))
                    assert reply == dialect.committed()
                    history.committed(name, partition, following)
                    at = following

        self.start(name, work)


def _request(dialect: Dialect, write: Write) -> bytes:
    assert write.partition is not None
    return dialect.produce(TOPIC, write.partition, write.values())


def _base_offset(dialect: Dialect, reply: bytes) -> int | None:
    """None when the request was refused."""
    if dialect is BINARY:
        return int.from_bytes(reply[1:9], "big") if reply[0] == 1 else None
    produced = json.loads(reply).get("Produce")
    return None if produced is None else int(produced["offsets"][0])


def _committed(dialect: Dialect, reply: bytes) -> int | None:
    if dialect is BINARY:
        return int.from_bytes(reply[2:10], "big") if reply[1] else None
    offset = json.loads(reply)["OffsetFetch"]["offset"]
    return None if offset is None else int(offset)


def _records(dialect: Dialect, reply: bytes, asked: int) -> tuple[int, list[bytes], int]:
    """First offset, values, next offset. B sends no offsets: it begins where it was asked to."""
    values = []
    if dialect is JSON:
        fetched = json.loads(reply)["Fetch"]
        offsets = [record["offset"] for record in fetched["records"]]
        first = offsets[0] if offsets else asked
        assert offsets == list(range(first, first + len(offsets)))
        return first, [bytes(r["payload"]) for r in fetched["records"]], fetched["next_offset"]
    position = 5
    for _ in range(BINARY.count(reply)):
        end = position + 4 + int.from_bytes(reply[position : position + 4], "big")
        values.append(reply[position + 4 : end])
        position = end
    return asked, values, int.from_bytes(reply[position:], "big")


def _whole_log(port: int) -> Log:
    """Read to the end with both dialects, which must agree."""
    logs = []
    with Talker(port) as peer:
        for dialect in DIALECTS:
            log: Log = {}
            for partition in range(PARTITIONS):
                values: list[bytes] = []
                while True:
                    request = dialect.fetch(TOPIC, partition, len(values), 1_000_000)
                    first, found, following = _records(dialect, peer.ask(request), len(values))
                    assert first == len(values)
                    if not found:
                        break
                    values += found
                    assert following == len(values)
                log[partition] = values
            logs.append(log)
    assert logs[0] == logs[1]
    return logs[0]


def _run(data: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    history = History()
    clients = Clients(history, seed)
    clients.produce("json-1", JSON)
    clients.produce("json-2", JSON)
    clients.produce("binary", BINARY)
    clients.publish("blipmq-1")
    clients.publish("blipmq-2")
    for partition in range(PARTITIONS):
        clients.read(f"reader-json-{partition}", JSON, partition)
        clients.read(f"reader-binary-{partition}", BINARY, partition)
    settings = {"rustlog.topics": f"{TOPIC}:{PARTITIONS}"}
    for life in range(kills):
        with ServerProcess(data, settings) as process:
            clients.where.move(process.ports["tcp"])
            goal = history.answered + chance.randint(LEAST_ANSWERS, MOST_ANSWERS)
            answered = history.wait_until_answered(goal, WAIT_S)
            clients.where.move(None)
            process.kill()
            if not answered:
                pytest.fail(_why(process, clients, f"seed {seed}, life {life}: {goal} answers due"))
    with ServerProcess(data, settings) as process:
        clients.where.move(process.ports["tcp"])
        assert history.wait_until_answered(history.answered + LEAST_ANSWERS, WAIT_S)
        assert clients.stop() == []
        log = _whole_log(process.ports["tcp"])
        assert process.stop() == 0
    found = anomalies(history, log)
    assert not found, f"seed {seed}: {len(found)} anomalies, the first: {found[:5]}"
    _assert_it_was_a_test(history, log, kills)


def _why(process: ServerProcess, clients: Clients, what: str) -> str:
    """With what the clients and the killed server have to say."""
    assert process.process.stdout is not None
    said = process.process.stdout.read()
    return f"{what}, {clients.history.answered} came; {clients.stop()}\n{said[-4_000:]}"


def _assert_it_was_a_test(history: History, log: Log, kills: int) -> None:
    """Something was under way at the kills, everybody wrote, and readers saw most of it."""
    unknown = [
        w for w in history.writes if w.outcome is Outcome.UNKNOWN and w.partition is not None
    ]
    assert len(unknown) >= kills // 2
    assert not [w for w in history.writes if w.outcome is Outcome.REFUSED]
    for process in ("json-1", "json-2", "binary", "blipmq-1", "blipmq-2"):
        written = sum(value.startswith(process.encode()) for v in log.values() for value in v)
        assert written > kills, process
    assert len(history.seen) > sum(map(len, log.values())) // 4


def test_history_over_five_kills(tmp_path: Path) -> None:
    _run(tmp_path, kills=5, seed=20_261)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("round_", range(5))
def test_history_over_many_kills(tmp_path: Path, round_: int) -> None:
    """A seed of its own each time; HISTORY_SEED repeats one. Threads are not repeated exactly."""
    seed = int(os.environ.get("HISTORY_SEED", random.SystemRandom().randrange(1 << 32)))
    _run(tmp_path, kills=40, seed=seed + round_)


# ---- the checker finds what it looks for ---------------------------------------------------------


def _small() -> tuple[History, Log]:
    """Two requests of one process and a publish that a reader saw."""
    history = History()
    history.ok(history.invoke("a", 2, 0), 0)
    history.ok(history.invoke("a", 2, 0), 2)
    history.invoke("q", 1, None)
    history.invoke("u", 2, 1)
    history.refused(history.invoke("r", 1, 0))
    history.saw(1, 0, [b"q.0"])
    return history, {0: [b"a.0", b"a.1", b"a.2", b"a.3"], 1: [b"q.0"]}


def test_a_good_history_is_good() -> None:
    history, log = _small()
    assert anomalies(history, log) == []
    log[1] += [b"u.0", b"u.1"]  # its outcome was unknown: it may be there
    assert anomalies(history, log) == []


@pytest.mark.parametrize(
    ("log", "kinds"),
    [
        ({0: [b"a.0", b"a.1"], 1: [b"q.0"]}, {"lost"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3"], 1: []}, {"lost"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3"], 1: [b"q.0", b"q.0"]}, {"duplicated", "torn", "reordered"}),
        ({0: [b"a.2", b"a.3", b"a.0", b"a.1"], 1: [b"q.0"]}, {"lost", "reordered"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3", b"z.0"], 1: [b"q.0"]}, {"phantom"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3", b"r.0"], 1: [b"q.0"]}, {"phantom"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3"], 1: [b"q.0", b"u.0"]}, {"torn"}),
        ({0: [b"a.0", b"a.1", b"a.2", b"a.3", b"u.0", b"u.1"], 1: [b"q.0"]}, {"torn"}),
    ],
)  # fmt: skip
def test_an_anomaly_is_found(log: Log, kinds: set[str]) -> None:
    history, _ = _small()
    assert {line.partition(":")[0] for line in anomalies(history, log)} == kinds


def test_a_value_that_changes_is_found() -> None:
    history, log = _small()
    history.saw(1, 0, [b"q.1"])
    assert [line.partition(":")[0] for line in anomalies(history, log)] == ["changed"]


@pytest.mark.parametrize(("reported", "stale"), [(5, True), (None, True), (7, False), (9, False)])
def test_a_stale_group_is_found(reported: int | None, stale: bool) -> None:
    history, log = _small()
    for offset in (5, 7):
        history.committing("g", 0, offset)
        history.committed("g", 0, offset)
    history.committing("g", 0, 9)  # not answered
    history.group_is_at("g", 0, reported)
    assert bool(anomalies(history, log)) is stale
