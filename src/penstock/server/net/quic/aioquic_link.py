"""A connection served by aioquic, all in Python: for clients whose own connection id is empty, which
qh3 cannot serve. quic-go dials like that. One of two modules that know this library's inside.

The library doubles its windows as bytes arrive. Here they follow what was taken: a window is always as
large as in the settings, and stands still while its stream is paused.
"""

from typing import Any

from aioquic import tls
from aioquic.quic import events as quic_events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
)
from aioquic.quic.packet import QuicFrameType, encode_quic_retry
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from penstock.server.net.quic.link import KEEP_ALIVE_PING, Link, watch_hello
from penstock.server.net.quic.packets import ID_BYTES, VERSION_1, LongHeader
from penstock.server.net.quic.port import (
    CLOSED,
    NO_CODE,
    NO_STREAM,
    OPENED,
    RESET,
    STOPPED,
    STREAMS,
    Certificate,
    CertificateRefused,
    EngineSettings,
)

# A window is told anew when a quarter of it was taken: then the peer never waits for it.
TOLD_SHARE = 4


def configuration(settings: EngineSettings, certificate: Certificate) -> QuicConfiguration:
    """Raises CertificateRefused."""
    made = QuicConfiguration(
        is_client=False,
        connection_id_length=ID_BYTES,
        idle_timeout=settings.idle_time_s,
        max_data=settings.connection_window_bytes,
        max_stream_data=settings.stream_window_bytes,
        max_datagram_size=settings.datagram_bytes,
        supported_versions=[VERSION_1],
    )
    try:
        chain = load_pem_x509_certificates(certificate.chain)
        made.private_key = load_pem_private_key(certificate.key, None)
    except (ValueError, TypeError) as error:
        raise CertificateRefused(str(error)) from None
    made.certificate, made.certificate_chain = chain[0], chain[1:]
    return made


def retry_packet(header: LongHeader, retry_id: bytes, token: bytes) -> bytes:
    return encode_quic_retry(
        version=header.version,
        source_cid=retry_id,
        destination_cid=header.source,
        original_destination_cid=header.destination,
        retry_token=token,
    )


class _Window(Limit):
    """The window of the connection: `used` is what has arrived, `taken` what was passed on."""

    def __init__(self, window: int) -> None:
        self.taken = 0
        self._window = window
        super().__init__(frame_type=QuicFrameType.MAX_DATA, name="max_data", value=window)

    @property
    def value(self) -> int:
        return told_window(self.taken, self._window)

    @value.setter
    def value(self, doubled: int) -> None:
        """The library doubles it; we do not."""


def told_window(taken: int, window: int) -> int:
    step = window // TOLD_SHARE
    return taken // step * step + window


class _Connection(QuicConnection):
    link: "AioquicLink"

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        watch_hello(self.tls, tls, self.link.settings.choose)

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if not stream.max_stream_data_local:  # a stream of ours in one direction
            return
        link = self.link
        window = told_window(link.taken.get(stream.stream_id, 0), link.settings.stream_window_bytes)
        stream.max_stream_data_local = max(stream.max_stream_data_local, window)
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            buffer = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            buffer.push_uint_var(stream.stream_id)
            buffer.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local


class AioquicLink(Link):
    library = "aioquic"

    def __init__(
        self,
        serial: int,
        settings: EngineSettings,
        made: QuicConfiguration,
        address: tuple[Any, ...],
        now_s: float,
        first_id: bytes,
        retry_id: bytes | None,
    ) -> None:
        super().__init__(serial, settings, address, now_s)
        self.taken: dict[int, int] = {}
        quic: Any = _Connection(
            configuration=made,
            original_destination_connection_id=first_id,
            retry_source_connection_id=retry_id,
        )
        quic.link = self
        self._window = quic._local_max_data = _Window(settings.connection_window_bytes)
        for limit in (quic._local_max_streams_bidi, quic._local_max_streams_uni):
            limit.value = limit.sent = settings.streams
        self._quic = quic
        self.new_ids.append(quic.host_cid)

    # --- in ---------------------------------------------------------------------------------------

    def receive(
        self, data: bytes, segment_bytes: int, address: tuple[str, int], now_s: float
    ) -> None:
        for start in range(0, len(data), segment_bytes):
            self._quic.receive_datagram(data[start : start + segment_bytes], address, now_s)
        self._take()
        self.heard(now_s)

    def handle_timer(self, now_s: float) -> None:
        self._quic.handle_timer(now_s)
        self._take()

    def _take(self) -> None:
        while (event := self._quic.next_event()) is not None:
            if isinstance(event, quic_events.StreamDataReceived):
                if self.add_data(event.stream_id, event.data, event.end_stream):
                    self._move(event.stream_id, len(event.data))
                if event.end_stream:
                    self.taken.pop(event.stream_id, None)
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
                self.opened = True
                application = (event.alpn_protocol or "").encode()
                self.events.append((OPENED, self.serial, NO_STREAM, application, 0))
            elif isinstance(event, quic_events.ConnectionTerminated):
                self.over = True
        # It is set when the close comes; the event follows when the time to answer late packets is over.
        if self._quic._close_event is not None:
            self._end(self._quic._close_event)
        if self.wants_streams and self._may_open(False) and self._may_open(True):
            self.wants_streams = False
            self.events.append((STREAMS, self.serial, NO_STREAM, b"", 0))

    def _end(self, event: quic_events.ConnectionTerminated) -> None:
        if not self.end_told:
            self.end_told = True
            idle = event.reason_phrase == "Idle timeout"
            code = NO_CODE if idle else event.error_code
            self.events = self.take_events()
            reason = event.reason_phrase.encode()
            self.events.append((CLOSED, self.serial, NO_STREAM, reason, code))

    def _move(self, stream: int, size: int) -> None:
        self._window.taken += size
        if stream in self._quic._streams:
            self.taken[stream] = self.taken.get(stream, 0) + size

    def _forget_rest(self, stream: int) -> None:
        """Bytes that a reset took with it count in the connection's window as taken."""
        taken = self.taken.pop(stream, 0)
        known = self._quic._streams.get(stream)
        if known is not None:
            self._window.taken += max(0, known.receiver.highest_offset - taken)

    def consumed(self, stream: int, size: int) -> None:
        if size:
            self._move(stream, size)

    # --- out --------------------------------------------------------------------------------------

    def datagrams(self, now_s: float) -> list[tuple[bytes, tuple[str, int]]]:
        found: list[tuple[bytes, tuple[str, int]]] = self._quic.datagrams_to_send(now_s)
        return found

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

    def close(self, code: int, reason: str, *, transport: bool = False) -> None:
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
