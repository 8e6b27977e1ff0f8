"""A Fujin connection without a socket: streams, pings, and the code that ends it."""

import pytest
from broker.bench import ANYBODY, Bench
from sessions.quic_kit import ConnectionRecorder

from penstock.sessions.fujin.connection import FujinConnection
from penstock.sessions.fujin.options import FujinOptions
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import ConnectionSession


def connect(
    bench: Bench, allowed: int = 100, retries: int = 0
) -> tuple[ConnectionRecorder, ConnectionSession]:
    connection = ConnectionRecorder("fujin", allowed)
    options = FujinOptions(ping_retries=retries)
    session = FujinConnection(bench.broker, connection, SessionLimits(), ANYBODY, options)
    return connection, session


def test_each_stream_in_both_directions_is_a_session(bench: Bench) -> None:
    """Rows 4 and 12."""
    connection, session = connect(bench)
    assert connection.logins == 1
    first = connection.peer_opens(session)[1]
    second = connection.peer_opens(session)[1]
    assert first is not None and second is not None and first is not second
    assert connection.peer_opens(session, unidirectional=True)[1] is None


@pytest.mark.parametrize(
    ("data", "fin"), [(b"\x0b", True), (b"\x0b", False), (b"", True)], ids=["both", "pong", "fin"]
)
def test_a_client_that_answers_is_pinged_again(bench: Bench, data: bytes, fin: bool) -> None:
    """Rows 5 to 7."""
    connection, _ = connect(bench)
    for number in range(3):
        bench.advance(1_999)
        assert len(connection.opened) == number
        bench.advance(1)
        stream, ping = connection.opened[number]
        assert (bytes(stream.written), stream.finished) == (b"\x0b", True)
        assert not stream.unidirectional
        if data:
            ping.receive(data)
        if fin:
            ping.end_of_input()
        ping.closed()
    bench.advance(1_000)
    assert connection.closed_with is None


@pytest.mark.parametrize("answer", ["silence", "bytes", "reset"])
def test_a_client_that_does_not_answer_is_disconnected(bench: Bench, answer: str) -> None:
    """Row 8."""
    connection, _ = connect(bench)
    bench.advance(2_000)
    ping = connection.opened[0][1]
    if answer == "bytes":
        ping.receive(b"no")
    elif answer == "reset":
        ping.peer_reset(7)
    bench.advance(4_999)
    if answer == "silence":
        assert connection.closed_with is None
    bench.advance(1)
    assert connection.closed_with is not None
    code, reason = connection.closed_with
    assert code == 3 and reason.startswith("read: ")
    bench.advance(60_000)
    assert len(connection.opened) == 1


def test_a_client_that_allows_no_streams_is_disconnected(bench: Bench) -> None:
    connection, session = connect(bench, allowed=0)
    bench.advance(2_000)
    connection.allowed = 1
    session.streams_allowed()
    connection.opened[0][1].end_of_input()
    bench.advance(7_000)
    assert connection.closed_with is not None
    code, reason = connection.closed_with
    assert code == 3 and reason.startswith("open stream: ")


def test_pings_may_be_tried_again(bench: Bench) -> None:
    connection, _ = connect(bench, retries=1)
    bench.advance(2_000 + 5_000 + 2_000)
    connection.opened[1][1].end_of_input()
    bench.advance(2_000 + 5_000 + 2_000)
    assert connection.closed_with is None
    bench.advance(5_000)
    assert connection.closed_with is not None


def test_nothing_happens_after_the_end(bench: Bench) -> None:
    connection, session = connect(bench)
    session.drain()
    assert not session.busy()
    session.closed()
    bench.advance(60_000)
    assert connection.opened == []
