"""RustLog conversations without a socket: order of answers, waiting, limits, both dialects."""

import errno
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.overriding import Overriding
from sessions.kit import WAYS, Peer

from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.errors import LogClosed
from penstock.log.storage.files import RealFiles
from penstock.sessions.rustlog.session import MAX_CHANGES, RustLogSession
from penstock.sessions.stream import SessionLimits
from penstock.wire.primitives import frame_size
from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog import frames as wire
from penstock.wire.rustlog import json_encode as rustlog_json_encode

Way = Callable[[bytes], Iterator[bytes]]
Encode = Callable[[wire.Request], bytes]

json = rustlog_json_encode.encode_request
binary = rustlog_binary.encode_request
DIALECTS = pytest.mark.parametrize("encode", [json, binary], ids=["J", "B"])
FETCH = wire.Fetch("t", 0, 0, 1 << 20, None)


def connect(bench: Bench, limits: SessionLimits | None = None, room: int | None = None) -> Peer:
    make = partial(RustLogSession, bench.broker, frame_size=frame_size, principal=ANYBODY)
    return Peer(bench, make, limits, room)


def frames(data: bytes) -> list[bytes]:
    found, position, error = wire.split_frames(data, 0, len(data))
    assert (position, error) == (len(data), None)
    return [data[frame.start : frame.end] for frame in found]


CONVERSATION: list[wire.Request] = [
    wire.CreateTopic("t", 1),
    wire.Produce("t", 0, [b"a", b"b"]),
    wire.Produce("t", 0, [b"c"]),
    wire.Produce("nowhere", 0, [b"c"]),
    FETCH,
    wire.OffsetCommit("t", 0, "g", 2),
    wire.OffsetFetch("t", 0, "g"),
    wire.Ping(),
]


def expected_in_json() -> bytes:
    fetched = rustlog_json_encode.FetchReplyWriter(1 << 20)
    for offset, value in enumerate((b"a", b"b", b"c")):
        fetched.add(offset, value)
    return b"".join(
        [
            rustlog_json_encode.encode_create_topic_reply(True),
            rustlog_json_encode.encode_produce_reply(0, 2),
            rustlog_json_encode.encode_produce_reply(2, 1),
            rustlog_json_encode.encode_error("partition not found: topic=nowhere, partition=0"),
            fetched.finish(3),
            rustlog_json_encode.encode_offset_commit_reply(True),
            rustlog_json_encode.encode_offset_fetch_reply(2),
            rustlog_json_encode.encode_pong(),
        ]
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [b"", b"\0\0", json(wire.Ping())[:-1]])
def test_bytes_may_arrive_in_any_pieces(bench: Bench, way: Way, behind: bytes) -> None:
    """Requests see the effect of those before them; pieces come while others still wait."""
    peer = connect(bench)
    for piece in way(b"".join(map(json, CONVERSATION)) + behind):
        peer.send(piece)
    assert peer.answers() == expected_in_json()
    assert peer.session.held_bytes() == len(behind)
    assert not peer.outlet.pauses and not peer.session.busy()


@pytest.mark.parametrize("way", WAYS)
def test_both_dialects_on_one_connection(bench: Bench, way: Way) -> None:
    peer = connect(bench)
    mixed = [(json, binary)[number % 2](request) for number, request in enumerate(CONVERSATION)]
    for piece in way(b"".join(mixed)):
        peer.send(piece)
    answers = frames(peer.answers())
    assert len(answers) == len(CONVERSATION)
    assert [answer[:1] == b"{" or answer[:1] == b'"' for answer in answers] == [True, False] * 4


@DIALECTS
def test_a_topic_that_is_deleted_under_a_producer_is_unknown(bench: Bench, encode: Encode) -> None:
    """As it is for the next one, and not a shutdown."""
    bench.publish("t", b"first")
    peer = connect(bench)
    peer.send(encode(wire.Produce("t", 0, [b"second"])))
    bench.engine.delete_topic("t")
    bench.wait_for(lambda: peer.outlet.written)
    late = bytes(peer.outlet.written)
    assert late == connect(bench).ask(encode(wire.Produce("t", 0, [b"third"])))


