"""A proxy for TCP that can be cut: between two peers that must not notice it otherwise.

    with TcpProxy(lambda: target_port) as proxy:
        connect to proxy.port ...
        proxy.cut()         connections end, and new ones are ended at once: nobody is there
        proxy.hold()        nothing goes through, and no connection ends: a cable is pulled
        proxy.heal()        what was held goes through, and new connections too

One thread for all connections. Both ends are on the loopback interface.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from kit.limits import HANG_S

PIECE_BYTES = 1 << 16


class TcpProxy:
    """Listens from its making on, so that its port is known before that of the other side. `target`: the
    port to connect to, asked for each connection."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._refusing = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    async def _start(self) -> None:
        self._passing.set()
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # --- faults -----------------------------------------------------------------------------------

    def cut(self) -> None:
        self._run(self._cut())

    def hold(self) -> None:
        self._run(self._hold())

    def heal(self) -> None:
        self._run(self._heal())

    async def _cut(self) -> None:
        self._refusing = True
        self._abort()

    async def _hold(self) -> None:
        self._passing.clear()

    async def _heal(self) -> None:
        self._refusing = False
        self._passing.set()

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    # --- connections ------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            await self._passing.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            self._close(writer)
            return
        self._open.add(back)
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        finally:
            self._close(writer)
            self._close(back)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one end of them is gone, and then the other one."""
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._passing.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.close()
