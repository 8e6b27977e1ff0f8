"""A client for Fujin servers, ours or not: writers with transactions, subscriptions, consumers.

    async with FujinClient("127.0.0.1:4848", trust=QuicTrust(ca="quic-certificate.pem")) as client:
        async with client.writer() as writer:
            await writer.write("orders", b"one", headers=[("kind", b"test")])
        async with await client.subscribe("orders") as subscription:
            async for batch in subscription:
                ...

Fujin has no login: who the client is, the server's configuration says. Writers share one connection,
readers have others, at most `reader_connections`, so that a slow one holds up nothing else.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar

from penstock.client.blocking import BlockingFace
from penstock.client.fujin.connection import FujinConnection
from penstock.client.fujin.reader import Consumer, Reader, Subscription
from penstock.client.fujin.writer import Writer
from penstock.client.quic.trust import QuicTrust
from penstock.client.settings import ClientSettings
from penstock.client.tally import Tally

DEFAULT_READER_CONNECTIONS: Final = 8

Kind = TypeVar("Kind", bound=Reader)


class FujinClient:
    """Use it from one event loop; `blocking` wraps it for use without one.

    `write_headers`: False for servers that know no headers, such as those of Go. `literal_outcomes`: True
    for servers whose results of ACK are as in the table of the document.
    """

    def __init__(
        self,
        server: str,
        *,
        trust: QuicTrust | None = None,
        settings: ClientSettings | None = None,
        write_headers: bool = True,
        literal_outcomes: bool = False,
        reader_connections: int = DEFAULT_READER_CONNECTIONS,
    ) -> None:
        if reader_connections < 1:
            raise ValueError("reader_connections is at least 1")
        self.settings = settings or ClientSettings()
        self._make: Callable[[], FujinConnection] = lambda: FujinConnection(
            server, self.settings, trust or QuicTrust(), literal_outcomes
        )
        self._write_headers = write_headers
        self._writing = self._make()
        self._reading: list[FujinConnection] = []
        self._reader_connections = reader_connections
        self._opening = asyncio.Lock()
        self.tally = Tally()

    @classmethod
    def blocking(cls, server: str, **options: object) -> BlockingFace:
        return BlockingFace(cls(server, **options))  # type: ignore[arg-type]  # of __init__

    async def __aenter__(self) -> "FujinClient":
        await self._writing.keeping.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in (self._writing, *self._reading)))

    @property
    def reconnects(self) -> int:
        return sum(one.keeping.reconnects for one in (self._writing, *self._reading))

    def writer(self, id: int | str | None = None) -> Writer:
        """A session for messages. `id`: of transactions at brokers that want one."""
        return Writer(self._writing, id, self._write_headers, self.tally)

    async def subscribe(self, topic: str, *, auto_commit: bool = True) -> Subscription:
        """Messages are pushed as they come. Without auto commit, acknowledge them."""
        return await self._reader(Subscription, topic, auto_commit)

    async def consumer(self, topic: str, *, auto_commit: bool = True) -> Consumer:
        """Messages come when they are fetched. Without auto commit, acknowledge them."""
        return await self._reader(Consumer, topic, auto_commit)

    async def _reader(self, kind: type[Kind], topic: str, auto_commit: bool) -> Kind:
        reader = kind(await self._for_reader(), topic, auto_commit)
        await reader.open()
        return reader

    async def _for_reader(self) -> FujinConnection:
        async with self._opening:
            pool = self._reading
            free = min(pool, key=lambda one: len(one.sessions), default=None)
            if free is not None and (not free.sessions or len(pool) >= self._reader_connections):
                return free
            made = self._make()
            await made.keeping.open()
            pool.append(made)
            return made


def connect_fujin(server: str, **options: object) -> BlockingFace:
    """`with connect_fujin("127.0.0.1:4848") as client: ...`; the options of FujinClient."""
    return FujinClient.blocking(server, **options)
