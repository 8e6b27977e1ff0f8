"""A connection served by aioquic, all in Python: for clients whose own connection id is empty, which
qh3 cannot serve. quic-go dials like that. One of two modules that know this library's inside. Hot: compiled
by mypyc.
"""

from collections import deque
from typing import Any, Final

from aioquic.quic import events as quic_events
from aioquic.quic.packet import QuicFrameType

from penstock.quic.link import KEEP_ALIVE_PING, Address, Link
from penstock.server.net.quic.aioquic_connection import AioquicConnection
from penstock.server.net.quic.port import (
    NO_CODE,
    NO_STREAM,
    RESET,
    STOPPED,
    EngineSettings,
)

# The reason that the library gives where no code was received.
IDLE: Final = "Idle timeout"


class AioquicLink(Link):
    library = "aioquic"

    def __init__(
        self,
        serial: int,
        settings: EngineSettings,
        configuration: Any,
        address: Address,
        now_s: float,
        first_id: bytes,
        retry_id: bytes | None,
    ) -> None:
        super().__init__(serial, settings, address, now_s)
        quic = AioquicConnection(
            configuration=configuration,
            original_destination_connection_id=first_id,
            retry_source_connection_id=retry_id,
        )
        quic.settings = settings
        # By stream: what was passed on.
        self._taken: dict[int, int] = {}
        quic.taken = self._taken
        self._window: Any = quic.limit()
        self._quic: Any = quic
        self._ready: deque[tuple[bytes, Address]] = deque()
        self.new_ids.append(quic.host_cid)

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, data: bytes, segment_bytes: int, address: Address, now_s: float) -> None:
        for start in range(0, len(data), segment_bytes):
            self._quic.receive_datagram(data[start : start + segment_bytes], address, now_s)
        self._take()
        self.heard(now_s)

    def handle_timer(self, now_s: float) -> None:
        self._quic.handle_timer(now_s)
        self._take()

    def _take(self) -> None:
        while True:
            event: Any = self._quic.next_event()
            if event is None:
                break
            if isinstance(event, quic_events.StreamDataReceived):
                if self.add_data(event.stream_id, event.data, event.end_stream):
                    self._move(event.stream_id, len(event.data))
                if event.end_stream:
                    self._taken.pop(event.stream_id, None)
            elif isinstance(event, quic_events.StreamReset):
                self.add_event(RESET, event.stream_id, event.error_code)
                self._forget_rest(event.stream_id)
            elif isinstance(event, quic_events.StopSendingReceived):
                self.add_event(STOPPED, event.stream_id, event.error_code)
            elif isinstance(event, quic_events.ConnectionIdIssued):
                self.new_ids.append(event.connection_id)
            elif isinstance(event, quic_events.ConnectionIdRetired):
                self.old_ids.append(event.connection_id)
            elif isinstance(event, quic_events.HandshakeCompleted):
                self.add_opened(event.alpn_protocol)
            elif isinstance(event, quic_events.ConnectionTerminated):
                self.over = True
        # It is set when the close comes; the event follows when the time to answer late packets is over.
        ended: Any = self._quic._close_event
        if ended is not None:
            idle = ended.reason_phrase == IDLE
            self.add_end(NO_CODE if idle else ended.error_code, ended.reason_phrase.encode())
        if self.wants_streams and self._may_open(False) and self._may_open(True):
            self.add_streams()

    def _move(self, stream: int, size: int) -> None:
        self._window.taken += size
        if stream in self._quic._streams:
            self._taken[stream] = self._taken.get(stream, 0) + size

    def _forget_rest(self, stream: int) -> None:
        """Bytes that a reset took with it count in the connection's window as taken."""
        taken = self._taken.pop(stream, 0)
        known = self._quic._streams.get(stream)
        if known is not None:
            self._window.taken += max(0, known.receiver.highest_offset - taken)

    def consumed(self, stream: int, size: int) -> None:
        if size:
            self._move(stream, size)

    # --- out --------------------------------------------------------------------------------------

    def datagrams(self, now_s: float, most: int) -> tuple[list[bytes], Address] | None:
        """The library gives all that it may send at once."""
        if not self._ready:
            self._ready = deque(self._quic.datagrams_to_send(now_s))
            if not self._ready:
                return None
        where: Address = self._ready[0][1]
        parts: list[bytes] = []
        while self._ready and len(parts) < most and self._ready[0][1] == where:
            parts.append(self._ready.popleft()[0])
        return parts, where

    def write(self, stream: int, data: bytes, fin: bool) -> None:
        try:
            self._quic.send_stream_data(stream, data, fin)
        except (AssertionError, RuntimeError, ValueError):  # it has ended meanwhile
            return

    def queued_bytes(self, stream: int | None) -> int:
        streams = self._quic._streams
        chosen = streams.values() if stream is None else [streams.get(stream)]
        return sum(_unsent(one.sender) for one in chosen if one is not None)

    def in_flight_bytes(self) -> int:
        return int(self._quic._loss.bytes_in_flight)

    def lost_packets(self) -> int:
        return 0  # the library does not count them

    def open(self, unidirectional: bool) -> int:
        if not self._may_open(unidirectional):
            self.wants_streams = True
            return NO_STREAM
        stream = int(self._quic.get_next_available_stream_id(unidirectional))
        self._quic._get_or_create_stream_for_send(stream)
        return stream

    def _may_open(self, unidirectional: bool) -> bool:
        quic = self._quic
        allowed = quic._remote_max_streams_uni if unidirectional else quic._remote_max_streams_bidi
        return bool(quic.get_next_available_stream_id(unidirectional) // 4 < allowed)

    def reset(self, stream: int, code: int) -> None:
        try:
            self._quic.reset_stream(stream, code)
        except (AssertionError, ValueError):
            return

    def stop(self, stream: int, code: int) -> None:
        try:
            self._quic.stop_stream(stream, code)
        except (AssertionError, ValueError):
            return

    def close(self, code: int, reason: str, transport: bool = False) -> None:
        self.end_told = True
        frame_type = QuicFrameType.PADDING if transport else None
        self._quic.close(error_code=code, frame_type=frame_type, reason_phrase=reason)

    # --- time -------------------------------------------------------------------------------------

    def library_timer_s(self) -> float | None:
        timer_s: float | None = self._quic.get_timer()
        return timer_s

    def ping(self) -> None:
        self._quic.send_ping(KEEP_ALIVE_PING)

    def release(self) -> None:
        self._quic.__dict__.clear()


def _unsent(sender: Any) -> int:
    """Bytes that were queued and not sent once."""
    return max(0, int(sender._buffer_stop) - int(sender.highest_offset))
