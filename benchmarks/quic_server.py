"""The server of the quic suite: our listeners, connections and streams, with a protocol that stores
nothing.

    python -m benchmarks.quic_server     prints the port of QUIC and that of a TCP echo on the same
    event loop

A stream gives back its bytes. After the line "sink" it drops them, and after "push N" it sends N bytes on a
stream of its own: what the peers in tests/peers ask for.
"""

import asyncio
import time
from typing import Any

import uvloop

from benchmarks.request_echo import Echo
from penstock.server.net.address import Address
from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.server.net.quic.certificates import self_signed
from penstock.server.net.quic.listener import QuicListener
from penstock.server.net.quic.port import EngineSettings
from penstock.server.net.quic.python_engine import PythonEngine
from penstock.server.protocols import ProtocolSection, QuicRow
from penstock.sessions.streams import QuicConnection, QuicStream

PUSHED = bytes(64 * 1024)


class BareStream:
    protocol = "bare"

    def __init__(self, stream: QuicStream, connection: QuicConnection) -> None:
        self._stream = stream
        self._connection = connection
        self._drops = False
        self._left = 0
        self._waiting: list[bytes] = []
        self._ends = False

    def receive(self, data: bytes) -> None:
        if self._drops:
            return
        if data == b"sink\n":
            self._drops = True
            self._stream.write(data)
        elif data.startswith(b"push "):
            self._push(int(data[5:]))
        else:
            self._waiting.append(data)
            self.writable()

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


def _row() -> QuicRow:
    def connection(port: Any, quic: Any, terms: Any) -> Any:
        raise AssertionError("there is no broker here")

    return QuicRow(
        name="bare",
        title="Bare",
        frame_size=lambda buffer, start, end: 0,
        application=None,
        connection=connection,
        listeners={},
        section=ProtocolSection,
    )


async def serve() -> None:
    loop = asyncio.get_running_loop()
    hub = Hub(loop, ConnectionLimits(), {})
    listener = QuicListener("udp", Address("127.0.0.1", 0), [_row()])
    settings = EngineSettings(choose=lambda offered: None, certificate=self_signed(time.time()))
    listener.listen(hub, PythonEngine, settings, {"bare": BareConnection})
    beside = await loop.create_server(Echo, "127.0.0.1", 0)
    print(f"quic {listener.address.port} {beside.sockets[0].getsockname()[1]}", flush=True)
    await beside.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(serve())
