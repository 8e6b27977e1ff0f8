"""Fujin readers without a socket: messages pushed and fetched, ACK and NACK, groups, slow peers."""

import pytest
from broker.bench import ANYBODY, Bench, numbered
from sessions.fujin.peer import ROUTES, Peer, connect_reader, failed, fetch, message

from penstock.broker.access.access import Principal
from penstock.sessions.fujin.options import FujinOptions
from penstock.wire.fujin.reading import encode_id, encode_settle


def reading(
    bench: Bench, name: str = "work", *, push: bool = True, auto_commit: bool = False
) -> Peer:
    """Connected, and past the hold before the first message."""
    peer = Peer(bench)
    peer.session.receive(connect_reader(name, push=push, auto_commit=auto_commit))
    assert peer.taken() == b"\1\0"
    bench.advance(5)
    return peer


def test_pushed_messages_and_the_hold_before_the_first(bench: Bench) -> None:
    """Rows 51, 58, 59, 60."""
    bench.publish("t", b"one")
    peer = Peer(bench)
    assert peer.ask(connect_reader("work")) == b"\1\0"
    bench.advance(5)
    assert peer.answers() == b"\6" + message(0, b"one")
    bench.publish("t", b"two", b"three")
    assert peer.answers() == b"\6" + message(1, b"two") + b"\6" + message(2, b"three")
    other = reading(bench, "t", auto_commit=True)
    bench.publish("t", b"hello")
    assert list(other.answers()) == [6, 0, 0, 0, 5, 104, 101, 108, 108, 111]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\2\3\0", "invalid reader type"),
        (b"\2\1\2", "connect reader is auto commit arg invalid"),
        (b"\2\1\0\0\0\0\0", "reader name size arg not provided"),
        (connect_reader("none"), "reader not found"),
        (connect_reader("gone"), "reader not found"),
        (connect_reader("\x01"), "reader not found"),
    ],
)
def test_refusals_of_a_reader(bench: Bench, sent: bytes, text: str) -> None:
    """Rows 52 to 55: the result, and the end, without a DISCONNECT."""
    peer = Peer(bench)
    assert peer.ask(sent + b"more") == bytes([1, 1, 0, 0, 0, len(text)]) + text.encode()
    assert peer.stream.finished


def test_a_topic_of_one_letter_and_a_fetch_where_messages_are_pushed(bench: Bench) -> None:
    """Rows 56, 63."""
    found = Peer(bench).ask(connect_reader("t") + fetch(1))
    assert found == b"\1\0" + failed(7, 1, "invalid reader type")


def test_fetch(bench: Bench) -> None:
    """Rows 64, 68 to 72, 76."""
    bench.publish("t", *numbered(range(3)))
    peer = reading(bench, push=False)
    assert peer.answers() == b""
    assert peer.ask(fetch(0)) == failed(7, 1, "fetch arg not provided")
    assert peer.ask(fetch(2)) == b"\7\0\0\0\1\0\0\0\0\2" + message(0, b"0") + message(1, b"1")
    assert peer.ask(fetch(5)) == b"\7\0\0\0\1\0\0\0\0\1" + message(2, b"2")
    assert peer.ask(fetch(5)) == b""
    bench.advance(1_000)
    assert peer.answers() == b"\7\0\0\0\1\0\0\0\0\0"


def test_fetch_waits_for_a_message_and_answers_in_order(bench: Bench) -> None:
    """Rows 74, 78. An ACK overtakes it."""
    bench.publish("t", b"first")
    peer = reading(bench, push=False)
    peer.ask(fetch(1))
    assert peer.ask(fetch(9, 2) + fetch(9, 3) + encode_settle(8, 4, [encode_id(0, 0)])) == (
        b"\10\0\0\0\4\0\0\0\0\1\0\0\0\x0c" + encode_id(0, 0) + b"\0"
    )
    bench.publish("t", b"second")
    assert peer.answers() == b"\7\0\0\0\2\0\0\0\0\1" + message(1, b"second")
    bench.advance(999)
    assert peer.answers() == b""
    bench.advance(1)
    assert peer.answers() == b"\7\0\0\0\3\0\0\0\0\0"


def test_fetch_may_wait_for_ever(bench: Bench) -> None:
    """Row 75."""
    peer = Peer(bench, FujinOptions(fetch_max_wait_us=None))
    peer.ask(connect_reader("t", push=False, auto_commit=True) + fetch(9))
    bench.advance(60_000)
    assert peer.answers() == b""
    bench.publish("t", b"hello")
    assert peer.answers() == b"\7\0\0\0\1\0\0\0\0\1\0\0\0\5hello"


def test_ack_moves_the_cursor_of_the_group(bench: Bench) -> None:
    """Rows 81 to 84, 87, 88."""
    bench.publish("t", *numbered(range(3)))
    peer = reading(bench)
    peer.answers()
    assert peer.ask(encode_settle(8, 1, [])) == b"\10\0\0\0\1\0\0\0\0\0"
    ids = [encode_id(0, 0), encode_id(0, 2), encode_id(0, 7), b"", b"short", encode_id(9, 0)]
    outcomes = [b"\0", b"\0", *[b"\1\0\0\0\x0dmsg not found"] * 4]
    expected = b"".join(
        len(id).to_bytes(4, "big") + id + one for id, one in zip(ids, outcomes, strict=True)
    )
    assert peer.ask(encode_settle(8, 1, ids)) == b"\10\0\0\0\1\0\0\0\0\6" + expected
    assert bench.broker.committed_offset("billing", "t", 0) == 1
    literal = Peer(bench, FujinOptions(routes=ROUTES, literal_outcomes=True))
    literal.ask(connect_reader("work"))
    assert literal.ask(encode_settle(8, 1, [b"x"])) == b"\10\0\0\0\1\0\0\0\0\1\0\0\0\1x\0"


