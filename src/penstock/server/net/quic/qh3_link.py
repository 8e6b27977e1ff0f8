"""A connection served by qh3: packets in Rust, TLS in Python. One of two modules that know this
library's inside.

qh3 moves a window on when an event is taken from its core, and the core has one queue for all streams.
So the bytes of a paused stream are taken and held here, and when they are as many as the window of the
connection, no more events are taken: then the whole connection waits, and no other.
"""

from collections.abc import Callable
from typing import Any, Final

from qh3 import tls
from qh3._hazmat import Buffer, QuicConnectionCore
from qh3.quic import events as quic_events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError

from penstock.server.net.quic.link import KEEP_ALIVE_PING, Link, watch_hello
from penstock.server.net.quic.packets import ID_BYTES, VERSION_1, long_header
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

ACTIVE_ID_LIMIT: Final = 8
ACK_DELAY_EXPONENT: Final = 3
MAX_ACK_DELAY_S: Final = 0.025
# Room for our transport parameters, which are about 100 bytes.
_PARAMETER_BYTES: Final = 1024
# Frames of one turn that the core has forgotten; one at a time was seen. Each call takes one away.
MAX_FORGOTTEN_FRAMES: Final = 64
# States of the core in which no more comes from the peer.
_ENDED: Final = frozenset({"draining", "terminated"})


def configuration(settings: EngineSettings, certificate: Certificate) -> QuicConfiguration:
    """Raises CertificateRefused."""
    made = QuicConfiguration(
        is_client=False,
        connection_id_length=ID_BYTES,
        idle_timeout=settings.idle_time_s,
        max_data=settings.connection_window_bytes,
        max_stream_data=settings.stream_window_bytes,
        max_datagram_size=settings.datagram_bytes,
        probe_datagram_size=False,
        supported_versions=[VERSION_1],
    )
    try:
        made.load_cert_chain(certificate.chain, certificate.key)
    except Exception as error:  # the library raises errors of many kinds for bad PEM
        raise CertificateRefused(str(error) or type(error).__name__) from None
    return made


class _Bridge(QuicTlsBridge):
    """With our limits of streams, which are literals in the library."""

    streams = 0

    def serialize_transport_parameters(self) -> bytes:
        parameters = pull_quic_transport_parameters(
            Buffer(data=super().serialize_transport_parameters())
        )
        parameters.initial_max_streams_bidi = self.streams
        parameters.initial_max_streams_uni = self.streams
        buffer = Buffer(capacity=_PARAMETER_BYTES)
        push_quic_transport_parameters(buffer, parameters)
        return bytes(buffer.data)


class _Connection(QuicConnection):
    """The library's connection with our limits, and with events that the link takes itself."""

    link: "Qh3Link"

    def _create_core(self, remote_addr: Any, initial_dcid: bytes, now: float) -> None:
        settings = self.link.settings
        window, stream_window = settings.connection_window_bytes, settings.stream_window_bytes
        self._core = QuicConnectionCore(
            is_client=False,
            version=self._version or VERSION_1,
            local_addr=("0.0.0.0", 0),
            remote_addr=remote_addr,
            source_cid=self.host_cid,
            destination_cid=initial_dcid,
            peer_address_validated=self._retry_source_connection_id is not None,
            active_connection_id_limit=ACTIVE_ID_LIMIT,
            max_datagram_size=settings.datagram_bytes,
            probe_datagram_size=False,
            idle_timeout=settings.idle_time_s,
            ack_delay_exponent=ACK_DELAY_EXPONENT,
            max_datagram_frame_size=None,
            peer_max_datagram_frame_size=None,
            connection_receive_window=window,
            connection_send_limit=0,
            stream_receive_window=stream_window,
            stream_send_limit_bidi_local=0,
            stream_send_limit_bidi_remote=0,
            stream_send_limit_uni=0,
            max_stream_reassembly=stream_window,
            local_max_streams_bidi=settings.streams,
            local_max_streams_uni=settings.streams,
            peer_max_streams_bidi=0,
            peer_max_streams_uni=0,
            initial_rtt=self._configuration.initial_rtt,
            max_ack_delay=MAX_ACK_DELAY_S,
            initial_time=now,
        )
        self._applied_transport_parameters = None
        self._pre_handshake_state_replayed = False

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        # The constructor writes the parameters already.
        bridge = _Bridge.__new__(_Bridge)
        bridge.streams = self.link.settings.streams
        bridge.__init__(  # type: ignore[misc]
            self._configuration,
            version=self._version,
            local_initial_source_connection_id=self.host_cid,
            remote_initial_source_connection_id=remote_source_cid,
            original_destination_connection_id=self._original_destination_connection_id,
            retry_source_connection_id=self._retry_source_connection_id,
            version_change_handler=self._set_version,
        )
        watch_hello(bridge.tls, tls, self.link.settings.choose)
        self._tls = bridge
        return bridge

    def _drain_core(self) -> None:
        self.link.take_from_core()


