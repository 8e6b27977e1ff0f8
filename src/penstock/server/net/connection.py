"""One TCP connection: its peer, its TLS, its timers, and the one stream that it carries.

Reads into the shared buffer (accepting.py connects it to the event loop), finds the protocol by the first
bytes, and passes the bytes to the stream (stream.py), which owns the session. Every close and refusal for a
limit is counted by reason. Does not interpret the bytes.
"""

import asyncio
import logging
import socket
import ssl
from typing import Final, cast

from mypy_extensions import mypyc_attr

from penstock.server.net.address import Address
from penstock.server.net.counters import UNDECIDED
from penstock.server.net.hub import Hub
from penstock.server.net.sniff import Verdict, sniff, sniff_tls
from penstock.server.net.stream import Carrier, NetStream
from penstock.server.net.tls import TlsPipe, why_refused
from penstock.server.protocols import ProtocolRow

# How many first bytes a log line shows.
SHOWN_BYTES: Final = 8

logger = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(Carrier):
    """`protocol` is given where a listener has only one; then only TLS is looked for."""

    __slots__ = (
        "_address",
        "_failed_logins",
        "_head",
        "_hub",
        "_last_read",
        "_loop",
        "_protocol",
        "_said_goodbye",
        "_timer",
        "_tls",
        "_tls_only",
        "_traffic",
        "_transport",
        "closing",
        "is_lost",
        "peer",
        "stream",
    )

    _transport: asyncio.Transport

    def __init__(self, hub: Hub, protocol: str | None = None, *, tls_only: bool = False) -> None:
        super().__init__("unknown")
        self._hub = hub
        self._loop = hub.loop
        self._traffic = hub.counters.of(protocol or UNDECIDED)
        self._protocol = protocol
        self._tls_only = tls_only
        self._tls: TlsPipe | None = None
        self._head = b""
        self._failed_logins = 0
        self._last_read = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._said_goodbye = False
        self._address = ""
        self.closing = False
        self.is_lost = False
        self.stream = NetStream(self, hub)

    # --- called by the loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if name:
            self._address = name[0]
            self.peer = _shown(name)
        reason = self._hub.admit(self, self._address)
        if reason is not None:
            self.closing = True
            self._hub.counters.refused[reason] += 1
            self._hub.peer_log.note(self._address, self.peer, f"refused, limits.{reason} reached")
            self._transport.abort()
            return
        self._traffic.opened += 1
        self._traffic.open += 1
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Writes are gathered in the stream: the transport need not wait, and tells when the kernel is full.
        self._transport.set_write_buffer_limits(high=0)
        self._timer = self._loop.call_later(self._hub.limits.login_time_s, self._login_is_late)

    def local_address(self) -> str:
        return _shown(self._transport.get_extra_info("sockname"))

    def certificate(self) -> bytes:
        return b"" if self._tls is None else self._tls.peer_certificate()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._hub.read_view

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._hub.read_view[:nbytes])
        self._traffic.bytes_in += nbytes
        self._last_read = self._loop.time()
        self._hub.turn.begin()
        self.stream.read_begins()
        try:
            if self._tls is not None:
                self._receive_tls(data)
            else:
                self._receive(data)
        finally:
            self.stream.read_ends()
            self._hub.turn.end()

    def eof_received(self) -> bool:
        """True: our side stays open until the session has answered."""
        if self.closing or not self.stream.has_session:
            return False
        self.stream.end_of_input()
        return True

    def pause_writing(self) -> None:
        self.stream.block()

    def resume_writing(self) -> None:
        self.stream.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.closing = True
        self._stop_timer()
        if self in self._hub.connections:
            self._traffic.open -= 1
        self._hub.forget(self, self._address)
        self.stream.lost()

    # --- in --------------------------------------------------------------------------------------

    def _receive_tls(self, data: bytes) -> None:
        assert self._tls is not None
        try:
            plain = self._tls.feed(data)
        except ssl.SSLError as error:
            self._send_now(self._tls.pending())
            self.drop("tls", f"TLS failed: {why_refused(error)}")
            return
        self._send_now(self._tls.pending())
        if plain:
            self._receive(plain)
        if self._tls.ended and not self.stream.ended:
            if self.stream.has_session:
                self.stream.end_of_input()
            else:
                self.close()

    def _receive(self, data: bytes) -> None:
        if self.closing:
            return  # read and dropped, so that the peer gets our last bytes and not a reset
        if self.stream.has_session:
            self.stream.receive(data)
        else:
            self._look(self._head + data)

    def _look(self, head: bytes) -> None:
        verdict = sniff(head) if self._protocol is None else sniff_tls(head)
        self._head = head
        if verdict is Verdict.MORE:
            return
        self._head = b""
        if verdict is Verdict.TLS and self._tls is None:
            self._start_tls(head)
        elif self._protocol is not None:
            self._begin(self._protocol, head)
        elif isinstance(verdict, ProtocolRow) and verdict.name in self._hub.make_session:
            self._begin(verdict.name, head)
        else:
            shown = head[:SHOWN_BYTES].hex(" ")
            self.drop("unknown_protocol", f"first bytes {shown} fit no protocol, closed")

    def _start_tls(self, head: bytes) -> None:
        if self._hub.tls is None:
            self.drop("tls_off", "speaks TLS, but tls.certificate and tls.key are not set, closed")
            return
        self._tls = TlsPipe(self._hub.tls)
        self._receive_tls(head)

    def _begin(self, protocol: str, head: bytes) -> None:
        if self._tls_only and self._tls is None:
            self.drop("plain_refused", "speaks without TLS, which this listener asks for, closed")
            return
        if self._protocol is None:
            undecided, self._traffic = self._traffic, self._hub.counters.of(protocol)
            undecided.open -= 1
            self._traffic.opened += 1
            self._traffic.open += 1
            self._protocol = protocol
        self.stream.begin(self._hub.make_session[protocol](self.stream))
        self.stream.receive(head)

    def undecided_bytes(self) -> int:
        """First bytes that are kept until they tell the protocol."""
        return len(self._head)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_lost:
            self._last_read = self._loop.time()  # the server itself had stopped reading
            self._transport.resume_reading()

    # --- out -------------------------------------------------------------------------------------

    def unsent_bytes(self) -> int:
        return 0 if self.is_lost else self._transport.get_write_buffer_size()

    def send(self, parts: list[bytes]) -> None:
        if self._tls is not None:
            self._send_now(self._tls.encrypt(b"".join(parts)))
            return
        self._traffic.bytes_out += sum(map(len, parts))
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _send_now(self, data: bytes) -> None:
        if data:
            self._traffic.bytes_out += len(data)
            self._transport.write(data)

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes after the queued bytes are sent."""
        if self.closing:
            return
        self.closing = True
        self._stop_timer()
        self.stream.clear_pauses()
        self._timer = self._loop.call_later(self._hub.limits.close_time_s, self._close_is_late)
        self.stream.flush_later()

    def say_goodbye(self) -> None:
        """Our end first, then the peer's: closing with unread input would reset the connection and
        could take our last answer with it."""
        if self._said_goodbye:
            return
        self._said_goodbye = True
        if self._transport.is_closing():
            return
        if self._tls is not None and self._tls.established:
            self._send_now(self._tls.close())
        if self.stream.ended:
            self._transport.close()
        else:
            self._transport.write_eof()

    def finished(self) -> bool:
        """The server has closed its side, and everything is sent."""
        return self.closing and self.stream.empty

    def abort(self) -> None:
        """Closes at once; queued bytes are lost."""
        if not self.is_lost:
            self._transport.abort()

    def fail(self) -> None:
        """A bug: this connection ends, the others continue. Called in the exception handler."""
        logger.exception("%s: the %s session failed, closed", self.peer, self._protocol)
        self._hub.counters.closed["internal_error"] += 1
        self._transport.abort()

    def drop(self, reason: str, what: str) -> None:
        if self.closing:
            return
        self._hub.counters.closed[reason] += 1
        self._hub.peer_log.note(self._address, self.peer, what)
        self.close()

    def drain(self) -> None:
        self.stream.drain()

    def busy(self) -> bool:
        return self.stream.busy()

    # --- login and time --------------------------------------------------------------------------

    def login_failed(self) -> int:
        self._failed_logins += 1
        self._hub.note_failed_login(self._address, self.peer)
        return self._failed_logins

    def logged_in(self) -> None:
        if self.closing:
            return
        self._stop_timer()
        idle_time_s = self._hub.limits.idle_time_s
        if idle_time_s is not None:
            self._timer = self._loop.call_later(idle_time_s, self._is_idle)

    def _login_is_late(self) -> None:
        self.drop("login_time", "no login within limits.login_time, closed")

    def _is_idle(self) -> None:
        idle_time_s = self._hub.limits.idle_time_s
        assert idle_time_s is not None
        left_s = self._last_read + idle_time_s - self._loop.time()
        if self.stream.paused:
            left_s = idle_time_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._is_idle)
        else:
            self.drop("idle_time", "nothing received within limits.idle_time, closed")

    def _close_is_late(self) -> None:
        if not self.stream.empty:
            self._hub.counters.closed["unread_output"] += 1
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _shown(name: tuple[str, int]) -> str:
    """Host and port of a socket, as in a configuration."""
    return str(Address(name[0], name[1]))