@DIALECTS
def test_produces_are_under_way_together_and_a_fetch_waits(bench: Bench, encode: Encode) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    peer.send(encode(wire.Produce("t", 0, [b"a"])) + encode(wire.Produce("t", 0, [b"b"])))
    assert not peer.outlet.pauses and peer.session.busy()
    peer.send(encode(FETCH))
    assert peer.outlet.pauses == {"answer"} and peer.outlet.written == b""
    answers = frames(peer.answers())
    assert len(answers) == 3 and bench.values("t") == [b"a", b"b"]
    assert not peer.outlet.pauses and not peer.session.busy()


@contextmanager
def metadata_held(bench: Bench) -> Iterator[None]:
    """The next commit of the metadata begins when the block ends."""
    go_on = threading.Event()
    begun = threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait(HANG_S)

    bench.engine.metadata.submit(hold)
    assert begun.wait(HANG_S)
    try:
        yield
    finally:
        go_on.set()


@DIALECTS
def test_changes_of_the_metadata_are_under_way_together(bench: Bench, encode: Encode) -> None:
    """One commit carries many; their answers are in order, and a list behind them sees them all."""
    peer = connect(bench)
    names = [f"t{number:02}" for number in range(20)]
    creates = [encode(wire.CreateTopic(name, 1)) for name in [*names, "t07"]]
    commits = [encode(wire.OffsetCommit(name, 0, "g", 1)) for name in names]
    with metadata_held(bench):
        peer.send(b"".join([*creates, *commits, encode(wire.ListTopics())]))
        assert bench.engine.topic_names(None, 100) == names
        assert peer.outlet.written == b"" and peer.outlet.pauses == {"answer"}
    commits_before = bench.engine.metadata.commits
    answers = frames(peer.answers())
    assert len(answers) == 42 and len({answers[at] for at in range(20)}) == 1
    assert answers[20] != answers[0]  # there is a t07 already
    assert all(name.encode() in answers[-1] for name in names)
    assert bench.engine.metadata.commits - commits_before < 10
    assert all(bench.engine.committed_offset("g", name, 0) == 1 for name in names)


def test_a_peer_has_a_number_of_changes_under_way(bench: Bench) -> None:
    peer = connect(bench)
    names = [f"t{number:03}" for number in range(MAX_CHANGES + 6)]
    with metadata_held(bench):
        peer.send(b"".join(json(wire.CreateTopic(name, 1)) for name in names))
        assert len(bench.engine.topic_names(None, 1_000)) == MAX_CHANGES
        assert peer.outlet.pauses == {"answer"}
    assert len(frames(peer.answers())) == len(names)
    assert bench.engine.topic_names(None, 1_000) == names
    assert not peer.outlet.pauses


def test_a_read_with_many_requests_takes_turns(bench: Bench) -> None:
    """Each turn answers what it has carried out; nothing is read meanwhile, and order stays."""
    peer = connect(bench)
    peer.outlet.turn_looks = 2
    names = [f"t{number:03}" for number in range(20)]
    peer.send(b"".join(json(wire.CreateTopic(name, 1)) for name in names) + json(wire.Ping()))
    assert 0 < len(bench.engine.topic_names(None, 1_000)) < len(names)
    assert peer.outlet.pauses == {"answer"} and peer.session.busy()
    bench.settle()
    while peer.outlet.pauses:
        peer.session.writable()
        bench.settle()
    assert bench.engine.topic_names(None, 1_000) == names
    answers = frames(peer.answers())
    assert len(answers) == len(names) + 1 and b"Pong" in answers[-1]
    assert not peer.session.busy()


def test_an_end_of_input_waits_for_the_turns(bench: Bench) -> None:
    peer = connect(bench)
    peer.outlet.turn_looks = 1
    peer.send(json(wire.Ping()) * 30)
    peer.session.end_of_input()
    assert not peer.outlet.is_closed
    peer.outlet.turn_looks = None
    peer.session.writable()
    assert len(frames(peer.answers())) == 30
    assert peer.outlet.is_closed


