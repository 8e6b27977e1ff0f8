"""The HTTP listener: uvicorn on sockets that are bound already, in the server's own loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Final

import uvicorn

from penstock.server.http.app import HttpApp
from penstock.server.http.protocol import HttpConnections, TimedProtocol

KEEP_ALIVE_S: Final = 30
# Answers take milliseconds; at a stop those that are not sent by then are cut off.
STOP_TIME_S: Final = 1


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Without uvicorn's signal handlers: the server has its own."""
        yield


class HttpListener:
    """uvicorn on sockets that are bound already, in the running loop."""

    def __init__(self, app: HttpApp, sockets: list[socket.socket], tls: ssl.SSLContext | None):
        # uvicorn has a line for each thing that a peer does wrong; ours are limited by address.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.connections = HttpConnections(app.peer_log)
        config = uvicorn.Config(
            app,
            http=partial(TimedProtocol, self.connections),  # type: ignore[arg-type]  # uvicorn only calls it
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIME_S,
        )
        config.load()
        config.ssl = tls
        self._sockets = sockets
        self._server = _Uvicorn(config)
        self._server.lifespan = config.lifespan_class(config)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.startup(sockets=self._sockets)
        self._ticking = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._server.should_exit = True
            await self._ticking
            await self._server.shutdown(sockets=self._sockets)
