"""FlyMQ conversations without a socket: order of answers, waiting, batches of the log, budgets."""

import gzip
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from broker.bench import ANYBODY, Bench
from conformance.flymq.peer import OK, fetch, fetched, frame, placed, produce, text
from kit.limits import HANG_S
from kit.overriding import Overriding
from sessions.kit import WAYS, Peer

from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.engine import Pending
from penstock.log.errors import Overloaded
from penstock.log.settings import TopicSettings
from penstock.sessions.flymq.conversation import MAX_DEFECTS
from penstock.sessions.flymq.session import MAX_CHANGES, FlyMQSession
from penstock.sessions.stream import SessionLimits
from penstock.wire.flymq.frames import frame_size

Way = Callable[[bytes], Iterator[bytes]]


def connect(bench: Bench, limits: SessionLimits | None = None) -> Peer:
    make = partial(FlyMQSession, bench.broker, frame_size=frame_size, principal=ANYBODY)
    return Peer(bench, make, limits)


def replies(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        size = 8 + int.from_bytes(data[4:8], "big")
        found.append((data[2], data[8:size]))
        data = data[size:]
    return found


def batches(bench: Bench, topic: str, partition: int = 0) -> list[list[bytes]]:
    """The values of each batch that the log has."""
    return [view.values() for view in bench.read(topic, partition).views]


def singles(topic: str, *values: bytes, key: bytes = b"", partition: int = -1) -> bytes:
    return b"".join(frame(0x01, produce(topic, value, key, partition)) for value in values)


PLACE = text("t") + text("g") + bytes(4)
CONVERSATION = [
    frame(0x03, text("t") + struct.pack(">i", 1)),
    frame(0x01, produce("t", b"a", b"k")),
    frame(0x01, produce("t", b"b")),
    frame(0x01, produce("t", b"bad", b"", 7)),
    frame(0x0B, fetch("t", 0, 10)),
    frame(0x06, PLACE + struct.pack(">Q", 2)),
    frame(0x60, PLACE),
    frame(0x01, gzip.compress(produce("t", b"c"), mtime=0), 0x03),
    frame(0x99, b"?"),
    frame(0x40),
    frame(0x08),
]
OPCODES = [0x03, 0x01, 0x01, 0xFF, 0x0B, 0x06, 0x60, 0x01, 0xFF, 0x40, 0x08]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [b"", b"\xaf", frame(0x08)[:-1]])
def test_bytes_may_arrive_in_any_pieces(bench: Bench, way: Way, behind: bytes) -> None:
    """Requests see the effect of those before them; pieces come while others still wait."""
    peer = connect(bench)
    for piece in way(b"".join(CONVERSATION) + behind):
        peer.send(piece)
    found = replies(peer.answers())
    assert [opcode for opcode, _ in found] == OPCODES
    assert fetched(found[4][1]) == ([(0, b"k", b"a"), (1, b"", b"b")], 2)
    assert found[6][1] == struct.pack(">Q", 2)
    assert placed(found[7][1]) == (0, 2)
    assert peer.session.held_bytes() == len(behind)
    assert not peer.outlet.pauses and not peer.session.busy()


# ---- batches -------------------------------------------------------------------------------------


def test_the_produces_of_one_read_are_one_batch(bench: Bench) -> None:
    peer = connect(bench)
    together = replies(peer.ask(singles("t", b"a", b"b", b"c")))
    assert batches(bench, "t") == [[b"a", b"b", b"c"]]
    assert [placed(payload) for _, payload in together] == [(0, 0), (0, 1), (0, 2)]


def test_keys_make_one_batch_for_each_partition(bench: Bench) -> None:
    bench.engine.create_topic("t", 3)
    bench.settle()
    peer = connect(bench)
    keys = [b"user-123", b"user-789", b"user-456", b"", b"user-789"]
    sent = b"".join(frame(0x01, produce("t", b"%d" % n, key)) for n, key in enumerate(keys))
    found = [placed(payload) for _, payload in replies(peer.ask(sent))]
    # The one without a key takes the turn of partition 0.
    assert found == [(2, 0), (0, 0), (2, 1), (0, 1), (0, 2)]
    assert batches(bench, "t", 0) == [[b"1", b"3", b"4"]]
    assert batches(bench, "t", 1) == []
    assert batches(bench, "t", 2) == [[b"0", b"2"]]