class Qh3Link(Link):
    library = "qh3"

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
        self._quic: Any = _Connection(
            configuration=made,
            original_destination_connection_id=first_id,
            retry_source_connection_id=retry_id,
        )
        self._quic.link = self
        self._core: Any = None
        self.new_ids.append(self._quic.host_cid)

    # --- in ---------------------------------------------------------------------------------------

    def receive(
        self, data: bytes, segment_bytes: int, address: tuple[str, int], now_s: float
    ) -> None:
        if self.opened:
            self._core.receive_gro_buffer(data, segment_bytes, address, now_s)
            self.take_from_core()
        else:
            for start in range(0, len(data), segment_bytes):
                self._shake(data[start : start + segment_bytes], address, now_s)
        self.heard(now_s)

    def _shake(self, data: bytes, address: tuple[str, int], now_s: float) -> None:
        """A datagram of the handshake. The library would pass its packets to the core one by one, and then
        counts only their bytes: a client that pads behind its packet would have too little credit for our
        answer. A server has all keys that it needs when a datagram comes, so the core gets it whole."""
        quic = self._quic
        if quic._core is None:
            header = long_header(data)
            assert header is not None, "the engine has read it"
            quic._remote_addr = address
            quic._version = header.version
            quic._create_core(address, header.destination, now_s)
            quic._create_tls(None)
        report = quic._core.receive_datagram(data, address, now_s, len(data))
        if report[2]:
            quic._learn_remote_source_cid(data)
        self.take_from_core()

    def handle_timer(self, now_s: float) -> None:
        self._core.handle_timer(now_s)
        self.take_from_core()

    def take_from_core(self) -> None:
        """Takes what the core has, up to the bytes that may be held for paused streams."""
        quic, core = self._quic, self._quic._core
        most = self.settings.connection_window_bytes
        while self.held_bytes < most or core.state in _ENDED:
            event = core.next_event()
            if event is None:
                return
            kind = event[0]
            if kind == "stream_data":
                self.add_data(event[1], event[2], event[3])
            elif kind == "crypto_data":
                self._crypto(quic, core, event)
            elif kind == "stream_reset":
                self.add_event(RESET, event[1], event[2])
            elif kind == "stop_sending":
                self.add_event(STOPPED, event[1], event[2])
            elif kind == "streams_available":
                if self.wants_streams:
                    self.wants_streams = False
                    self.events.append((STREAMS, self.serial, NO_STREAM, b"", 0))
            elif kind == "connection_id_issued":
                self.new_ids.append(event[1])
            elif kind == "connection_id_retired":
                self.old_ids.append(event[1])
            elif kind == "peer_closed":
                self._end(event[2], event[4])
            elif kind == "protocol_error":
                self._end(event[1], event[3].encode())
            elif kind == "connection_terminated":
                self._end(NO_CODE, event[3])
                self.over = True

    def _crypto(self, quic: Any, core: Any, event: tuple[Any, ...]) -> None:
        try:
            quic._tls.receive_crypto(tls.Epoch(event[1]), event[3], event[2], version=core.version)
            quic._drain_tls()
        except QuicTlsBridgeError as error:
            core.close(error.error_code, int(error.frame_type), error.reason_phrase.encode())
            self._end(error.error_code, error.reason_phrase.encode())
            return
        while (told := quic.next_event()) is not None:
            if isinstance(told, quic_events.HandshakeCompleted) and not self.opened:
                self.opened = True
                self._core = core
                application = (told.alpn_protocol or "").encode()
                self.events.append((OPENED, self.serial, NO_STREAM, application, 0))

    def _end(self, code: int, reason: bytes) -> None:
        if not self.end_told:
            self.end_told = True
            self.events = self.take_events()
            self.events.append((CLOSED, self.serial, NO_STREAM, reason, code))

    def consumed(self, stream: int, size: int) -> None:
        if size and self._core is not None:
            self.take_from_core()

    # --- out --------------------------------------------------------------------------------------

    def datagrams(self, now_s: float) -> list[tuple[bytes, tuple[str, int]]]:
        core = self._quic._core
        found: list[tuple[bytes, tuple[str, int]]] = []
        if core is None:
            return found
        transmit = core.poll_transmit
        try:
            while (one := self._transmitted(transmit, now_s)) is not None:
                found.append((one[0], one[1]))
        except RuntimeError:
            # The core says so too when it may send no more before the peer's address is proved.
            if self.opened:
                raise
        return found

    def _transmitted(self, transmit: Callable[[float], Any], now_s: float) -> Any:
        """The next datagram. The core fails ("reserved stream is missing") where a lost frame is due again
        whose stream was acknowledged meanwhile; it has forgotten the frame by then, and the next call
        goes on."""
        for _ in range(MAX_FORGOTTEN_FRAMES):
            try:
                return transmit(now_s)
            except ValueError:
                continue
        return transmit(now_s)

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

    def close(self, code: int, reason: str, *, transport: bool = False) -> None:
        self.end_told = True
        core = self._quic._core
        if core is None:
            self.over = True
            return
        try:
            core.close(code, 0 if transport else None, reason.encode())
        except (RuntimeError, ValueError):
            self.over = True

    # --- time -------------------------------------------------------------------------------------

    def library_timer_s(self) -> float | None:
        core = self._quic._core
        timer = None if core is None else core.get_timer()
        return None if timer is None else timer[1]

    def ping(self) -> None:
        try:
            self._core.send_ping(KEEP_ALIVE_PING)
        except (RuntimeError, ValueError):
            return

    def release(self) -> None:
        bridge = self._quic._tls
        if bridge is not None:
            bridge.tls.__dict__.clear()
            bridge.__dict__.clear()
        self._quic.__dict__.clear()
        self._core = None
