"""A Fujin connection: sessions on the streams that the client opens, and pings on streams of ours.

A ping is a stream in both directions: [11] and the end of our side. The client lives if it ends its side,
with or without [11] before it, or sends [11]. A reset, other bytes or silence count against it.
"""

import logging
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.delivery.lane import SECOND_US
from penstock.broker.port import Port
from penstock.sessions.fujin.options import FujinOptions
from penstock.sessions.fujin.session import FujinSession
from penstock.sessions.quic import BaseConnection, OwnStream
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import QuicConnection, QuicStream, StreamSession
from penstock.wire.fujin import commands as wire

# Codes of the connection's close.
CLOSE_PING: Final = 3
CLOSE_ACCEPT: Final = 4

logger = logging.getLogger(__name__)


class FujinConnection(BaseConnection):
    protocol = "fujin"

    def __init__(
        self,
        port: Port,
        connection: QuicConnection,
        limits: SessionLimits,
        principal: Principal,
        options: FujinOptions,
    ) -> None:
        super().__init__(port, connection, limits, principal)
        self._options = options
        self._over = False
        self._failures = 0
        self._ping: Ping | None = None
        # A ping that could not be sent, because the client allows no more streams.
        self._waits_for_stream = False
        # Tells the time limit of one ping from that of the next.
        self._number = 0
        connection.logged_in()  # there is no login to wait for
        self._plan()

    # --- streams ----------------------------------------------------------------------------------

    def accept(self, stream: QuicStream) -> StreamSession | None:
        """Streams in one direction have no meaning."""
        if stream.unidirectional:
            return None
        try:
            return FujinSession(self._port, stream, self._limits, self._principal, self._options)
        except Exception:  # a bug of the server: this connection ends, the others continue
            logger.exception("%s: a stream could not be accepted", self._connection.peer)
            self._connection.close(CLOSE_ACCEPT, "accept stream: internal error")
            return None

    def streams_allowed(self) -> None:
        if self._waits_for_stream:
            self._waits_for_stream = False
            self._send(self._number)

    def closed(self) -> None:
        self._over = True

    # --- pings ------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._port.later(self._options.ping_interval_us / SECOND_US, self._next)

    def _next(self) -> None:
        if self._over:
            return
        self._number += 1
        number = self._number
        self._port.later(self._options.ping_timeout_us / SECOND_US, lambda: self._late(number))
        self._send(number)

    def _send(self, number: int) -> None:
        if self._over:
            return
        self._ping = self._connection.open_stream(
            lambda stream: Ping(self, stream, number), unidirectional=False
        )
        self._waits_for_stream = self._ping is None

    def _late(self, number: int) -> None:
        if number == self._number:
            what = (
                "open stream: the client allows no more"
                if self._waits_for_stream
                else "read: timeout"
            )
            self.missed(number, what)

    def alive(self, number: int) -> None:
        """The next ping waits for this one."""
        if number == self._number and not self._over:
            self._number += 1
            self._failures = 0
            self._plan()

    def missed(self, number: int, why: str) -> None:
        if number != self._number or self._over:
            return
        self._number += 1
        self._waits_for_stream = False
        self._failures += 1
        if self._failures > self._options.ping_retries:
            self._over = True
            self._connection.close(CLOSE_PING, why)
        else:
            self._plan()


class Ping(OwnStream):
    """The session of one ping stream."""

    protocol = "fujin"

    def __init__(self, connection: FujinConnection, stream: QuicStream, number: int) -> None:
        self._connection = connection
        self._stream = stream
        self._number = number
        self._done = False
        stream.write(wire.PING)
        stream.finish()

    def receive(self, data: bytes) -> None:
        if self._done:
            return
        if data == wire.PING:
            # Not every client ends its side: we do not wait for more.
            self._stream.stop_sending(0)
            self._alive()
        else:
            self._done = True
            self._connection.missed(self._number, "read: not a pong")

    def end_of_input(self) -> None:
        if not self._done:
            self._alive()

    def _alive(self) -> None:
        self._done = True
        self._connection.alive(self._number)

    def peer_reset(self, code: int) -> None:
        if not self._done:
            self._done = True
            self._connection.missed(self._number, f"read: the stream was reset with code {code}")

    def closed(self) -> None:
        self._done = True
