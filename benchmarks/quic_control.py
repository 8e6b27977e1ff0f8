"""The control of the quic suite where no Rust is: qh3's own server, and a client on qh3's core as the load.

python -m benchmarks.quic_control serve              prints its port
python -m benchmarks.quic_control send PORT MB       one stream after the line "sink"; prints MB/s
python -m benchmarks.quic_control latency PORT N     64 bytes there and back; prints microseconds
python -m benchmarks.quic_control writes PORT N      N messages of 1 KiB of Fujin; prints MB/s
python -m benchmarks.quic_control tcp PORT SECONDS   the same over TCP; prints p50 and p99 in microseconds
"""

import asyncio
import select
import socket
import ssl
import sys
import time
from typing import Any

from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import serve as qh3_serve
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import QuicEvent, StreamDataReceived

from penstock.quic.udp import UdpSocket
from penstock.server.net.quic.certificates import self_signed
from penstock.wire.fujin.commands import CONNECT_WRITER
from penstock.wire.fujin.writing import encode_write

WINDOW = 4 * 1024 * 1024
# What the client keeps queued: enough that the network never waits.
AHEAD = 2 * 1024 * 1024
CHUNK = bytes(256 * 1024)
MESSAGE = bytes(1024)
# Of a WRITE that was accepted: opcode, cid, 0.
RESULT_BYTES = 6


class _Bare(QuicConnectionProtocol):
    drops = False

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            if event.data == b"sink\n":
                self.drops = True
                self._quic.send_stream_data(event.stream_id, event.data)
            elif not self.drops or event.end_stream:
                data = b"" if self.drops else event.data
                self._quic.send_stream_data(event.stream_id, data, event.end_stream)
            self.transmit()


async def _serve() -> None:
    certificate = self_signed(time.time())
    configuration = QuicConfiguration(is_client=False, max_data=WINDOW, max_stream_data=1024 * 1024)
    configuration.load_cert_chain(certificate.chain, certificate.key)
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("127.0.0.1", 0))
    port = found.getsockname()[1]
    found.close()
    await qh3_serve("127.0.0.1", port, configuration=configuration, create_protocol=_Bare)
    print(f"qh3 {port}", flush=True)
    await asyncio.Event().wait()


class Client:
    """One connection, driven by hand with joined datagrams, so that it is quicker than any server here."""

    def __init__(self, port: int, application: str | None = None) -> None:
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=None if application is None else [application],
            verify_mode=ssl.CERT_NONE,
            server_name="localhost",
            max_datagram_size=1452,
            max_data=WINDOW,
        )
        self.quic: Any = QuicConnection(configuration=configuration)
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        self._udp = UdpSocket(bound)
        self._address = ("127.0.0.1", port)
        self.received = 0
        self.finished = False
        self.quic.connect(self._address, time.monotonic())
        while not self.quic._handshake_confirmed:
            self.step()

    def step(self) -> None:
        now = time.monotonic()
        while (found := self._udp.receive()) is not None:
            self.quic.receive_gro_buffer(found[0], found[1], self._address, now)
        timer = self.quic.get_timer()
        if timer is not None and timer <= now:
            self.quic.handle_timer(now)
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                self.received += len(event.data)
                self.finished = self.finished or event.end_stream
        self._udp.flush()
        if not self._udp.unsent:
            out = [data for data, _ in self.quic.datagrams_to_send(now)]
            self._udp.send(out, self._address)
        timer = self.quic.get_timer()
        wait = 0.05 if timer is None else min(max(timer - time.monotonic(), 0.0), 0.05)
        socket_ = self._udp.socket
        select.select([socket_], [socket_] if self._udp.unsent else [], [], wait)

    def send(self, megabytes: int) -> float:
        stream = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream, b"sink\n")
        while self.received < 5:
            self.step()
        total, sent, begin = megabytes * 1_000_000, 0, time.perf_counter()
        while sent < total:
            while sent < total and self.quic.get_send_buffer_size(stream) < AHEAD:
                self.quic.send_stream_data(stream, CHUNK)
                sent += len(CHUNK)
            self.step()
        self.quic.send_stream_data(stream, b"", True)
        while not self.finished:
            self.step()
        return sent / 1e6 / (time.perf_counter() - begin)

    def writes(self, count: int) -> float:
        stream = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream, bytes([CONNECT_WRITER, 0, 0, 0, 0]))
        block = b"".join([encode_write(cid, b"bench", MESSAGE, None) for cid in range(64)])
        sent, begin = 0, time.perf_counter()
        while sent < count:
            while sent < count and self.quic.get_send_buffer_size(stream) < AHEAD:
                self.quic.send_stream_data(stream, block)
                sent += 64
            self.step()
        while self.received < sent * RESULT_BYTES:
            self.step()
        return sent * len(MESSAGE) / 1e6 / (time.perf_counter() - begin)

    def latency(self, rounds: int) -> list[float]:
        stream = self.quic.get_next_available_stream_id()
        found = []
        for _ in range(rounds):
            wanted = self.received + 64
            begin = time.perf_counter()
            self.quic.send_stream_data(stream, bytes(64))
            while self.received < wanted:
                self.step()
            found.append((time.perf_counter() - begin) * 1e6)
        return sorted(found)


def tcp_latency(port: int, seconds: float) -> list[float]:
    found = []
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            begin = time.perf_counter()
            peer.sendall(bytes(64))
            peer.recv(64, socket.MSG_WAITALL)
            found.append((time.perf_counter() - begin) * 1e6)
    return sorted(found)


def main(words: list[str]) -> None:
    if words[0] == "serve":
        asyncio.run(_serve())
    elif words[0] == "send":
        print(f"{Client(int(words[1])).send(int(words[2])):.1f} MB/s")
    elif words[0] == "writes":
        print(f"{Client(int(words[1]), 'fujin').writes(int(words[2])):.1f} MB/s")
    else:
        port, size = int(words[1]), float(words[2])
        found = tcp_latency(port, size) if words[0] == "tcp" else Client(port).latency(int(size))
        print(f"p50 {found[len(found) // 2]:.0f} p99 {found[len(found) * 99 // 100]:.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
