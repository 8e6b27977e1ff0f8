"""A connection by qh3: packets in Rust, TLS in Python. What a server's and a client's have in common. One
of two modules that know this library's inside. Hot: compiled by mypyc.

qh3 moves a window on when an event is taken from its core, and the core has one queue for all streams.
So the bytes of a paused stream are taken and held here, and when they are as many as the window of the
connection, no more events are taken: then the whole connection waits, and no other.
"""

from abc import abstractmethod
from collections import deque
from typing import Any, Final

from mypy_extensions import mypyc_attr

from penstock.quic.events import NO_CODE, NO_STREAM, RESET, STOPPED, LinkSettings
from penstock.quic.link import KEEP_ALIVE_PING, UNCOUNTED_BYTES, Address, Link
from penstock.quic.qh3_connection import Qh3Connection

# How long a peer's events wait for lost packets while much is queued: some round trips of most networks.
MOST_RECOVERY_S: Final = 0.25
# States of the core in which no more comes from the peer.
_ENDED: Final = frozenset({"draining", "terminated"})


@mypyc_attr(allow_interpreted_subclasses=True)
class Qh3Link(Link):
    """`first_id` and `retry_id`: what a server's connection is made with, of the client's first packets."""

    library = "qh3"

    def __init__(
        self,
        serial: int,
        settings: LinkSettings,
        configuration: Any,
        address: Address,
        now_s: float,
        first_id: bytes | None = None,
        retry_id: bytes | None = None,
    ) -> None:
        super().__init__(serial, settings, address, now_s)
        quic = Qh3Connection(
            configuration=configuration,
            original_destination_connection_id=first_id,
            retry_source_connection_id=retry_id,
        )
        quic.link = self
        self._quic: Any = quic
        # Of the library; None before a server's first datagram.
        self._core: Any = None
        # Datagrams that were made and not asked for yet.
        self._ready: deque[tuple[Any, ...]] = deque()
        # Packets that were lost, and probes for those that may be, as far as they were seen.
        self._known_losses = 0
        self._recovering = False
        self._recovering_since_s = 0.0
        self.new_ids.append(quic.host_cid)

    def use_core(self, core: Any) -> None:
        self._core = core

    def made_tls(self, context: Any) -> None:
        """The TLS of this connection is there, and has not begun."""

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, data: bytes, segment_bytes: int, address: Address, now_s: float) -> None:
        if self.opened:
            self._core.receive_gro_buffer(data, segment_bytes, address, now_s)
            self._look_for_losses(now_s)
            self.take_from_core()
        else:
            for start in range(0, len(data), segment_bytes):
                self.shake(data[start : start + segment_bytes], address, now_s)
        self.heard(now_s)

    @abstractmethod
    def shake(self, data: bytes, address: Address, now_s: float) -> None:
        """A datagram of the handshake."""

    def handle_timer(self, now_s: float) -> None:
        # Also within the handshake: its packets may be lost too.
        self._quic._core.handle_timer(now_s)
        if self.opened:
            self._look_for_losses(now_s)
        self.take_from_core()

    def take_from_core(self) -> None:
        """Takes what the core has, up to the bytes that may be held for paused streams."""
        core = self._core
        if self._recovering and core.state not in _ENDED:
            return
        while self.held_bytes < self.hold_bytes or core.state in _ENDED:
            event: tuple[Any, ...] | None = core.next_event()
            if event is None:
                return
            if event[0] == "stream_data":
                self.add_data(event[1], event[2], event[3])
            else:
                self._take(event)

    @property
    def waits(self) -> bool:
        """Whether paused streams hold up all others of the connection."""
        return self.held_bytes >= self.hold_bytes and bool(self._quic._core.has_events)

    def _take(self, event: tuple[Any, ...]) -> None:
        kind: str = event[0]
        if kind == "crypto_data":
            self._crypto(event)
        elif kind == "stream_reset":
            self.add_event(RESET, event[1], event[2])
        elif kind == "stop_sending":
            self.add_event(STOPPED, event[1], event[2])
        elif kind == "streams_available":
            self.add_streams()
        elif kind == "handshake_done":  # only a server says it
            self._core.handshake_confirmed()
        elif kind == "connection_id_issued":
            self.new_ids.append(event[1])
        elif kind == "connection_id_retired":
            self.old_ids.append(event[1])
        elif kind == "peer_closed":
            self.add_end(event[2], event[4])
        elif kind == "protocol_error":
            self.add_end(event[1], event[3].encode())
        elif kind == "connection_terminated":
            self.add_end(NO_CODE, event[3])
            self.over = True

    def _crypto(self, event: tuple[Any, ...]) -> None:
        failed: tuple[int, bytes] | None = self._quic.take_crypto(event)
        if failed is not None:
            self.add_end(failed[0], failed[1])
            return
        application: str | None = self._quic.take_completed()
        if application is not None and not self.opened:
            self.add_opened(application)

    def consumed(self, stream: int, size: int) -> None:
        if size and self._core is not None:
            self.take_from_core()

    # --- out --------------------------------------------------------------------------------------

    def _look_for_losses(self, now_s: float) -> None:
        """After a loss no events are taken before all that is due again has been made into datagrams. The
        event of a finished stream lets the core forget it; if a frame of it was due again, the packet with
        that frame fails, and with it the frames of other streams, which are then never sent. All of it is
        gone when the congestion window has room left; if it has none, the next acknowledgement makes room.
        Where much is queued there may never be room, and what the peer sends must not wait for that."""
        core = self._core
        losses: int = core.loss_total + core.pto_total
        if losses != self._known_losses:
            self._known_losses = losses
            if not self._recovering:
                self._recovering = True
                self._recovering_since_s = now_s
        if not self._recovering:
            return
        self._make_ready(now_s)
        room = int(core.congestion_window) - int(core.bytes_in_flight)
        if room >= self.settings.datagram_bytes:
            self._recovering = False
        elif now_s - self._recovering_since_s > MOST_RECOVERY_S:
            self._recovering = self.queued_bytes(None) <= UNCOUNTED_BYTES

    def _make_ready(self, now_s: float) -> None:
        while True:
            one = self._transmitted(now_s)
            if one is None:
                return
            self._ready.append(one)

    def datagrams(self, now_s: float, most: int) -> tuple[list[bytes], Address] | None:
        if self._core is None:
            return None
        parts: list[bytes] = []
        where: Address = ()
        while len(parts) < most:
            one = self._ready.popleft() if self._ready else self._transmitted(now_s)
            if one is None:
                break
            if parts and one[1] != where:
                self._ready.appendleft(one)
                break
            where = one[1]
            parts.append(one[0])
        return (parts, where) if parts else None

    def _transmitted(self, now_s: float) -> tuple[Any, ...] | None:
        """A ValueError ("reserved stream is missing", see above) may have taken frames of other streams
        with it. It ends the connection: a stream that never goes on would be worse."""
        try:
            found: tuple[Any, ...] | None = self._core.poll_transmit(now_s)
            return found
        except RuntimeError:
            # The core says so too when it may send no more before the peer's address is proved.
            if self.opened:
                raise
            return None

    def write(self, stream: int, data: bytes, fin: bool) -> None:
        try:
            self._core.send_stream(stream, data, fin)
        except (RuntimeError, ValueError):  # it has ended meanwhile
            return

    def queued_bytes(self, stream: int | None) -> int:
        try:
            return int(self._core.get_send_buffer_size(stream))
        except (RuntimeError, ValueError):
            return 0

    def in_flight_bytes(self) -> int:
        return int(self._core.bytes_in_flight)

    def lost_packets(self) -> int:
        return 0 if self._core is None else int(self._core.loss_total)

    def open(self, unidirectional: bool) -> int:
        try:
            return int(self._core.open_stream(unidirectional))
        except (RuntimeError, ValueError):
            self.wants_streams = True
            return NO_STREAM

    def reset(self, stream: int, code: int) -> None:
        try:
            self._core.reset_stream(stream, code)
        except (RuntimeError, ValueError):
            return

    def stop(self, stream: int, code: int) -> None:
        try:
            self._core.stop_sending(stream, code)
        except (RuntimeError, ValueError):
            return

    def close(self, code: int, reason: str, transport: bool = False) -> None:
        self.end_told = True
        if self._core is None:
            self.over = True
            return
        try:
            self._core.close(code, 0 if transport else None, reason.encode())
        except (RuntimeError, ValueError):
            self.over = True

    # --- time -------------------------------------------------------------------------------------

    def library_timer_s(self) -> float | None:
        if self._core is None:
            return None
        timer: tuple[str, float] | None = self._core.get_timer()
        return None if timer is None else timer[1]

    def ping(self) -> None:
        try:
            self._core.send_ping(KEEP_ALIVE_PING)
        except (RuntimeError, ValueError):
            return

    def release(self) -> None:
        self._quic.take_apart()
        self._core = None
