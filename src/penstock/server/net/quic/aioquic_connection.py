"""aioquic's connection with our windows and our limits. One of two modules that know this library's inside;
the other is aioquic_link.py, which drives it. Of a server's side only.

The library doubles its windows as bytes arrive. Here they follow what was taken: a window is always as
large as in the settings, and stands still while its stream is paused.
"""

from typing import Any

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
)
from aioquic.quic.packet import QuicFrameType, encode_quic_retry
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from penstock.quic.events import ID_BYTES, VERSION_1
from penstock.server.net.quic.hello import watch_hello
from penstock.server.net.quic.packets import LongHeader
from penstock.server.net.quic.port import Certificate, CertificateRefused, EngineSettings

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


class ReceiveWindow(Limit):
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


class AioquicConnection(QuicConnection):
    """`taken`: bytes that were passed on, by stream."""

    settings: EngineSettings
    taken: dict[int, int]

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        watch_hello(self.tls, tls, self.settings.choose)

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if not stream.max_stream_data_local:  # a stream of ours in one direction
            return
        taken = self.taken.get(stream.stream_id, 0)
        window = told_window(taken, self.settings.stream_window_bytes)
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

    def limit(self) -> ReceiveWindow:
        """Puts our limits in the place of the library's. Returns the window of the connection."""
        window = ReceiveWindow(self.settings.connection_window_bytes)
        self._local_max_data = window
        for limit in (self._local_max_streams_bidi, self._local_max_streams_uni):
            limit.value = limit.sent = self.settings.streams
        return window
