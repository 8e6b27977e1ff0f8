"""qh3's connection with our limits, and its handshake: what runs once for a connection. One of two modules
that know this library's inside; the other is qh3_link.py, which drives the core behind it.
"""

from typing import Any, Final, Protocol

from qh3 import tls
from qh3._hazmat import Buffer, QuicConnectionCore
from qh3.quic import events as quic_events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError

from penstock.quic.events import ID_BYTES, VERSION_1, LinkSettings

ACTIVE_ID_LIMIT: Final = 8
ACK_DELAY_EXPONENT: Final = 3
MAX_ACK_DELAY_S: Final = 0.025
# Room for our transport parameters, which are about 100 bytes.
_PARAMETER_BYTES: Final = 1024


def configuration(settings: LinkSettings, *, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=is_client,
        connection_id_length=ID_BYTES,
        active_connection_id_limit=ACTIVE_ID_LIMIT,
        idle_timeout=settings.idle_time_s,
        max_data=settings.connection_window_bytes,
        max_stream_data=settings.stream_window_bytes,
        max_datagram_size=settings.datagram_bytes,
        probe_datagram_size=False,
        supported_versions=[VERSION_1],
    )


class Driver(Protocol):
    """The link, as its connection sees it."""

    settings: LinkSettings

    def use_core(self, core: Any) -> None:
        """The core is there; a client's Retry makes another one."""
        ...

    def made_tls(self, context: Any) -> None:
        """The TLS of this connection is there, and has not begun."""
        ...

    def take_from_core(self) -> None: ...


class _Bridge(QuicTlsBridge):
    """With our limits of streams, which are literals in the library."""

    streams = 0

    def serialize_transport_parameters(self) -> bytes:
        parameters = pull_quic_transport_parameters(
            Buffer(data=super().serialize_transport_parameters())
        )
        parameters.initial_max_streams_bidi = self.streams
        parameters.initial_max_streams_uni = self.streams
        # Clients of the library offer datagram frames, which nobody here reads.
        parameters.max_datagram_frame_size = None
        buffer = Buffer(capacity=_PARAMETER_BYTES)
        push_quic_transport_parameters(buffer, parameters)
        return bytes(buffer.data)


class Qh3Connection(QuicConnection):
    """The library's connection with our limits, of a server or a client. Its core is driven by a link."""

    link: Driver

    def _create_core(self, remote_addr: Any, initial_dcid: bytes, now: float) -> None:
        settings = self.link.settings
        window, stream_window = settings.connection_window_bytes, settings.stream_window_bytes
        self._core = QuicConnectionCore(
            is_client=self._is_client,
            version=self._version or VERSION_1,
            local_addr=("0.0.0.0", 0),
            remote_addr=remote_addr,
            source_cid=self.host_cid,
            destination_cid=initial_dcid,
            peer_address_validated=self._is_client or self._retry_source_connection_id is not None,
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
        self.link.use_core(self._core)

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
        self.link.made_tls(bridge.tls)
        self._tls = bridge
        return bridge

    def _drain_core(self) -> None:
        self.link.take_from_core()

    def take_crypto(self, event: tuple[Any, ...]) -> tuple[int, bytes] | None:
        """What TLS said. Returns code and reason where that ends the connection."""
        core = self._require_core()
        assert self._tls is not None, "made with the core"
        try:
            self._tls.receive_crypto(tls.Epoch(event[1]), event[3], event[2], version=core.version)
            self._drain_tls()
        except QuicTlsBridgeError as error:
            reason = error.reason_phrase.encode()
            core.close(error.error_code, int(error.frame_type), reason)
            return error.error_code, reason
        return None

    def take_completed(self) -> str | None:
        """The name agreed on, empty for none, once the handshake is complete; else None."""
        completed: str | None = None
        while (told := self.next_event()) is not None:
            if isinstance(told, quic_events.HandshakeCompleted):
                completed = told.alpn_protocol or ""
        return completed

    def take_apart(self) -> None:
        """Its objects point to each other, and nothing else would free them soon."""
        bridge = self._tls
        if bridge is not None:
            bridge.tls.__dict__.clear()
            bridge.__dict__.clear()
        self.__dict__.clear()
