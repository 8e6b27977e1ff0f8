"""The control row of the broker suite: the least that a server has to do with BlipMQ publishes.

A bare uvloop server: splits the frames with the compiled splitter, joins and checksums the messages of
a read and writes them with one writev, without a flush. A PING gets its PONG, so that a client knows
when everything before it is written. No login, no topics, no offsets, no limits.

    python -m benchmarks.broker_control FILE     prints its port
"""

import asyncio
import os
import sys
from typing import cast

import uvloop
from crc32c import crc32c

from penstock.log.batch.format import HEADER_SIZE
from penstock.server.memory import settle_allocator
from penstock.server.net.hub import READ_BUFFER_BYTES
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.split import Control, PublishRun, split_requests

HEADER = bytes(HEADER_SIZE)
# The file starts again here: the disk of a benchmark is not for control rows.
MAX_FILE_BYTES = 1024 * 1024 * 1024


class BareServer(asyncio.BufferedProtocol):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._view = memoryview(bytearray(READ_BUFFER_BYTES))
        self._rest = b""
        self._written = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        buffer = self._rest + bytes(self._view[:nbytes])
        operations, position, error = split_requests(buffer, 0, len(buffer))
        self._rest = buffer[position:]
        assert error is None, error
        parts: list[bytes] = []
        answers: list[bytes] = []
        for operation in operations:
            if isinstance(operation, PublishRun):
                body = b"".join(operation.values)
                crc32c(body, crc32c(HEADER))
                parts += (HEADER, body)
            elif isinstance(operation, Control):
                answers.append(wire.encode_pong(operation.correlation_id))
        if parts:
            self._write(parts)
        if answers:  # not before what they confirm is written
            self._transport.write(b"".join(answers))

    def _write(self, parts: list[bytes]) -> None:
        written = os.writev(self._descriptor, parts)
        assert written == sum(map(len, parts)), "a regular file takes all, or the disk is full"
        self._written += written
        if self._written > MAX_FILE_BYTES:
            # Emptied, not written over: pages that are in the cache already would cost it nothing.
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._written = 0


async def serve(path: str) -> None:
    # Else every read pays page faults for its buffers, which a process as large as a broker does not:
    # the control would be slow for a reason that is none.
    settle_allocator()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareServer(descriptor), "127.0.0.1", 0)
    print(f"control {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(serve(sys.argv[1]))
