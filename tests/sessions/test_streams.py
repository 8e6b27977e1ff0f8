"""The interface between a protocol on QUIC and the server: that the kit fits it, and what BaseSession
adds."""

import pytest
from sessions.quic_kit import ConnectionRecorder, StreamRecorder

from penstock.broker.counters import ProtocolCounters
from penstock.sessions.base import BaseSession
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import ConnectionSession, QuicConnection, QuicStream, StreamSession
from penstock.wire.errors import PeerError
from penstock.wire.primitives import frame_size


class EchoSession(BaseSession[bytes]):
    """Sends back what comes."""

    def __init__(self, stream: QuicStream) -> None:
        super().__init__(stream, SessionLimits(), ProtocolCounters(), frame_size)

    def split(self, buffer: bytes, start: int) -> tuple[list[bytes], int, PeerError | None]:
        requests = [buffer[start:]] if start < len(buffer) else []
        return requests, len(buffer), None

    def perform(self, request: bytes) -> bool:
        self.answer(request)
        return True


class EchoConnection:
    protocol = "echo"

    def __init__(self, connection: QuicConnection) -> None:
        self._connection = connection

    def accept(self, stream: QuicStream) -> StreamSession | None:
        return None if stream.unidirectional else EchoSession(stream)

    def streams_allowed(self) -> None: ...
    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool:
        return False


def opened() -> tuple[StreamRecorder, StreamSession]:
    connection = ConnectionRecorder()
    session: ConnectionSession = EchoConnection(connection)
    stream, echo = connection.peer_opens(session)
    assert echo is not None
    return stream, echo


def test_a_session_lives_on_a_stream() -> None:
    stream, echo = opened()
    echo.receive(b"hello")
    assert bytes(stream.written) == b"hello"
    echo.end_of_input()
    assert stream.is_closed


@pytest.mark.parametrize("event", ["peer_reset", "peer_stopped"])
def test_a_base_session_ends_when_the_peer_gives_up(event: str) -> None:
    stream, echo = opened()
    getattr(echo, event)(7)
    assert stream.is_closed


def test_streams_of_ours_are_numbered_by_direction() -> None:
    connection = ConnectionRecorder(allowed=3)
    for unidirectional in (True, False, True, True):
        connection.open_stream(EchoSession, unidirectional=unidirectional)
    assert [stream.number for stream, _ in connection.opened] == [3, 1, 7]


def test_streams_can_be_ignored() -> None:
    connection = ConnectionRecorder()
    _, session = connection.peer_opens(EchoConnection(connection), unidirectional=True)
    assert session is None