def test_ack_is_answered_when_it_is_durable(bench: Bench) -> None:
    bench.publish("t", b"x")
    peer = reading(bench)
    peer.answers()
    peer.session.receive(encode_settle(8, 1, [encode_id(0, 0)]) + b"\x0a")
    assert peer.stream.written == b"" and peer.session.busy()
    assert peer.answers().endswith(b"\0\x0a")
    assert bench.broker.committed_offset("billing", "t", 0) == 1


def test_nack_delivers_again_and_the_id_stays(bench: Bench) -> None:
    """Row 89."""
    bench.publish("t", b"x")
    peer = reading(bench)
    pushed = peer.answers()
    assert peer.ask(encode_settle(9, 1, [encode_id(0, 0)]))[-1:] == b"\0"
    bench.advance(100)
    assert peer.answers() == pushed


def test_ack_of_a_reader_with_auto_commit_is_an_error(bench: Bench) -> None:
    """Row 86."""
    peer = reading(bench, auto_commit=True)
    text = "auto commit is on, there is nothing to settle"
    assert peer.ask(encode_settle(8, 1, [encode_id(0, 0)])) == failed(8, 1, text)


def test_two_readers_of_a_group_share_and_a_lost_one_leaves_its_work(bench: Bench) -> None:
    one, other = reading(bench), reading(bench)
    bench.publish("t", *numbered(range(10)))
    first, second = one.answers(), other.answers()
    assert first and second and len(first + second) == 10 * (1 + 4 + 12 + 4 + 1)
    one.session.closed()
    assert len(other.answers()) == len(first)


def test_empty_records_are_skipped_counted_and_settled(bench: Bench) -> None:
    bench.publish("t", b"", b"x", b"")
    peer = reading(bench)
    assert peer.answers() == b"\6" + message(1, b"x")
    assert bench.broker.counters["fujin"].refused["empty record"] == 2
    peer.ask(encode_settle(8, 1, [encode_id(0, 1)]))
    assert bench.broker.committed_offset("billing", "t", 0) == 3


def test_a_slow_reader_stops_its_own_stream(bench: Bench) -> None:
    peer = Peer(bench, room=1_000)
    peer.ask(connect_reader("t", auto_commit=True))
    bench.advance(5)
    for _ in range(20):
        bench.publish("t", bytes(100_000))
    assert peer.stream.most_unread < 600_000
    total = 0
    for _ in range(100):
        total += len(peer.answers())
        peer.stream.read_all()
        peer.session.writable()
    assert total == 20 * 100_005


def test_a_disconnect_ends_a_reader(bench: Bench) -> None:
    """Row 22: no message after it. A FETCH that waits is answered first."""
    peer = reading(bench, "t")
    assert peer.ask(b"\x0a") == b"\x0a"
    bench.publish("t", b"x")
    assert peer.answers() == b""
    pull = reading(bench, "t", push=False)
    pull.ask(fetch(1))
    assert pull.ask(b"\x0a") == b"\7\0\0\0\1\0\0\0\0\0\x0a"
    assert len(bench.broker.cursors) == 0


def test_a_deleted_topic_ends_its_readers(bench: Bench) -> None:
    """Row 57: not a second result."""
    peer = reading(bench, "t")
    bench.broker.delete_topic(ANYBODY, "t")
    assert peer.answers() == b"\x0a"
    assert peer.stream.finished


def test_a_key_that_is_revoked_ends_its_reader(bench: Bench) -> None:
    peer = Peer(bench)
    peer.principal_of_reader(connect_reader("t"), Principal("nobody", "guest"))
    bench.advance(5)
    bench.publish("t", b"x")
    assert peer.answers() == b"\x0a"


def test_who_may_not_read_is_told(bench: Bench) -> None:
    found = Peer(bench, principal=Principal("nobody", "guest")).ask(connect_reader("t"))
    assert found.startswith(b"\1\1") and b"nobody may not subscribe" in found


def test_the_members_of_a_group_are_shown(bench: Bench) -> None:
    peer = reading(bench)
    assert bench.broker.group(ANYBODY, "billing", "t").members == 1
    peer.session.closed()
    bench.settle()
    assert bench.broker.group(ANYBODY, "billing", "t").members == 0


# --- defects that were found ------------------------------------------------------------------------


def test_a_fetch_in_the_first_read_is_answered_behind_the_connect(bench: Bench) -> None:
    bench.publish("t", b"a")
    bench.settle()
    peer = Peer(bench)
    assert peer.ask(connect_reader("work", push=False) + fetch(1)) == (
        b"\1\0" + b"\7\0\0\0\1\0\0\0\0\1" + message(0, b"a")
    )


@pytest.mark.parametrize("how", ["peer_reset", "peer_stopped"])
def test_a_reader_whose_peer_gave_up_takes_nothing_more(bench: Bench, how: str) -> None:
    """Before its stream is closed: with auto commit the group would never see the message."""
    peer = Peer(bench)
    peer.ask(connect_reader("work", auto_commit=True))
    getattr(peer.session, how)(0)
    bench.publish("t", b"kept")
    bench.settle()
    bench.advance(1_000)
    peer.session.closed()
    bench.settle()
    assert Peer(bench).ask(connect_reader("work", push=False) + fetch(1)).endswith(b"kept")
