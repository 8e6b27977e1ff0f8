"""QUIC peers on the event loop of a listener in the same process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kit.limits import HANG_S
from kit.quic_peer import LOOK_S, QuicPeer
from server.net.quic.bench import CERTIFICATE, ENGINES
from server.net.quic.echo.row import NAMED, PLAIN
from server.net.quic.echo.session import EchoConnection

from penstock.server.net.address import Address
from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.server.net.quic.listener import QuicListener
from penstock.server.net.quic.port import EngineSettings


class Driver:
    """Steps peers when their sockets or timers say so, and looks whether what a test waits for is there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._peers: list[QuicPeer] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def add(self, peer: QuicPeer) -> QuicPeer:
        self._peers.append(peer)
        self._loop.add_reader(peer.fileno(), self.step, peer)
        self.step(peer)
        return peer

    def step(self, peer: QuicPeer) -> None:
        if peer.fileno() >= 0:
            due = peer.step()
            if due is not None:
                self._loop.call_later(due, self.step, peer)
        self._look()

    def _look(self) -> None:
        for done, future in self._waiting:
            if not future.done() and done():
                future.set_result(None)

    async def until(self, done: Callable[[], bool]) -> None:
        """Everything that peers were told to send goes out first."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((done, future))
        for peer in self._peers:
            self.step(peer)
        deadline = self._loop.time() + HANG_S
        while not future.done():
            assert self._loop.time() < deadline, "hangs"
            await asyncio.wait([future], timeout=LOOK_S)
            self._look()

    def remove(self, peer: QuicPeer) -> None:
        self._loop.remove_reader(peer.fileno())
        self._peers.remove(peer)

    def close(self) -> None:
        for peer in list(self._peers):
            self.remove(peer)
            peer.vanish()


class Served:
    def __init__(self, hub: Hub, listener: QuicListener, driver: Driver) -> None:
        self.hub = hub
        self.listener = listener
        self.driver = driver

    async def connect(self, application: str | None = "echo", **options: Any) -> QuicPeer:
        names = None if application is None else [application]
        count = len(self.hub.connections)
        peer = self.driver.add(QuicPeer(self.listener.address.port, applications=names, **options))
        await self.driver.until(
            lambda: (
                peer.closed is not None or (peer.connected and len(self.hub.connections) > count)
            )
        )
        return peer

    async def ask(self, peer: QuicPeer, data: bytes, *, fin: bool = False) -> int:
        stream = peer.open()
        peer.send(stream, data, fin=fin)
        return stream


@asynccontextmanager
async def serving(
    limits: ConnectionLimits | None = None, engine: str = "python", **settings: Any
) -> AsyncIterator[Served]:
    hub = Hub(asyncio.get_running_loop(), limits or ConnectionLimits(), {})
    listener = QuicListener("udp", Address("127.0.0.1", 0), [NAMED, PLAIN])
    chosen = EngineSettings(choose=lambda offered: None, certificate=CERTIFICATE, **settings)

    def make(connection: Any) -> EchoConnection:
        return EchoConnection(None, connection, None)

    listener.listen(hub, ENGINES[engine], chosen, {"echo": make, "plain": make})
    driver = Driver()
    try:
        yield Served(hub, listener, driver)
    finally:
        driver.close()
        listener.shut()
