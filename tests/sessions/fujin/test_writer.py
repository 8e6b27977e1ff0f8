"""Fujin writers without a socket: the bytes of the rows, order, transactions, ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from kit.overriding import Overriding
from sessions.fujin.peer import (
    EXAMPLE,
    OPTIONS,
    ROUTES,
    WRITER,
    Peer,
    Way,
    done,
    failed,
    write,
)
from sessions.kit import WAYS

from penstock.broker.access.access import Principal
from penstock.log.errors import Overloaded
from penstock.log.settings import TopicSettings
from penstock.sessions.fujin.options import FujinOptions
from penstock.wire.fujin.writing import OFF, encode_write

BEGIN, COMMIT, ROLLBACK = (bytes([opcode, 0, 0, 0, 9]) for opcode in (4, 5, 6))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Bench]:
    """With threads, which transactions need."""
    made = Bench(str(tmp_path / "data"), threads=2)
    made.broker.create_topic(ANYBODY, "t", 1)
    made.broker.create_topic(ANYBODY, "u", 1)
    yield made
    made.close()


def test_the_example_of_write(bench: Bench) -> None:
    peer = Peer(bench)
    assert peer.ask(WRITER) == b""
    assert list(peer.ask(EXAMPLE)) == [2, 0, 1, 1, 1, 0]
    assert bench.values("t") == [b"hello"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("id", [b"\1\0\0\0\0", b"\1\0\0\0\1", b"\1\0\0\0\2id"])
def test_bytes_may_arrive_in_any_pieces(bench: Bench, way: Way, id: bytes) -> None:
    peer = Peer(bench)
    for piece in way(id + write(1, b"a") + EXAMPLE + write(2, b"b", b"none") + b"\x0abehind"):
        peer.session.receive(piece)
    assert peer.answers() == done(2, 1, 0x010101) + failed(2, 2, "writer not found") + b"\x0a"
    assert peer.stream.finished
    assert bench.values("t") == [b"a", b"hello"]


def test_results_come_when_messages_are_durable(bench: Bench) -> None:
    peer = Peer(bench)
    peer.session.receive(WRITER + write(1, b"a") + b"\x0a")
    assert peer.stream.written == b"" and not peer.stream.finished
    assert peer.session.busy()
    assert peer.answers() == done(2, 1) + b"\x0a"
    assert peer.stream.finished


def test_headers_are_stored(bench: Bench) -> None:
    headers = [(b"name", b"content"), (b"name", b"again")]
    sent = WRITER + encode_write(1, b"t", b"with", headers) + write(2, b"without")
    assert Peer(bench).ask(sent) == done(2, 1, 2)
    records = bench.read("t").views[0].records()
    assert [record.headers for record in records] == [headers, []]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (encode_write(1, b"none", b"x", None), "writer not found"),
        (encode_write(1, b"gone", b"x", None), "writer not found"),
        (encode_write(1, b"t", b"", None), "write size arg not provided"),
    ],
)
def test_a_refused_write_leaves_the_session(bench: Bench, sent: bytes, text: str) -> None:
    """Rows 32 and 34."""
    peer = Peer(bench, FujinOptions(routes=ROUTES, write_headers=OFF))
    assert peer.ask(WRITER + sent) == failed(2, 1, text)
    assert peer.ask(encode_write(7, b"t", b"good", None)) == done(2, 7)
    assert not peer.stream.finished


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (bytes([3, 0, 0, 0, 1, 0, 0, 0, 0]), failed(2, 1, "writer topic len arg not provided")),
        (bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]), b""),
        (WRITER, b""),
        (b"\x0b", b""),
        (b"\xff", b""),
    ],
)
def test_what_ends_a_writer(bench: Bench, sent: bytes, reply: bytes) -> None:
    """Rows 13, 17, 33: results first, then a DISCONNECT, and what follows is dropped."""
    peer = Peer(bench)
    assert peer.ask(WRITER + write(7, b"x") + sent + EXAMPLE) == done(2, 7) + reply + b"\x0a"
    assert peer.stream.finished
    assert bench.values("t") == [b"x"]


def test_a_message_above_the_limit_is_skipped_and_the_session_goes_on(bench: Bench) -> None:
    """Row 35: refused as soon as its length is there, and never held."""
    peer = Peer(bench, FujinOptions(max_message_bytes=100))
    large = write(1, bytes(1_000))
    text = "message too large, the most is 100 bytes"
    assert peer.ask(WRITER + large[:50]) == failed(2, 1, text)
    assert peer.ask(large[50:500]) == b""
    assert peer.session.held_bytes() == 0
    assert peer.ask(large[500:] + write(2, b"next")) == done(2, 2)


def test_names_may_need_a_route(bench: Bench) -> None:
    peer = Peer(bench, FujinOptions(routes=ROUTES, only_routes=True))
    assert peer.ask(WRITER + write(1, b"x")) == failed(2, 1, "writer not found")
    assert peer.ask(write(2, b"x", b"pub")) == done(2, 2)


def test_topics_are_made_where_that_is_allowed(bench: Bench) -> None:
    peer = Peer(bench, FujinOptions(auto_create=True))
    assert peer.ask(WRITER + write(1, b"x", b"new")) == done(2, 1)
    assert bench.values("new") == [b"x"]


def test_one_record_too_large_does_not_take_the_others_along(bench: Bench) -> None:
    bench.broker.create_topic(ANYBODY, "small", 1, TopicSettings().changed({"record_bytes": 1024}))
    run = write(1, b"a", b"small") + write(2, bytes(2_000), b"small") + write(3, b"b", b"small")
    text = "a record may have 1024 bytes at most"
    assert Peer(bench).ask(WRITER + run) == done(2, 1) + failed(2, 2, text) + done(2, 3)
    assert bench.values("small") == [b"a", b"b"]


def test_failures_of_the_broker_are_told(bench: Bench) -> None:
    found = Peer(bench, principal=Principal("nobody", "guest")).ask(WRITER + write(1, b"x"))
    assert found.startswith(b"\2\0\0\0\1\1") and b"nobody may not publish" in found

    def refuse(*_: object) -> None:
        raise Overloaded("t", "too much waits")

    engine = Overriding(bench.engine, append=refuse)
    bench.broker.engine = engine  # type: ignore[assignment]  # a stand-in
    assert Peer(bench).ask(WRITER + write(1, b"x")).startswith(b"\2\0\0\0\1\1")


# --- transactions ----------------------------------------------------------------------------------


def until(peer: Peer, size: int) -> bytes:
    """The next `size` bytes of answers, whatever threads they wait for."""
    peer.bench.wait_for(lambda: len(peer.stream.written) >= size)
    return peer.taken()


def values(bench: Bench, topic: str) -> list[bytes]:
    latest = bench.engine.offsets(topic, 0)[1]
    return bench.values(topic) if latest else []


def test_messages_of_a_transaction_appear_together_at_its_commit(running: Bench) -> None:
    peer = Peer(running)
    headers = [(b"n", b"v")]
    peer.session.receive(
        WRITER + BEGIN + write(1, b"a") + encode_write(2, b"u", b"b", headers) + write(3, b"c")
    )
    assert until(peer, 24) == done(3, 9) + done(2, 1, 3, 2)
    assert (values(running, "t"), values(running, "u")) == ([], [])
    peer.session.receive(COMMIT)
    assert until(peer, 6) == done(4, 9)
    assert (values(running, "t"), values(running, "u")) == ([b"a", b"c"], [b"b"])
    assert running.read("u").views[0].headers(0) == headers


def test_a_rollback_leaves_nothing(running: Bench) -> None:
    peer = Peer(running)
    peer.session.receive(WRITER + BEGIN + write(1, b"a") + ROLLBACK + write(2, b"plain"))
    assert until(peer, 24) == done(3, 9) + done(2, 1) + done(5, 9) + done(2, 2)
    assert values(running, "t") == [b"plain"]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (COMMIT, failed(4, 9, "invalid tx state")),
        (ROLLBACK, failed(5, 9, "invalid tx state")),
        (BEGIN + BEGIN, done(3, 9) + failed(3, 9, "invalid tx state")),
        (BEGIN + COMMIT, done(3, 9) + done(4, 9)),
        (BEGIN + ROLLBACK + BEGIN, done(3, 9) + done(5, 9) + done(3, 9)),
    ],
)
def test_states_of_transactions(bench: Bench, sent: bytes, expected: bytes) -> None:
    """Rows 40 to 43."""
    peer = Peer(bench)
    assert peer.ask(WRITER + sent) == expected
    assert not peer.stream.finished


@pytest.mark.parametrize("end", [b"\x0a", b"\x07", None])
def test_the_end_of_a_session_rolls_back(running: Bench, end: bytes | None) -> None:
    """Rows 18, 21, 24."""
    peer = Peer(running)
    peer.session.receive(WRITER + BEGIN + write(1, b"a"))
    if end is None:
        peer.session.end_of_input()
    else:
        peer.session.receive(end)
    assert until(peer, 13) == done(3, 9) + done(2, 1) + b"\x0a"
    assert peer.stream.finished
    assert len(running.broker.transactions) == 0
    assert values(running, "t") == []


def test_a_lost_connection_rolls_back(running: Bench) -> None:
    peer = Peer(running)
    peer.session.receive(WRITER + BEGIN + write(1, b"a"))
    peer.session.closed()
    assert len(running.broker.transactions) == 0


def test_a_transaction_whose_time_is_over(running: Bench) -> None:
    """Row 46: a commit that fails leaves it open, for a rollback."""
    peer = Peer(running)
    peer.session.receive(WRITER + BEGIN + write(1, b"a"))
    running.advance(120_000)
    assert until(peer, 12) == done(3, 9) + done(2, 1)
    peer.session.receive(COMMIT)
    found = until(peer, 10)
    assert found.startswith(b"\4\0\0\0\x09\1") and b"transaction not found" in found
    peer.session.receive(ROLLBACK + BEGIN)
    assert until(peer, 12) == done(5, 9) + done(3, 9)


def test_begin_waits_for_the_writes_before_it(bench: Bench) -> None:
    peer = Peer(bench)
    peer.session.receive(WRITER + write(1, b"a") + BEGIN)
    assert peer.stream.written == b""
    assert peer.answers() == done(2, 1) + done(3, 9)


def test_who_may_not_use_transactions_is_told_at_once(bench: Bench) -> None:
    found = Peer(bench, OPTIONS, Principal("nobody", "guest")).ask(WRITER + BEGIN)
    assert found.startswith(b"\3\0\0\0\x09\1") and b"may not begin transactions" in found


def test_a_transaction_ends_with_its_session_also_without_the_right_to_end_it(bench: Bench) -> None:
    """A key that was revoked meanwhile: the session ends as always, and nothing is left open."""
    writer = Principal("app", "writer")
    peer = Peer(bench, principal=writer)
    peer.ask(WRITER + b"\4\0\0\0\1" + write(1, b"never"))
    assert len(bench.broker.transactions) == 1
    peer.session.principal = Principal("app", "guest")
    peer.session.end_of_input()
    bench.settle()
    assert peer.stream.failures == 0 and peer.taken() == b"\x0a"
    assert len(bench.broker.transactions) == 0


def test_who_may_do_nothing_gets_little_memory(bench: Bench) -> None:
    peer = Peer(bench, principal=Principal("nobody", "nobody"))
    head = encode_write(1, b"t", b"", [(b"n", b"v")])[:-4]
    words = failed(2, 1, "message too large, the most is 65536 bytes")
    assert peer.ask(WRITER + head + (65_537).to_bytes(4, "big")) == words
