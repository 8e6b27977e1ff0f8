"""What a protocol on QUIC and the server know of each other. Interfaces only: no sockets, no QUIC library.

A QUIC connection has many streams, opened by either side, in both directions or in one. For each connection
the server makes one ConnectionSession of the protocol; it makes a StreamSession for each stream that
the peer opens, and opens streams itself through its QuicConnection. A stream session is written as on TCP
(penstock.sessions.base): what QUIC adds to a stream stands here.

Life of a stream: a side ends by a finish or a reset. When both sides have ended, or the connection is gone,
the session gets `closed`, once, and the stream must not be used any more. A stream of one direction has one
side: input that cannot come never ends, and what is written to it in the wrong direction is dropped.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.sessions.stream import Session, Stream


class QuicStream(Stream, Protocol):
    """A stream of a QUIC connection, as its session sees it. `close` of Stream ends both sides: it
    finishes ours after the queued bytes and asks the peer to stop (code 0) unless it has finished.
    `fail` ends the whole connection, `login_failed` and `logged_in` count for it."""

    @property
    def number(self) -> int:
        """The id of the stream within its connection."""
        ...

    @property
    def unidirectional(self) -> bool: ...

    def finish(self) -> None:
        """Ends our side after the queued bytes are sent. Reading goes on."""
        ...

    def reset(self, code: int) -> None:
        """Ends our side at once; what is queued or on its way may be lost."""
        ...

    def stop_sending(self, code: int) -> None:
        """Asks the peer to send no more. What still arrives is dropped, `end_of_input` is not called."""
        ...


class StreamSession(Session, Protocol):
    """The session of one QUIC stream. BaseSession ends itself in both of these cases."""

    def peer_reset(self, code: int) -> None:
        """The peer gave up its side; its `end_of_input` does not come."""
        ...

    def peer_stopped(self, code: int) -> None:
        """The peer does not want the rest of ours. Our side has ended by a reset with the same code."""
        ...


AnySession = TypeVar("AnySession", bound=StreamSession)


class QuicConnection(Protocol):
    """A connection, as its ConnectionSession sees it."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs."""
        ...

    @property
    def local(self) -> str:
        """The address of ours that the peer has connected to."""
        ...

    @property
    def application(self) -> str | None:
        """The name that was agreed on with ALPN."""
        ...

    def open_stream(
        self, make: Callable[[QuicStream], AnySession], *, unidirectional: bool
    ) -> AnySession | None:
        """Opens a stream and makes its session. None while the peer allows no more streams:
        `ConnectionSession.streams_allowed` is called when it does, or when the connection is closed."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Closes the connection at once with an application code. All sessions get `closed`, before this
        returns or soon after; what is queued may be lost."""
        ...

    def fail(self) -> None:
        """Called while an unexpected exception is handled: logs it and ends the connection at once."""
        ...

    def login_failed(self) -> int:
        """Counts a failed login; returns how many have failed on this connection."""
        ...

    def logged_in(self) -> None:
        """The peer is logged in, or need not: the login time limit no longer applies."""
        ...


class ConnectionSession(Protocol):
    """A protocol's state of one connection, as the server sees it. Everything is called on the event
    loop."""

    protocol: str

    def accept(self, stream: QuicStream) -> StreamSession | None:
        """The peer has opened a stream. None: the stream is ignored, its bytes are read and dropped."""
        ...

    def streams_allowed(self) -> None:
        """After `open_stream` gave None: it may be tried again."""
        ...

    def closed(self) -> None:
        """The connection is gone; the sessions of its streams were told before."""
        ...

    def drain(self) -> None:
        """The server stops; the sessions of the streams get their `drain` after this. When neither
        this nor any of them is busy any more, streams are finished and the connection is closed with
        code 0."""
        ...

    def busy(self) -> bool:
        """Whether a close would lose something that no stream's session knows of."""
        ...
