"""Batches of a transaction that the client numbers, as they go over the wire."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from kit.flight_client import FLIGHT, make
from kit.flight_peer import Peer, values_table
from kit.live_server import WAIT_S, LiveServer

from penstock.server.flight.write import MAX_NUMBERED_BYTES

TASK = 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("numbered") / "data", FLIGHT) as server:
        yield server


@pytest.fixture
def peer(running: LiveServer) -> Iterator[Peer]:
    peer = Peer(running.port("flight"))
    yield peer
    peer.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, running: LiveServer, peer: Peer) -> str:
    """A topic of two partitions, and an open transaction of the same name."""
    name = str(request.node.name).replace("[", ".").replace("]", "")
    make(running, name, 2)
    peer.act("begin", name=name)
    return name


def send(peer: Peer, topic: str, sequence: int, *tables: pa.Table) -> list[dict[str, object]]:
    command = {"topic": topic, "transaction": topic, "task": TASK, "sequence": sequence}
    return peer.put(command, *tables)


def spread(*values: bytes) -> pa.Table:
    """One batch for both partitions."""
    partitions = pa.array([place % 2 for place in range(len(values))], pa.int32())
    return values_table(*values).append_column("partition", partitions)


def commit(peer: Peer, topic: str, batches: int) -> list[list[bytes]]:
    peer.act("commit", name=topic, tasks=[TASK], batches=[batches])
    return [peer.read(topic, partition) for partition in (0, 1)]


def test_every_part_tells_the_number_of_the_whole(peer: Peer, topic: str) -> None:
    told = send(peer, topic, 0, spread(b"a", b"b", b"c"), spread(b"d"))
    base = {"topic": topic, "repeated": False}
    assert told == [
        {**base, "partition": 0, "count": 2, "sequence": 0},
        {**base, "partition": 1, "count": 1, "sequence": 0},
        {**base, "partition": 0, "count": 1, "sequence": 1},
    ]
    again = send(peer, topic, 1, spread(b"d"), spread(b"e", b"f"))
    assert [(one["sequence"], one["repeated"]) for one in again] == [
        (1, True),
        (2, False),
        (2, False),
    ]
    assert commit(peer, topic, 3) == [[b"a", b"c", b"d", b"e"], [b"b", b"f"]]


def test_a_gap_is_refused(peer: Peer, topic: str) -> None:
    send(peer, topic, 0, spread(b"a"))
    text = r"18 SEQUENCE_GAP: task 3 sent batch 2, expected 1"
    with pytest.raises(pa.ArrowInvalid, match=text):
        send(peer, topic, 2, spread(b"c"))
    with pytest.raises(pa.ArrowInvalid, match=r"24 TRANSACTION_NOT_OPEN.*another one than task 3"):
        commit(peer, topic, 2)
    assert commit(peer, topic, 1) == [[b"a"], []]


def test_the_same_stream_twice_at_the_same_time(peer: Peer, topic: str) -> None:
    """As after a lost connection: what the old stream has sent may still be on its way."""
    tables = [spread(b"%d" % number, b"x%d" % number) for number in range(200)]
    start = threading.Barrier(4, timeout=WAIT_S)
    told: list[list[dict[str, object]]] = []

    def run() -> None:
        start.wait()
        told.append(send(peer, topic, 0, *tables))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    stored = [one["sequence"] for answers in told for one in answers if not one["repeated"]]
    assert sorted(map(int, map(str, stored))) == sorted(list(range(200)) * 2)
    assert commit(peer, topic, 200) == [
        [b"%d" % number for number in range(200)],
        [b"x%d" % number for number in range(200)],
    ]


def test_a_large_batch_is_cut_and_still_one(peer: Peer, topic: str) -> None:
    rows = spread(*[bytes(1_000_000)] * 21)
    for repeated in (False, True):
        told = send(peer, topic, 0, rows)
        assert len(told) > 4 and {one["sequence"] for one in told} == {0}
        assert {one["repeated"] for one in told} == {repeated}
    assert [len(found) for found in commit(peer, topic, 1)] == [11, 10]


def test_one_bad_row_keeps_the_whole_batch_out(running: LiveServer, peer: Peer, topic: str) -> None:
    make(running, f"{topic}.small", record_bytes=1024)
    rows = pa.table(
        {"topic": [topic, f"{topic}.small"], "value": pa.array([b"a", bytes(2000)], pa.binary())}
    )
    command = {"transaction": topic, "task": TASK, "sequence": 0}
    with pytest.raises(pa.ArrowInvalid, match="7 RECORD_TOO_LARGE"):
        peer.put(command, rows)
    assert send(peer, topic, 0, spread(b"b"))[0]["repeated"] is False
    assert commit(peer, topic, 1) == [[b"b"], []]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"sequence": -1}, "sequence"),
        ({"sequence": 1 << 32}, "sequence"),
        ({"sequence": "0"}, "sequence"),
        ({"sequence": 0, "transaction": None}, "only batches of a transaction are numbered"),
    ],
)
def test_bad_commands(peer: Peer, topic: str, command: dict[str, object], words: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=words):
        peer.put({"topic": topic, "transaction": topic, "task": TASK, **command}, spread(b"v"))


@pytest.mark.parametrize("batches", [[], [1, 1], [-1], "1"])
def test_bad_counts(peer: Peer, topic: str, batches: object) -> None:
    send(peer, topic, 0, spread(b"a"))
    with pytest.raises(pa.ArrowInvalid, match=r"19 INVALID_REQUEST: .*batches"):
        peer.act("commit", name=topic, tasks=[TASK], batches=batches)


def test_a_batch_beyond_the_limit(peer: Peer, topic: str) -> None:
    rows = spread(*[bytes(1 << 20)] * (MAX_NUMBERED_BYTES >> 20))
    with pytest.raises(pa.ArrowInvalid, match=f"is over the limit of {MAX_NUMBERED_BYTES}"):
        send(peer, topic, 0, rows)