@pytest.mark.parametrize(
    ("encode", "request_", "found"),
    [
        (json, wire.ListTopics(), b"wide"),
        (json, wire.Metrics(), b""),
        (binary, wire.ListTopics(), b"wide"),
        (binary, wire.DescribeTopic("wide"), b"wide"),
    ],
    ids=["J-ListTopics", "J-Metrics", "B-ListTopics", "B-DescribeTopic"],
)
def test_what_grows_is_made_in_a_thread(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    encode: Encode,
    request_: wire.Request,
    found: bytes,
) -> None:
    bench.engine.create_topic("wide", DESCRIBED_AT_ONCE + 1)
    bench.settle()
    peer = connect(bench)
    work: list[Callable[[], None]] = []
    monkeypatch.setattr(bench.broker, "_run", work.append)
    assert peer.ask(encode(request_) + encode(wire.CreateTopic("later", 1))) == b""
    assert peer.session.busy()
    (make,) = work
    make()
    answers = frames(peer.answers())
    assert len(answers) == 2 and found in answers[0]
    assert b"later" not in answers[0]  # what is behind the list is not in it
    assert bench.engine.topic("later") is not None and not peer.session.busy()


def test_a_list_that_cannot_be_made_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(after: str | None, limit: int) -> list[str]:
        raise LogClosed

    monkeypatch.setattr(bench.broker, "engine", Overriding(bench.engine, topic_names=broken))
    peer = connect(bench)
    answers = frames(peer.ask(json(wire.ListTopics()) + json(wire.Ping())))
    assert len(answers) == 2 and b"Error" in answers[0]


@DIALECTS
def test_a_request_that_cannot_be_read_is_answered_in_its_turn(
    bench: Bench, encode: Encode
) -> None:
    bench.engine.create_topic("t")
    peer = connect(bench)
    good = encode(wire.Produce("t", 0, [b"a"]))
    bad = wire.framed(encode(FETCH)[4:-1])
    peer.send(good + bad + good)
    answers = frames(peer.answers())
    assert len(answers) == 3
    assert bench.values("t") == [b"a", b"a"]
    assert answers[0] != answers[1] and len(answers[0]) == len(answers[2])


@DIALECTS
def test_a_write_that_fails(tmp_path: Path, encode: Encode) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    produce = encode(wire.Produce("t", 0, [b"a"]))
    peer.ask(produce)
    files.fail("write", errno.ENOSPC, suffix=".log")
    assert b"No space left" in peer.ask(produce)
    assert len(frames(peer.ask(produce + encode(wire.Ping())))) == 2
    assert bench.values("t") == [b"a", b"a"]
    bench.close()


def test_reading_stops_while_too_much_is_not_durable(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench, SessionLimits(pending_bytes=1_000))
    produce = json(wire.Produce("t", 0, [bytes(150)]))
    peer.send(produce)
    assert "pending" not in peer.outlet.pauses
    peer.send(produce * 3)
    assert "pending" in peer.outlet.pauses
    assert len(frames(peer.answers())) == 4
    assert not peer.outlet.pauses


@pytest.mark.parametrize("cache_bytes", [0, 1 << 26])
@DIALECTS
def test_a_peer_that_does_not_read_is_not_read_from(
    tmp_path: Path, encode: Encode, cache_bytes: int
) -> None:
    """Bytes that come all the same stay in order, and no answer is lost at the end."""
    bench = Bench(str(tmp_path / "data"), cache_bytes=cache_bytes)
    bench.engine.create_topic("t")
    bench.publish("t", bytes(50_000))
    peer = connect(bench, room=60_000)
    fetch, count = encode(FETCH), 40
    for number in range(count):
        # Never at the border of a frame.
        peer.send(fetch[7:] + fetch[:7] if number else fetch + fetch[:7])
        bench.run_posted()
    assert peer.outlet.most_unread < 500_000 and "answer" in peer.outlet.ever_paused
    peer.send(fetch[7:])
    peer.session.end_of_input()
    for _ in range(3 * count):
        bench.wait_for(lambda: peer.outlet.congested or not peer.session.busy())
        if not peer.outlet.read_all():
            break
        peer.session.writable()
    answers = frames(bytes(peer.outlet.written))
    assert len(answers) == count + 1 and len(set(answers)) == 1
    assert peer.outlet.is_closed
    bench.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_half_closed_peer_gets_its_answers_first(bench: Bench, way: Way) -> None:
    peer = connect(bench)
    for piece in way(b"".join(map(json, CONVERSATION)) + b"\0\0"):
        peer.send(piece)
    peer.session.end_of_input()
    assert not peer.outlet.is_closed
    assert peer.answers() == expected_in_json()
    assert peer.outlet.is_closed


