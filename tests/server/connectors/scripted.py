"""A connector whose broker is a list in memory: it can be told to fail, to hang, and to be slow."""

import asyncio

from penstock.broker.outside import Abilities, Failures, Messages, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.connectors.connector import Connector, Subscription
from penstock.server.connectors.settings import NatsRoute, Outside

TABLE = NatsRoute(stream="s", subject="s", timeout="10 s")


class Broker:
    """What all connections of a test share."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.opened = 0
        self.closed = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.acks = asyncio.Event()
        self.acks.set()
        self.refuses_connections: Exception | None = None
        self.fails: Exception | None = None
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue()


class ScriptedConnector(Connector):
    outages = (OSError,)
    refusals = (ValueError,)

    def __init__(self, broker: Broker) -> None:
        super().__init__(TABLE, {})
        self._broker = broker

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        return Abilities(fetch=True, ack=True)

    async def open(self) -> None:
        self._broker.opened += 1
        if self._broker.refuses_connections is not None:
            raise self._broker.refuses_connections

    async def close(self) -> None:
        self._broker.closed += 1

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        self._broker.batches.append(list(values))
        await self._broker.answers.wait()
        if self._broker.fails is not None:
            raise self._broker.fails
        return {row: "bad" for row, value in enumerate(values) if value == b"bad"}

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        return ScriptedSubscription(self._broker)


class ScriptedSubscription(Subscription):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ids: set[bytes] = set()
        self._closed = False

    @property
    def in_flight(self) -> int:
        return len(self.ids)

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        if self._broker.fails is not None:
            raise self._broker.fails
        messages = Messages()
        value = await self._broker.waiting.get()
        id = len(self.ids).to_bytes(2, "big")
        self.ids.add(id)
        messages.add(id, value)
        return messages

    async def ack(self, ids: list[bytes]) -> Failures:
        await self._broker.acks.wait()
        if self._closed:
            raise OSError("closed")
        unknown = {row: "msg not found" for row, id in enumerate(ids) if id not in self.ids}
        self.ids.difference_update(ids)
        return unknown

    async def close(self) -> None:
        self._closed = True
        self._broker.closed += 1
