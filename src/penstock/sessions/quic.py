"""What connections of protocols on QUIC share, and streams of the server's own on which little comes in.

A protocol overrides what it has to say. Knows no protocol and no socket: streams.py has the interfaces.
"""

from penstock.broker.access.access import Principal
from penstock.broker.port import Port
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import QuicConnection, QuicStream, StreamSession


class BaseConnection:
    """A ConnectionSession that has nothing of its own to finish."""

    protocol = ""

    def __init__(
        self, port: Port, connection: QuicConnection, limits: SessionLimits, principal: Principal
    ) -> None:
        """`principal`: of streams without a login."""
        self._port = port
        self._connection = connection
        self._limits = limits
        self._principal = principal

    def accept(self, stream: QuicStream) -> StreamSession | None:
        raise NotImplementedError

    def streams_allowed(self) -> None:
        """A protocol that opens streams goes on here."""

    def closed(self) -> None:
        """A protocol that keeps state lets it go here."""

    def drain(self) -> None:
        """Each stream does."""

    def busy(self) -> bool:
        return False


class OwnStream:
    """The session of a stream that the server opened: what the peer does not do there is ignored."""

    protocol = ""

    def receive(self, data: bytes) -> None:
        """Nothing is expected."""

    def end_of_input(self) -> None:
        """Nothing ends with it."""

    def peer_reset(self, code: int) -> None:
        """There was nothing to give up."""

    def peer_stopped(self, code: int) -> None:
        """What was written is lost to this peer."""

    def writable(self) -> None:
        """There is nothing more to write."""

    def closed(self) -> None:
        """Nothing is left."""

    def drain(self) -> None:
        """Nothing depends on it."""

    def busy(self) -> bool:
        return False

    def held_bytes(self) -> int:
        return 0