@DIALECTS
def test_a_broken_frame_is_answered_last(bench: Bench, encode: Encode) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    peer.send(encode(wire.Produce("t", 0, [b"a"])) + b"\xff\xff\xff\xff")
    assert not peer.outlet.is_closed
    peer.send(bytes(1_000))
    answers = frames(peer.answers())
    assert len(answers) == 2
    assert b"max frame size exceeded" in answers[1] or b"frame too large" in answers[1]
    assert peer.outlet.is_closed
    assert peer.session.held_bytes() <= 100


def test_a_large_request_in_many_reads(bench: Bench) -> None:
    bench.engine.create_topic("t")
    bench.settle()
    peer = connect(bench)
    request = binary(wire.Produce("t", 0, [bytes(9_000_000)]))
    for start in range(0, len(request), 256 * 1024):
        peer.send(request[start : start + 256 * 1024])
    assert peer.answers() == rustlog_binary_reply.encode_produce_reply(0, 1)
    assert peer.session.held_bytes() == 0


def test_a_connection_that_is_gone(bench: Bench) -> None:
    bench.engine.create_topic("t")
    peer = connect(bench, SessionLimits(pending_bytes=1))
    peer.send(json(wire.Produce("t", 0, [b"kept"])) + json(FETCH))
    peer.session.closed()
    assert not peer.session.busy()
    assert peer.answers() == b"" and bench.values("t") == [b"kept"]


def test_while_draining_nothing_durable_begins(bench: Bench) -> None:
    bench.publish("t", *numbered(range(3)))
    peer = connect(bench)
    bench.broker.stopping = True
    peer.session.drain()
    found = frames(peer.ask(json(wire.Produce("t", 0, [b"x"])) + json(FETCH)))
    assert b"shutting down" in found[0] and b"next_offset" in found[1]


REQUESTS = st.sampled_from([f for r in CONVERSATION for f in (json(r), binary(r))])
# Lengths that are there, behind them anything.
FRAMED = st.binary(min_size=1, max_size=40).map(wire.framed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(pieces=st.lists(st.one_of(REQUESTS, FRAMED, st.binary(max_size=20)), max_size=20))
def test_no_bytes_raise_hang_or_pile_up(bench: Bench, pieces: list[bytes]) -> None:
    peer = connect(bench)
    for piece in pieces:
        peer.send(piece)
        bench.run_posted()
        assert peer.session.held_bytes() <= wire.MAX_FRAME_BYTES + 4
    peer.session.end_of_input()
    peer.wait_idle()
    frames(peer.answers())
    assert peer.outlet.is_closed and not peer.session.busy()
    peer.session.closed()


@pytest.mark.parametrize(
    "request_",
    [wire.Produce("t", 0, [b"v"]), wire.OffsetCommit("t", 0, "g", 1), wire.CreateTopic("new", 1)],
    ids=lambda request: type(request).__name__,
)
def test_a_completion_that_raises_ends_the_conversation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, request_: wire.Request
) -> None:
    """Its peer would wait for ever for an answer."""
    bench.engine.create_topic("t", 1)
    bench.settle()
    peer = connect(bench)

    def broken(data: bytes) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(peer.outlet, "write", broken)
    peer.send(binary(request_))
    bench.settle()
    assert peer.outlet.failures == 1
