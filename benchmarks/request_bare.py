"""The second control of the request suite: a bare server that writes and flushes, with none of our code.

It counts requests by their bytes, writes as many bytes for each as we store, and gives all the same answer.
The event loop writes; with `ack` one thread flushes, and what arrives meanwhile is written and flushed
together. What is above it in our rows is the protocol, the broker and the log; what is below it is Python,
uvloop, the kernel and the disk.

python -m benchmarks.request_bare ack FILE REQUEST_BYTES STORED_BYTES ANSWER     prints its port
"""

import asyncio
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import uvloop

READ_BYTES = 256 * 1024


class Disk:
    """The file, and the transports that wait for it."""

    def __init__(self, path: Path, stored: bytes, answer: bytes, *, flushes: bool) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        self._position = 0
        self._stored = stored
        self._answer = answer
        self._flushes = flushes
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Transport] = []
        self._flushing: list[asyncio.Transport] = []
        self._orders: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._flush, daemon=True).start()

    def take(self, transport: asyncio.Transport, requests: int) -> None:
        if not self._flushes:
            self._write(requests)
            transport.write(self._answer * requests)
            return
        self._waiting += [transport] * requests
        if not self._flushing:
            self._begin()

    def _write(self, requests: int) -> None:
        self._position += os.pwrite(self._descriptor, self._stored * requests, self._position)

    def _begin(self) -> None:
        self._write(len(self._waiting))
        self._flushing, self._waiting = self._waiting, []
        self._orders.put(None)

    def _flush(self) -> None:
        while True:
            self._orders.get()
            os.fdatasync(self._descriptor)
            self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        answered, self._flushing = self._flushing, []
        if self._waiting:
            self._begin()
        for transport in answered:
            transport.write(self._answer)


class Connection(asyncio.BufferedProtocol):
    def __init__(self, disk: Disk, request_bytes: int, buffer: memoryview) -> None:
        self._disk = disk
        self._request_bytes = request_bytes
        self._buffer = buffer
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        requests, self._got = divmod(self._got + nbytes, self._request_bytes)
        if requests:
            self._disk.take(self._transport, requests)


async def serve(
    durability: str, path: str, request_bytes: str, stored_bytes: str, answer: str
) -> None:
    flushes = durability == "ack"
    disk = Disk(Path(path), bytes(int(stored_bytes)), bytes.fromhex(answer), flushes=flushes)
    buffer = memoryview(bytearray(READ_BYTES))
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(disk, int(request_bytes), buffer), "127.0.0.1", 0
    )
    print(f"bare {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(serve(*sys.argv[1:]))
