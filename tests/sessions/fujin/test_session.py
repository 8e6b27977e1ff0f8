"""Fujin sessions without a socket: how they begin and end, whatever their role."""

import pytest
from broker.bench import Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sessions.fujin.peer import EXAMPLE, WRITER, Peer, connect_reader, fetch, write

from penstock.wire.fujin.reading import encode_id, encode_settle


@pytest.mark.parametrize("first", [b"\0", b"\3", b"\x0b", b"\xff"])
def test_a_wrong_first_byte_ends_without_a_word(bench: Bench, first: bytes) -> None:
    """Row 19."""
    peer = Peer(bench)
    assert peer.ask(first + b"more") == b""
    assert peer.stream.finished


def test_a_disconnect_as_first_byte_is_answered(bench: Bench) -> None:
    """Row 20."""
    peer = Peer(bench)
    assert peer.ask(b"\x0a") == b"\x0a"
    assert peer.stream.finished


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"", b""),
        (b"\1\0\0", b""),
        (b"\2\1", b""),
        (b"\1\0\0\0\0", b"\x0a"),
        (b"\1\0\0\0\1", b"\x0a"),
        (b"\1\0\0\0\0" + EXAMPLE[:9], b"\x0a"),
        (connect_reader("t"), b"\1\0\x0a"),
    ],
)
def test_the_end_of_input_is_a_disconnect(bench: Bench, sent: bytes, reply: bytes) -> None:
    """Row 24."""
    peer = Peer(bench)
    peer.session.receive(sent)
    peer.session.end_of_input()
    assert peer.answers() == reply
    assert peer.stream.finished


def test_a_silent_stream_stays_open(bench: Bench) -> None:
    """Row 29."""
    peer = Peer(bench)
    peer.ask(WRITER)
    bench.advance(10 * 60 * 1_000)
    assert not peer.stream.finished


def test_stop_and_the_time_after_it(bench: Bench) -> None:
    """Rows 26 and 27."""
    patient, quick, unused = Peer(bench), Peer(bench), Peer(bench)
    patient.ask(WRITER)
    quick.ask(connect_reader("t"))
    for peer in (patient, quick, unused):
        peer.session.drain()
    assert (patient.answers(), quick.answers(), unused.answers()) == (b"\x0c", b"\x0c", b"")
    assert quick.session.busy() and not unused.session.busy()
    assert quick.ask(b"\x0a") == b"\x0a"
    assert not quick.session.busy()
    bench.advance(14_999)
    assert not patient.stream.finished
    bench.advance(1)
    assert patient.answers() == b"\x0a"
    assert patient.stream.finished and not patient.session.busy()


@pytest.mark.parametrize("how", ["reset", "stopped"])
def test_a_stream_that_the_peer_gives_up_ends(bench: Bench, how: str) -> None:
    peer = Peer(bench)
    peer.ask(connect_reader("work"))
    getattr(peer.session, f"peer_{how}")(7)
    peer.session.closed()
    bench.settle()
    assert peer.stream.is_closed
    assert len(bench.broker.cursors) == 0


PIECES = st.one_of(
    st.sampled_from(
        [WRITER, b"\x0a", connect_reader("work"), fetch(3), b"\4\0\0\0\1", b"\5\0\0\0\1"]
    ),
    st.sampled_from([write(1, b"x"), EXAMPLE, encode_settle(8, 1, [encode_id(0, 0)])]),
    st.binary(max_size=8),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(st.lists(PIECES, max_size=8), st.booleans())
def test_any_bytes_leave_a_session_that_ends(bench: Bench, pieces: list[bytes], fin: bool) -> None:
    """The invariant: no failure of ours, and nothing is left behind once the peer is gone."""
    peer = Peer(bench)
    for piece in pieces:
        peer.session.receive(piece)
    if fin:
        peer.session.end_of_input()
        bench.settle()
        assert peer.stream.finished
    peer.session.closed()
    bench.settle()
    assert peer.stream.failures == 0
    assert len(bench.broker.transactions) == 0
