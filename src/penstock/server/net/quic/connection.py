"""One QUIC connection: its peer, its protocol, its streams and timers. The counterpart of
net/connection.py.

The listener gives it the events of the engine; it makes the protocol's session of the connection when the
handshake is complete, and one stream for each that either side opens. Every close and refusal for a
limit is counted by reason. Does not interpret the bytes. Hot: compiled by mypyc.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.server.net.address import Address
from penstock.server.net.hub import Hub
from penstock.server.net.quic.port import DATA, NO_STREAM, RESET, STOPPED, STREAMS, WRITABLE, Event
from penstock.server.net.quic.stream import (
    NO_ERROR,
    OF_THE_SERVER,
    ONE_DIRECTION,
    QuicNetStream,
    StreamCarrier,
    StreamOwner,
)
from penstock.server.net.stream import Carrier
from penstock.sessions.streams import AnySession, ConnectionSession, QuicStream

if TYPE_CHECKING:
    from penstock.server.net.quic.drive import QuicSocket

# A stream gives the engine no more while this much of it was not sent, and goes on at the lower mark. On a
# loopback one turn of the loop sends about 200 KiB.
STREAM_QUEUED_BYTES: Final = 512 * 1024
STREAM_RESUMED_BYTES: Final = 256 * 1024
# All streams of a connection. Beyond it each stream waits until its own queue is empty.
CONNECTION_QUEUED_BYTES: Final = 4 * 1024 * 1024
# Parts of a stream that are smaller than this on the average are joined before the engine gets them; the
# copy of larger ones costs more than a call.
JOINED_BYTES: Final = 2048
# Application codes of closes that are not a protocol's: a bug of the server, and a limit.
INTERNAL_ERROR: Final = 2
LIMIT_REACHED: Final = 5
# How much of a peer's reason a log line shows.
SHOWN_REASON: Final = 80

MakeConnectionSession = Callable[["ConnectionView"], ConnectionSession]

logger = logging.getLogger(__name__)


class QuicServerConnection(Carrier):
    """In the hub's list beside the connections of TCP."""

    def __init__(self, hub: Hub, where: "QuicSocket", serial: int, protocol: str) -> None:
        address = where.engine.peer(serial)
        super().__init__(str(Address(*address)))
        self.hub = hub
        self.serial = serial
        self.closing = False
        self.is_lost = False
        self._where = where
        self._address = address[0]
        self._protocol = protocol
        self._traffic = hub.counters.of(protocol)
        self._session: ConnectionSession | None = None
        self._streams: dict[int, QuicNetStream] = {}
        # The lowest stream of the peer that was not seen yet, by direction: later streams open those
        # before.
        self._unseen: dict[int, int] = {0: 0, ONE_DIRECTION: ONE_DIRECTION}
        # Those below it of which nothing has come yet: packets overtake each other.
        self._skipped: set[int] = set()
        self._failed_logins = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over_budget = False

    # --- the beginning ----------------------------------------------------------------------------

    def begin(self, make: MakeConnectionSession, application: str | None) -> bool:
        """False if a limit of the hub refuses it."""
        reason = self.hub.admit(self, self._address)
        if reason is not None:
            self.hub.counters.refused[reason] += 1
            self.hub.peer_log.note(self._address, self.peer, f"refused, limits.{reason} reached")
            self._where.engine.close(self.serial, LIMIT_REACHED, f"limits.{reason} reached")
            self._where.flush_later()
            self.is_lost = self.closing = True
            return False
        self._traffic.opened += 1
        self._traffic.open += 1
        login_s = self.hub.limits.login_time_s
        self._timer = self.hub.loop.call_later(login_s, self._login_is_late)
        try:
            self._session = make(ConnectionView(self, application))
        except Exception:  # a bug: this connection ends, the others continue
            self.fail()
            return False
        return True

    # --- what the engine reports ------------------------------------------------------------------

    def take(self, event: Event) -> None:
        kind, _, number, data, value = event
        if self.is_lost:
            return
        if kind == STREAMS:
            self._streams_allowed()
            return
        stream = self._streams.get(number)
        if kind == DATA:
            self._traffic.bytes_in += len(data)
            if stream is None:
                stream = self._accept(number)
            if stream is not None:
                stream.take(data, bool(value))
        elif kind == RESET:
            if stream is None:
                stream = self._accept(number)
            if stream is not None:
                stream.peer_reset(value)
        elif stream is not None and kind == STOPPED:
            stream.peer_stopped(value)
        elif stream is not None and kind == WRITABLE:
            stream.unblock()

    def _accept(self, number: int) -> QuicNetStream | None:
        """None for a stream that is over already; what is on its way for it is dropped."""
        session = self._session
        direction = number & ONE_DIRECTION
        if session is None or self.closing or number & OF_THE_SERVER:
            return None
        if number < self._unseen[direction]:
            if number not in self._skipped:
                return None
            self._skipped.remove(number)
        else:
            self._skipped.update(range(self._unseen[direction], number, 4))
            self._unseen[direction] = number + 4
        stream = self._new_stream(number)
        try:
            made = session.accept(stream)
        except Exception:  # as above
            self.fail()
            return None
        if made is None:
            stream.ignore()
        else:
            stream.begin_quic(made)
        return stream

    def _new_stream(self, number: int) -> QuicNetStream:
        # An owner for each stream: one that the connection kept would be a cycle.
        stream = QuicNetStream(StreamCarrier(_Owner(self), number), self.hub)
        self._streams[number] = stream
        return stream

    def _streams_allowed(self) -> None:
        session = self._session
        if session is not None:
            try:
                session.streams_allowed()
            except Exception:  # as above
                self.fail()

    def lost(self, code: int, reason: bytes) -> None:
        """The engine has no such connection any more."""
        if self.is_lost:
            return
        self.is_lost = True
        self.closing = True
        self._stop_timer()
        self._traffic.open -= 1
        self.hub.forget(self, self._address)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.gone()
        session, self._session = self._session, None
        if session is not None:
            try:
                session.closed()
            except Exception:  # everything else is released already
                logger.exception("%s: the end of the connection failed", self.peer)
        if code > NO_ERROR:
            shown = reason[:SHOWN_REASON].decode("utf-8", "replace")
            text = f"closed by the peer with code {code} {shown!r}"
            logger.debug("%s: %s", self.peer, text)

    # --- what streams ask for ---------------------------------------------------------------------

    def local_address(self) -> str:
        return self._where.address

    def write(self, number: int, parts: list[bytes]) -> None:
        size = 0
        for part in parts:
            size += len(part)
        self._traffic.bytes_out += size
        if len(parts) == 1 or size < len(parts) * JOINED_BYTES:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._where.write(self.serial, number, data, False)
            return
        for part in parts:
            self._where.write(self.serial, number, part, False)

    def written(self, number: int, connection_bytes: int) -> None:
        """The engine has taken a write of this turn: whether it may have more now."""
        stream = self._streams.get(number)
        if stream is None:
            return
        self._over_budget = connection_bytes > CONNECTION_QUEUED_BYTES
        queued = self._where.engine.queued_bytes(self.serial, number)
        if queued > STREAM_QUEUED_BYTES or (self._over_budget and queued):
            stream.block()
            most = 0 if self._over_budget else STREAM_RESUMED_BYTES
            self._where.engine.watch(self.serial, number, most)
            stream.balance()

    def ends_soon(self, number: int) -> None:
        """Its session is told when this turn is over: it may be at work now."""
        self._where.stream_ends(self, number)

    def stream_over(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.gone()

    def open_stream(
        self, make: Callable[[QuicStream], AnySession], unidirectional: bool
    ) -> AnySession | None:
        if self.closing:
            return None
        number = self._where.engine.open(self.serial, unidirectional)
        if number == NO_STREAM:
            return None
        stream = self._new_stream(number)
        session = make(stream)
        stream.begin_quic(session)
        return session

    def reset_stream(self, number: int, code: int) -> None:
        self._where.engine.reset(self.serial, number, code)
        self._where.flush_later()

    def stop_stream(self, number: int, code: int) -> None:
        self._where.engine.stop(self.serial, number, code)
        self._where.flush_later()

    def pause_stream(self, number: int) -> None:
        self._where.engine.pause(self.serial, number)
        self._where.flush_later()

    def resume_stream(self, number: int) -> None:
        self._where.engine.resume(self.serial, number)
        self._where.flush_later()

    def engine_queued_bytes(self, number: int) -> int:
        return self._where.engine.queued_bytes(self.serial, number)

    def end_stream(self, number: int) -> None:
        self._where.write(self.serial, number, b"", True)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes all streams; the connection is closed when everything is with the peer, or when the
        time for that is over."""
        if self.closing:
            return
        self.closing = True
        self._stop_timer()
        for stream in list(self._streams.values()):
            stream.clear_pauses()
            stream.close()
        self._timer = self.hub.loop.call_later(self.hub.limits.close_time_s, self._close_is_late)
        self._where.close_when_sent(self)

    def all_sent(self) -> bool:
        return not self._streams and not self._where.engine.unacknowledged(self.serial)

    def finished(self) -> bool:
        return self.closing and (self.is_lost or self.all_sent())

    def end(self, code: int, reason: str) -> None:
        """At once."""
        if not self.is_lost:
            self._where.engine.close(self.serial, code, reason)
            self._where.flush_later()
            self._where.forget(self.serial)
            self.lost(NO_ERROR, b"")

    def refuse(self, code: int, reason: str) -> None:
        """By the protocol; told in the log, of an address once in a while."""
        if code != NO_ERROR and not self.is_lost:
            text = f"{self._protocol}: closed with code {code}: {reason}"
            self.hub.peer_log.note(self._address, self.peer, text)
        self.end(code, reason)

    def abort(self) -> None:
        self.end(NO_ERROR, "")

    def _close_is_late(self) -> None:
        self.hub.counters.closed["unread_output"] += 1
        self.abort()

    def fail(self) -> None:
        """A bug: this connection ends, the others continue. Called in the exception handler."""
        logger.exception("%s: the %s session failed, closed", self.peer, self._protocol)
        self.hub.counters.closed["internal_error"] += 1
        self.end(INTERNAL_ERROR, "internal error")

    def drop(self, reason: str, what: str) -> None:
        if self.closing:
            return
        self.hub.counters.closed[reason] += 1
        self.hub.peer_log.note(self._address, self.peer, what)
        self.end(LIMIT_REACHED, reason)

    def drain(self) -> None:
        session = self._session
        if session is not None:
            try:
                session.drain()
            except Exception:  # as above
                self.fail()
        for stream in list(self._streams.values()):
            if stream.has_session:
                stream.drain()

    def busy(self) -> bool:
        if self._session is None:
            return False
        return self._session.busy() or any(stream.busy() for stream in self._streams.values())

    # --- login ------------------------------------------------------------------------------------

    def login_failed(self) -> int:
        self._failed_logins += 1
        self.hub.note_failed_login(self._address, self.peer)
        return self._failed_logins

    def logged_in(self) -> None:
        if not self.closing:
            self._stop_timer()

    def _login_is_late(self) -> None:
        self.drop("login_time", "no login within limits.login_time, closed")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Owner(StreamOwner):
    """The connection, as the carriers of its streams see it."""

    def __init__(self, connection: QuicServerConnection) -> None:
        self.peer = connection.peer
        self._connection = connection

    def local_address(self) -> str:
        return self._connection.local_address()

    def write(self, stream: int, parts: list[bytes]) -> None:
        self._connection.write(stream, parts)

    def write_end(self, stream: int) -> None:
        self._connection.end_stream(stream)

    def queued_bytes(self, stream: int) -> int:
        return self._connection.engine_queued_bytes(stream)

    def reset(self, stream: int, code: int) -> None:
        self._connection.reset_stream(stream, code)

    def stop(self, stream: int, code: int) -> None:
        self._connection.stop_stream(stream, code)

    def pause(self, stream: int) -> None:
        self._connection.pause_stream(stream)

    def resume(self, stream: int) -> None:
        self._connection.resume_stream(stream)

    def both_sides_over(self, stream: int) -> None:
        self._connection.ends_soon(stream)

    def drop(self, reason: str, what: str) -> None:
        self._connection.drop(reason, what)

    def abort(self) -> None:
        self._connection.abort()

    def fail(self) -> None:
        self._connection.fail()

    def login_failed(self) -> int:
        return self._connection.login_failed()

    def logged_in(self) -> None:
        self._connection.logged_in()


class ConnectionView:
    """The QuicConnection that a protocol sees."""

    def __init__(self, connection: QuicServerConnection, application: str | None) -> None:
        self._connection = connection
        self.application = application

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def local(self) -> str:
        return self._connection.local_address()

    def open_stream(
        self, make: Callable[[QuicStream], AnySession], *, unidirectional: bool
    ) -> AnySession | None:
        return self._connection.open_stream(make, unidirectional)

    def close(self, code: int, reason: str) -> None:
        self._connection.refuse(code, reason)

    def fail(self) -> None:
        self._connection.fail()

    def login_failed(self) -> int:
        return self._connection.login_failed()

    def logged_in(self) -> None:
        self._connection.logged_in()