def test_the_time_of_the_answer_is_that_of_the_record(bench: Bench) -> None:
    peer = connect(bench)
    ((_, payload),) = replies(peer.ask(singles("t", b"a")))
    stored_us = bench.read("t").views[0].time_of(0)
    assert int.from_bytes(payload[-16:-8], "big") == stored_us // 1_000


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_record_that_is_too_large_fails_alone(bench: Bench, partitions: int) -> None:
    bench.engine.create_topic("t", partitions, TopicSettings(record_bytes=100))
    bench.settle()
    peer = connect(bench)
    values = [b"a", bytes(101), b"b", bytes(200), b"c"]
    sent = b"".join(frame(0x01, produce("t", value, b"k%d" % len(value))) for value in values)
    found = replies(peer.ask(sent))
    assert [opcode for opcode, _ in found] == [0x01, 0xFF, 0x01, 0xFF, 0x01]
    stored = [value for number in range(partitions) for value in bench.values("t", number)]
    assert sorted(stored) == [b"a", b"b", b"c"]
    assert not peer.session.busy() and not peer.outlet.pauses


def test_a_refusal_of_the_log_is_that_of_each_request(bench: Bench) -> None:
    def append(*_: object) -> None:
        raise Overloaded("t/0", "too much")

    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    engine = bench.broker.engine
    bench.broker.engine = Overriding(engine, append=append)  # type: ignore[assignment]  # a stand-in
    try:
        found = replies(peer.ask(singles("t", b"a", b"b")))
    finally:
        bench.broker.engine = engine
    assert [opcode for opcode, _ in found] == [0xFF, 0xFF]
    assert all(b"nothing was stored: too much" in payload for _, payload in found)


def test_produces_are_under_way_together_and_a_fetch_waits(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    peer.send(singles("t", b"a"))
    peer.send(singles("t", b"b"))
    assert not peer.outlet.pauses and peer.session.busy()
    peer.send(frame(0x0B, fetch("t", 0, 10)))
    assert peer.outlet.pauses == {"answer"} and peer.outlet.written == b""
    found = replies(peer.answers())
    assert [opcode for opcode, _ in found] == [0x01, 0x01, 0x0B]
    assert not peer.outlet.pauses and not peer.session.busy()


def test_reading_stops_while_too_much_is_not_durable(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench, SessionLimits(pending_bytes=1_000))
    peer.send(singles("t", bytes(2_000)))
    assert peer.outlet.pauses == {"pending"}
    peer.answers()
    assert not peer.outlet.pauses


def test_a_peer_has_a_number_of_changes_under_way(bench: Bench) -> None:
    peer = connect(bench)
    names = [f"t{number:03}" for number in range(MAX_CHANGES + 6)]
    creates = b"".join(frame(0x03, text(name) + struct.pack(">i", 1)) for name in names)
    peer.send(creates)
    assert len(bench.engine.topic_names(None, 1_000)) <= len(names)
    found = replies(peer.answers())
    assert found == [(0x03, OK)] * len(names)
    assert bench.engine.topic_names(None, 1_000) == names


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        frame(0x08),
        frame(0x53),
        frame(0x04, text("wide")),
        frame(0x53, text("wide")),
        frame(0x62),
        frame(0x07, fetch("wide", 0, 9, 0, "x")),
        frame(0x08, gzip.compress(b"", mtime=0), 0x03),
    ],
    ids=["LIST", "CLUSTER", "METADATA", "CLUSTER of one", "GROUPS", "FETCH with a filter", "gzip"],
)
def test_what_takes_long_is_done_in_a_thread(bench: Bench, request_: bytes) -> None:
    """Requests behind it wait, and the event loop does not."""
    bench.engine.create_topic("wide", DESCRIBED_AT_ONCE + 1)
    bench.publish("wide", b"x", partition=0)
    threads: list[threading.Thread] = []
    go_on = threading.Event()

    def run(work: Callable[[], None]) -> None:
        def wait_and_work() -> None:
            assert go_on.wait(HANG_S)
            work()

        threads.append(threading.Thread(target=wait_and_work))
        threads[-1].start()

    bench.broker._run = run
    peer = connect(bench)
    peer.send(request_ + frame(0x72))
    bench.run_posted()
    assert threads and peer.outlet.written == b"" and peer.session.busy()
    go_on.set()
    bench.wait_for(lambda: len(replies(bytes(peer.outlet.written))) == 2)
    for thread in threads:
        thread.join(HANG_S)
    assert not peer.session.busy()


