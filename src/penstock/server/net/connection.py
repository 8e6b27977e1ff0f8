"""One TCP connection: reads into the shared buffer, finds the protocol, feeds its session, writes.

The session sees an Stream and no socket. Writes of one turn of the loop go out together. What the
peer does not take stays here, within a budget; past it the server reads no more from that peer. Every
close and refusal for a limit is counted by reason. What bytes mean is not decided here.
"""

import asyncio
import logging
import socket
import ssl
from typing import Final, cast

from penstock.server.net.counters import UNDECIDED
from penstock.server.net.hub import Hub
from penstock.server.net.outgoing import Outgoing
from penstock.server.net.sniff import Verdict, sniff, sniff_tls
from penstock.server.net.tls import TlsPipe
from penstock.server.protocols import ProtocolRow
from penstock.sessions.stream import Session

# Reasons to stop reading that belong to the connection; a session has others.
PEER_READS_NOTHING: Final = "peer_reads_nothing"
NO_MEMORY: Final = "buffered_bytes_total"
# Output may use half of a connection's budget: the other half is for one largest frame coming in.
OUTPUT_SHARE: Final = 0.5
# How many first bytes a log line shows.
SHOWN_BYTES: Final = 8

logger = logging.getLogger(__name__)


class Connection(Outgoing):
    """`protocol` is given where a listener has only one; then only TLS is looked for."""

    __slots__ = (
        "_address",
        "_failed_logins",
        "_head",
        "_held",
        "_last_read",
        "_pauses",
        "_protocol",
        "_session",
        "_stall_mark",
        "_timer",
        "_tls_only",
        "peer",
    )

    def __init__(self, hub: Hub, protocol: str | None = None, *, tls_only: bool = False) -> None:
        super().__init__(hub, hub.counters.of(protocol or UNDECIDED))
        self._protocol = protocol
        self._tls_only = tls_only
        self._session: Session | None = None
        self._head = b""
        self._held = 0
        self._pauses: set[str] = set()
        self._failed_logins = 0
        self._last_read = 0.0
        self._stall_mark = 0
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""
        self.peer = "unknown"

    # --- called by the loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if name:
            self._address = name[0]
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        reason = self._hub.admit(self, self._address)
        if reason is not None:
            self._closing = True
            self._hub.counters.refused[reason] += 1
            self._hub.peer_log.note(self._address, self.peer, f"refused, limits.{reason} reached")
            self._transport.abort()
            return
        self._traffic.opened += 1
        self._traffic.open += 1
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Writes are gathered here, so the transport need not wait; it tells when the kernel is full.
        self._transport.set_write_buffer_limits(high=0)
        self._timer = self._loop.call_later(self._hub.limits.login_time_s, self._login_is_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._hub.read_view

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._hub.read_view[:nbytes])
        self._traffic.bytes_in += nbytes
        self._last_read = self._loop.time()
        if self._tls is not None:
            self._receive_tls(data)
        else:
            self._receive(data)
        self._balance()

    def eof_received(self) -> bool:
        """True: our side stays open until the session has answered."""
        if self._closing or self._session is None:
            return False
        self._end_of_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._closing = True
        self._stop_timer()
        if self in self._hub.connections:
            self._traffic.open -= 1
        self._hub.forget(self, self._address)
        self._out = []
        self._out_bytes = 0
        session, self._session = self._session, None
        if session is not None:
            try:
                session.closed()
            except Exception:  # a defect must not leave the books of all others wrong
                logger.exception("%s: the end of the session failed", self.peer)
        self._hub.hold(-self._held)
        self._held = 0

    # --- in --------------------------------------------------------------------------------------

    def _receive_tls(self, data: bytes) -> None:
        assert self._tls is not None
        try:
            plain = self._tls.feed(data)
        except ssl.SSLError as error:
            self._send_now(self._tls.pending())
            self._drop("tls", f"TLS failed: {error.reason or 'broken by the peer'}")
            return
        self._send_now(self._tls.pending())
        if plain:
            self._receive(plain)
        if self._tls.ended and not self._ended:
            if self._session is None:
                self.close()
            else:
                self._end_of_input()

    def _receive(self, data: bytes) -> None:
        if self._closing:
            return  # read and dropped, so that the peer gets our last bytes and not a reset
        if self._session is None:
            self._look(self._head + data)
        else:
            self._deliver(self._session, data)

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
            self._drop("unknown_protocol", f"first bytes {shown} fit no protocol, closed")

    def _start_tls(self, head: bytes) -> None:
        if self._hub.tls is None:
            self._drop("tls_off", "speaks TLS, but tls.certificate and tls.key are not set, closed")
            return
        self._tls = TlsPipe(self._hub.tls)
        self._receive_tls(head)

    def _begin(self, protocol: str, head: bytes) -> None:
        if self._tls_only and self._tls is None:
            self._drop("plain_refused", "speaks without TLS, which this listener asks for, closed")
            return
        if self._protocol is None:
            undecided, self._traffic = self._traffic, self._hub.counters.of(protocol)
            undecided.open -= 1
            self._traffic.opened += 1
            self._traffic.open += 1
            self._protocol = protocol
        self._session = self._hub.make_session[protocol](self)
        self._deliver(self._session, head)

    def _deliver(self, session: Session, data: bytes) -> None:
        try:
            session.receive(data)
        except Exception:  # a defect of ours: this connection ends, the others go on
            self.fail()

    def _end_of_input(self) -> None:
        self._ended = True
        assert self._session is not None
        try:
            self._session.end_of_input()
        except Exception:  # as above
            self.fail()

    def fail(self) -> None:
        logger.exception("%s: the %s session failed, closed", self.peer, self._protocol)
        self._hub.counters.closed["internal_error"] += 1
        self._transport.abort()

    # --- out: what a session calls ---------------------------------------------------------------

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._stop_timer()
        self._clear_pauses()
        self._timer = self._loop.call_later(self._hub.limits.close_time_s, self._close_is_late)
        self._flush_later()

    def pause(self, reason: str) -> None:
        if self._closing:
            return
        if not self._pauses:
            self._transport.pause_reading()
        if reason not in self._pauses:
            self._hub.counters.paused[reason] += 1
            self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.remove(reason)
            if not self._pauses and not self._lost:
                self._last_read = self._loop.time()  # it was us who did not read
                self._transport.resume_reading()

    def login_failed(self) -> int:
        self._failed_logins += 1
        self._hub.note_failed_login(self._address, self.peer)
        return self._failed_logins

    def logged_in(self) -> None:
        if self._closing:
            return
        self._stop_timer()
        idle_time_s = self._hub.limits.idle_time_s
        if idle_time_s is not None:
            self._timer = self._loop.call_later(idle_time_s, self._is_idle)

    def _tell_writable(self) -> None:
        if self._session is None or self._closing:
            return
        try:
            self._session.writable()
        except Exception:  # a defect of ours: this connection ends, the others go on
            self.fail()

    # --- limits ----------------------------------------------------------------------------------

    def _balance(self) -> None:
        """Books what is held for this peer, and stops or starts reading accordingly."""
        if self._lost:
            return
        waiting = self._backlog()
        held = waiting + len(self._head)
        if self._session is not None:
            held += self._session.held_bytes()
        change, self._held = held - self._held, held
        if change:
            self._hub.hold(change)
        if self._closing or self._unflushed:
            return  # what is queued may well go out at the end of this turn
        most = self._hub.limits.buffered_bytes_per_connection * OUTPUT_SHARE
        if waiting > most:
            self.pause(PEER_READS_NOTHING)
        elif waiting <= most * OUTPUT_SHARE:
            self.resume(PEER_READS_NOTHING)
        if held and self._hub.over_budget() and NO_MEMORY not in self._pauses:
            self.pause(NO_MEMORY)
            self._hub.wait_for_memory(self)
            self._stall_mark = held
            self._loop.call_later(self._hub.limits.stall_time_s, self._stalled)

    def memory_is_back(self) -> None:
        self.resume(NO_MEMORY)

    def _stalled(self) -> None:
        """All memory is in use, and this peer neither takes its bytes nor completes its frame."""
        if self._lost or self._closing or NO_MEMORY not in self._pauses:
            return
        self._balance()
        if self._held >= self._stall_mark:
            self._drop(
                "buffered_bytes_total", "too slow while limits.buffered_bytes_total is used up"
            )
            self._transport.abort()
        else:
            self._stall_mark = self._held
            self._loop.call_later(self._hub.limits.stall_time_s, self._stalled)

    def _login_is_late(self) -> None:
        self._drop("login_time", "no login within limits.login_time, closed")

    def _is_idle(self) -> None:
        idle_time_s = self._hub.limits.idle_time_s
        assert idle_time_s is not None
        left_s = self._last_read + idle_time_s - self._loop.time()
        if self._pauses:
            left_s = idle_time_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._is_idle)
        else:
            self._drop("idle_time", "nothing received within limits.idle_time, closed")

    def _close_is_late(self) -> None:
        if self._out or self._blocked:
            self._hub.counters.closed["unread_output"] += 1
        self._transport.abort()

    def _drop(self, reason: str, what: str) -> None:
        if self._closing:
            return
        self._hub.counters.closed[reason] += 1
        self._hub.peer_log.note(self._address, self.peer, what)
        self.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _clear_pauses(self) -> None:
        for reason in list(self._pauses):
            self.resume(reason)

    # --- draining --------------------------------------------------------------------------------

    def drain(self) -> None:
        if self._session is None:
            self.close()
        else:
            self._session.drain()

    def busy(self) -> bool:
        return self._session is not None and self._session.busy()
