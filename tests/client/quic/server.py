"""A QUIC server that is not ours, for the clients: aioquic's, with a script for each protocol.

A script is a function of the stream and of all that it has brought so far; it returns how much of that it
has used. Streams of its own it opens with `open`. `pem`: a file with a certificate and its key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import (
    ConnectionTerminated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
)
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

Script = Callable[["Foreign", int, bytes, bool], int]


class Foreign(QuicConnectionProtocol):
    """One connection."""

    script: ClassVar[Script]
    made: "ClassVar[list[Foreign]]"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.held: dict[int, bytes] = {}
        self.stopped: list[int] = []
        self.closed: ConnectionTerminated | None = None
        self.changed = asyncio.Event()
        self.made.append(self)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            held = self.held.get(event.stream_id, b"") + event.data
            used = type(self).script(self, event.stream_id, held, event.end_stream)
            self.held[event.stream_id] = held[used:]
        elif isinstance(event, StopSendingReceived):
            self.stopped.append(event.stream_id)
        elif isinstance(event, ConnectionTerminated):
            self.closed = event
        self.changed.set()

    def send(self, stream: int, data: bytes, fin: bool = False) -> None:
        self._quic.send_stream_data(stream, data, fin)
        self.transmit()

    def open(self, data: bytes, *, unidirectional: bool, fin: bool = False) -> int:
        stream = self._quic.get_next_available_stream_id(is_unidirectional=unidirectional)
        self.send(stream, data, fin)
        return stream


class ForeignServer:
    def __init__(self, port: int, made: list[Foreign]) -> None:
        self.address = f"127.0.0.1:{port}"
        self.connections = made


@asynccontextmanager
async def foreign_server(
    pem: str, script: Script, applications: list[str] | None = None, **options: Any
) -> AsyncIterator[ForeignServer]:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=applications, **options)
    content = Path(pem).read_bytes()
    chain = load_pem_x509_certificates(content)
    configuration.certificate, configuration.certificate_chain = chain[0], chain[1:]
    configuration.private_key = load_pem_private_key(content, None)
    made: list[Foreign] = []
    kind = type("Scripted", (Foreign,), {"script": script, "made": made})
    server: Any = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=kind)
    try:
        yield ForeignServer(server._transport.get_extra_info("sockname")[1], made)
    finally:
        server.close()