def test_a_peer_that_goes_while_a_thread_works_for_it(bench: Bench) -> None:
    peer = connect(bench)
    peer.send(frame(0x08) + frame(0x05, PLACE + text("latest")))
    peer.session.closed()
    bench.settle()
    assert peer.outlet.written == b"" and not peer.outlet.failures


def test_a_connection_is_a_member_of_so_many_groups(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    sent = b"".join(
        frame(0x05, text("t") + text(f"g{number}") + bytes(4) + text("latest"))
        for number in range(1_001)
    )
    found = replies(peer.ask(sent))
    assert [opcode for opcode, _ in found] == [0x05] * 1_000 + [0xFF]
    peer.session.closed()
    assert bench.broker.members.groups() == []


# ---- defects -------------------------------------------------------------------------------------


class Defect(Exception):
    """Nothing that the server knows."""


def broken(*_: object, **__: object) -> object:
    raise Defect("not for peers")


def unreadable(*_: object, **__: object) -> Pending[object]:
    """A read whose result makes the callback fail."""
    found: Pending[object] = Pending()
    found.settle("no result of a read", None)
    return found


def read_later(bench: Bench) -> Callable[..., Pending[object]]:
    def read(*_: object, **__: object) -> Pending[object]:
        found: Pending[object] = Pending()
        bench.engine.post(lambda: found.settle("no result of a read", None))
        return found

    return read


DELAYED = b"".join(frame(0x30, text("t") + b"\0\0\0\1v" + bytes(8)) for _ in range(3))


@pytest.mark.parametrize(
    ("sent", "expected", "method", "stand_in"),
    [
        (singles("t", b"a", b"b"), 2, "append", broken),
        (DELAYED, 3, "topic", broken),
        (frame(0x04, text("t")), 1, "topic", broken),
        (frame(0x0B, fetch("t", 0, 10)), 1, "read", broken),
        (frame(0x0B, fetch("t", 0, 10)), 1, "read", unreadable),
        (frame(0x07, fetch("t", 0, 10)), 1, "read", read_later),
        (frame(0x66, PLACE + bytes(8)), 1, "offset_at_time", broken),
    ],
    ids=["produce", "delayed", "metadata", "fetch", "callback", "late callback", "seek"],
)
def test_a_defect_is_an_error_and_the_connection_goes_on(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    expected: int,
    method: str,
    stand_in: Callable[..., object],
) -> None:
    peer = connect(bench)
    assert replies(peer.ask(singles("t", b"v")))[0][0] == 0x01
    engine = bench.broker.engine
    instead = stand_in(bench) if stand_in is read_later else stand_in
    bench.broker.engine = Overriding(engine, **{method: instead})  # type: ignore[assignment]  # a stand-in
    try:
        found = replies(peer.ask(sent))
    finally:
        bench.broker.engine = engine
    assert [opcode for opcode, _ in found] == [0xFF] * expected
    assert all(b"internal error" in payload for _, payload in found)
    assert b"".join(payload for _, payload in found).find(b"not for peers") < 0
    assert caplog.text.count("Traceback") == 1 and not peer.outlet.failures
    assert [opcode for opcode, _ in replies(peer.ask(singles("t", b"w") + frame(0x08)))] == [1, 8]
    assert not peer.session.busy() and not peer.outlet.pauses


def test_many_defects_end_the_connection(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Each is a traceback in the log: a peer that causes one must not fill it."""
    peer = connect(bench)
    peer.ask(singles("t", b"v"))
    engine = bench.broker.engine
    bench.broker.engine = Overriding(engine, topic=broken)  # type: ignore[assignment]  # a stand-in
    try:
        for _ in range(MAX_DEFECTS):
            assert replies(peer.ask(frame(0x04, text("t"))))[0][0] == 0xFF
        before = peer.outlet.failures
        peer.ask(frame(0x04, text("t")))
    finally:
        bench.broker.engine = engine
    assert (before, peer.outlet.failures) == (0, 1)
    assert caplog.text.count("Traceback") == MAX_DEFECTS
