"""The server of the quic suite: our listeners, connections and streams, and nothing that stores.

    python -m benchmarks.quic_server     prints the port of bare streams, that of a TCP echo on the same
                                         event loop, and that of Felix and Fujin without a log

What a bare stream begins with says what it is, as the peers in tests/peers ask for it:

    sink\n            the rest is dropped
    push N\n          N bytes on a stream of the server
    answer R A\n      one byte, then A bytes for every R bytes that come
    lost\n            the packets that were lost on their way from the server since its start
    else              an echo
"""

import asyncio
import socket
import time
from typing import Any

import uvloop

from benchmarks.quic_no_log import felix, fujin
from benchmarks.request_echo import Echo
from penstock.server.memory import settle_allocator, settle_collector
from penstock.server.net.address import Address
from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.server.net.quic.certificates import self_signed
from penstock.server.net.quic.listener import QuicListener
from penstock.server.net.quic.port import EngineSettings
from penstock.server.net.quic.python_engine import PythonEngine
from penstock.server.protocols import ProtocolSection, QuicRow
from penstock.sessions.streams import QuicConnection, QuicStream

PUSHED = bytes(64 * 1024)
FUJIN_APPLICATION = "fujin"
ENGINES: list[PythonEngine] = []


class BareStream:
    protocol = "bare"

    def __init__(self, stream: QuicStream, connection: QuicConnection) -> None:
        self._stream = stream
        self._connection = connection
        self._drops = False
        self._left = 0
        self._waiting: list[bytes] = []
        self._ends = False
        # Bytes of a request and of its answer; 0: an echo.
        self._request = self._answer = self._came = 0

    def receive(self, data: bytes) -> None:
        if self._drops:
            return
        if data == b"sink\n":
            self._drops = True
            self._stream.write(data)
        elif data.startswith(b"push "):
            self._push(int(data[5:]))
        elif data.startswith(b"answer "):
            self._request, self._answer = map(int, data.split()[1:])
            self._stream.write(b".")
        elif data == b"lost\n":
            self._stream.write(b"%d\n" % sum(one.statistics().lost_packets for one in ENGINES))
            self._stream.finish()
        else:
            answer = self._answers(len(data)) if self._request else data
            if answer:
                self._waiting.append(answer)
                self.writable()

    def _answers(self, size: int) -> bytes:
        whole, self._came = divmod(self._came + size, self._request)
        return bytes(whole * self._answer)

    def _push(self, size: int) -> None:
        def make(stream: QuicStream) -> "BareStream":
            return BareStream(stream, self._connection)

        pushing = self._connection.open_stream(make, unidirectional=True)
        assert pushing is not None
        pushing.begin_push(size)

    def begin_push(self, size: int) -> None:
        self._left = size
        self.writable()

    def writable(self) -> None:
        while self._waiting and not self._stream.congested:
            self._stream.write(self._waiting.pop(0))
        if self._waiting:
            self._stream.pause("answer")
            return
        self._stream.resume("answer")
        if self._ends:
            self._stream.finish()
        if not self._left:
            return
        while self._left and not self._stream.congested:
            size = min(self._left, len(PUSHED))
            self._stream.write(PUSHED[:size])
            self._left -= size
        if not self._left:
            self._stream.finish()

    def end_of_input(self) -> None:
        self._ends = True
        self.writable()

    def peer_reset(self, code: int) -> None:
        self._stream.close()

    def peer_stopped(self, code: int) -> None:
        self._left = 0

    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool:
        return False

    def held_bytes(self) -> int:
        return sum(map(len, self._waiting))


class BareConnection:
    protocol = "bare"

    def __init__(self, connection: QuicConnection) -> None:
        self._connection = connection
        connection.logged_in()

    def accept(self, stream: QuicStream) -> BareStream:
        return BareStream(stream, self._connection)

    def streams_allowed(self) -> None: ...
    def closed(self) -> None: ...
    def drain(self) -> None: ...
    def busy(self) -> bool:
        return False


def _row(name: str, application: str | None = None) -> QuicRow:
    def connection(port: Any, quic: Any, terms: Any) -> Any:
        raise AssertionError("there is no broker here")

    return QuicRow(
        name=name,
        title=name,
        frame_size=lambda buffer, start, end: 0,
        application=application,
        connection=connection,
        listeners={},
        section=ProtocolSection,
    )


def _engine(bound: socket.socket, settings: EngineSettings) -> PythonEngine:
    engine = PythonEngine(bound, settings)
    ENGINES.append(engine)
    return engine


async def serve() -> None:
    loop = asyncio.get_running_loop()
    hub = Hub(loop, ConnectionLimits(), {})
    settings = EngineSettings(choose=lambda offered: None, certificate=self_signed(time.time()))
    bare = QuicListener("bare", Address("127.0.0.1", 0), [_row("bare")])
    bare.listen(hub, _engine, settings, {"bare": BareConnection})
    both = QuicListener(
        "udp", Address("127.0.0.1", 0), [_row("fujin", FUJIN_APPLICATION), _row("felix")]
    )
    both.listen(hub, _engine, settings, {"felix": felix(), "fujin": fujin()})
    beside = await loop.create_server(Echo, "127.0.0.1", 0)
    tcp = beside.sockets[0].getsockname()[1]
    print(f"quic {bare.address.port} {tcp} {both.address.port}", flush=True)
    await beside.serve_forever()


if __name__ == "__main__":
    settle_allocator()
    settle_collector()
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(serve())
