"""AMQP 0.9.1 (RabbitMQ), by aio-pika. Needs the extra `amqp`.

    WRITE   a publish, persistent, to `exchange` with `routing_key` (by default that of the queue); accepted
            when the server confirms it. A message that no queue takes is refused
    read    a consumer on `queue`, with a channel of its own and `prefetch` messages at most
    ACK     basic.ack. NACK: basic.nack, back into the queue. Neither has an answer in AMQP: the result
            says that the server was told
    TX      tx.select on a channel of the transaction's own
    id      u32 of the subscription, u64 delivery tag: a redelivery has another one

No FETCH.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.connection import make_url
from aio_pika.exceptions import DeliveryError, PublishError
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ChannelInvalidStateError,
    ProbableAuthenticationError,
)

from penstock.broker.outside import UNKNOWN_ID, Abilities, Failures, Messages, ReaderTerms
from penstock.log.batch.view import Headers
from penstock.server.connectors.connector import (
    Connector,
    Outage,
    Refused,
    Subscription,
    Transaction,
    text_of_header,
    words,
)
from penstock.server.connectors.settings import AmqpRoute, Outside, login_of

# A connection that died in silence is found after about three of these.
HEARTBEAT_S: Final = 2
# Publishes that wait for their confirms are tasks of the library.
PUBLISHES_AT_ONCE: Final = 500
# Of a name in a table of AMQP.
NAME_BYTES: Final = 255

# What happens to connections is told by the route, within bounds.
for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class AmqpConnector(Connector):
    outages = (OSError, AMQPError, asyncio.TimeoutError, RuntimeError)
    refusals = (AuthenticationError, ProbableAuthenticationError, PublishError, ChannelClosed)

    def __init__(self, settings: Outside, environment: Mapping[str, str]) -> None:
        super().__init__(settings, environment)
        assert isinstance(settings, AmqpRoute)
        self.settings = settings
        self.connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None

    @classmethod
    def abilities(cls, settings: Outside) -> Abilities:
        return Abilities(ack=True, nack=True, transactions=True)

    @property
    def routing_key(self) -> str:
        settings = self.settings
        return settings.routing_key if settings.routing_key is not None else settings.queue or ""

    async def open(self) -> None:
        login = login_of(self.settings.url, self.password())
        options: dict[str, Any] = {"heartbeat": HEARTBEAT_S}
        if login.user is not None:
            options |= {"login": login.user, "password": login.password or ""}
        parts = aiormq_url(login.address)
        url = make_url(
            host=parts.host,
            port=parts.port or (5671 if parts.scheme == "amqps" else 5672),
            virtualhost=parts.path.removeprefix("/") or "/",
            ssl=parts.scheme == "amqps",
            **options,
        )
        # Not by aio_pika.connect: what cannot connect has to be closed too.
        self.connection = aio_pika.Connection(
            url,
            ssl_context=self.trust() if self.settings.has_tls else None,
            client_properties={"connection_name": "penstock"},
            heartbeat=HEARTBEAT_S,
        )
        await self.connection.connect(timeout=self.settings.timeout_s)
        channel = await self.connection.channel()
        await self.declare(channel)
        await channel.close()

    async def declare(self, channel: AbstractChannel) -> None:
        settings = self.settings
        if settings.declare and settings.queue is not None:
            queue = await channel.declare_queue(settings.queue, durable=True)
            if settings.exchange:
                await queue.bind(settings.exchange, self.routing_key)

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()

    async def exchange_on(self, channel: AbstractChannel) -> AbstractExchange:
        if not self.settings.exchange:
            return channel.default_exchange
        return await channel.get_exchange(self.settings.exchange)

    async def write(self, values: list[bytes], headers: list[Headers] | None) -> Failures:
        assert self.connection is not None
        if self._exchange is None or self._channel is None or self._channel.is_closed:
            self._channel = await self.connection.channel(on_return_raises=True)
            self._exchange = await self.exchange_on(self._channel)
        exchange = self._exchange
        failures: Failures = {}
        for first in range(0, len(values), PUBLISHES_AT_ONCE):
            rows = range(first, min(first + PUBLISHES_AT_ONCE, len(values)))
            outcomes = await asyncio.gather(
                *(self._publish(exchange, values, headers, row) for row in rows),
                return_exceptions=True,
            )
            for row, outcome in zip(rows, outcomes, strict=True):
                if isinstance(outcome, Refused):  # those of other sessions beside it are good
                    failures[row] = str(outcome)
                elif isinstance(outcome, PublishError | DeliveryError):
                    failures[row] = f"amqp: no queue takes a message with key {self.routing_key!r}"
                elif isinstance(outcome, BaseException):
                    raise outcome
        return failures

    async def _publish(
        self,
        exchange: AbstractExchange,
        values: list[bytes],
        headers: list[Headers] | None,
        row: int,
    ) -> None:
        await exchange.publish(message(values, headers, row), self.routing_key)

    async def begin(self, writer_id: str) -> Transaction:
        assert self.connection is not None
        channel = await self.connection.channel(publisher_confirms=False)
        await channel.transaction().select()
        return AmqpTransaction(channel)

    async def subscribe(self, terms: ReaderTerms) -> Subscription:
        assert self.connection is not None
        queue = self.settings.queue
        if queue is None:
            raise Refused("amqp: the route has no queue to read from")
        channel = await self.connection.channel()
        await channel.set_qos(prefetch_count=min(self.settings.prefetch, terms.max_in_flight))
        subscription = AmqpSubscription(channel)
        await subscription.open(queue)
        return subscription


def aiormq_url(address: str) -> Any:
    from yarl import URL

    return URL(address)


def _value(raw: bytes) -> str | bytearray:
    """Text, as everybody sends it; other bytes as AMQP's byte array."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return bytearray(raw)


def message(values: list[bytes], headers: list[Headers] | None, row: int) -> aio_pika.Message:
    found: dict[str, Any] = {}
    if headers is not None:
        found = {text_of_header(name): _value(one) for name, one in headers[row]}
        if any(len(name.encode()) > NAME_BYTES for name in found):
            raise Refused(f"amqp: the name of a header has more than {NAME_BYTES} bytes")
    return aio_pika.Message(
        values[row], headers=found, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
    )


class AmqpTransaction(Transaction):
    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._exchanges: dict[tuple[str, str], AbstractExchange] = {}
        # The server says so with the commit.
        self._returned = 0
        channel.return_callbacks.add(self._note_return)

    def _note_return(self, *_: object) -> None:
        self._returned += 1

    async def write(
        self, target: Connector, values: list[bytes], headers: list[Headers] | None
    ) -> Failures:
        assert isinstance(target, AmqpConnector)
        place = target.settings.exchange, target.routing_key
        if place not in self._exchanges:
            await target.declare(self._channel)
            self._exchanges[place] = await target.exchange_on(self._channel)
        for row in range(len(values)):
            await self._exchanges[place].publish(message(values, headers, row), target.routing_key)
        return {}

    async def commit(self) -> None:
        await (await self._channel.get_underlay_channel()).tx_commit()
        if self._returned:
            count, self._returned = self._returned, 0
            raise Refused(f"amqp: committed, but no queue takes {count} of its messages")

    async def rollback(self) -> None:
        await (await self._channel.get_underlay_channel()).tx_rollback()

    async def close(self) -> None:
        await self._channel.close()


class AmqpSubscription(Subscription):
    """The server sends up to `prefetch` messages ahead: those that wait here are no more than that."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._name = secrets.token_bytes(4)
        self._came: deque[tuple[bytes, bytes]] = deque()
        self._waiting: dict[bytes, int] = {}
        self._woken = asyncio.Event()
        self._over: BaseException | None = None

    async def open(self, queue: str) -> None:
        underlay = await self._channel.get_underlay_channel()
        self._channel.close_callbacks.add(self._closed)
        await underlay.basic_consume(queue, self._take)

    def _closed(self, _: object, error: BaseException | None) -> None:
        self._over = error or ChannelInvalidStateError("the channel was closed")
        self._woken.set()

    async def _take(self, delivered: Any) -> None:
        tag: int = delivered.delivery.delivery_tag
        self._came.append((self._name + tag.to_bytes(8, "big"), delivered.body))
        self._woken.set()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def fetch(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        messages = Messages()
        if not self._came and self._over is None:
            self._woken.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                return messages
        if self._over is not None:
            raise Outage(f"amqp: {words(self._over)}")
        size = 0
        while self._came and len(messages) < most and (not len(messages) or size < max_bytes):
            id, value = self._came.popleft()
            size += len(value)
            self._waiting[id] = int.from_bytes(id[4:], "big")
            messages.add(id, value)
        return messages

    async def ack(self, ids: list[bytes]) -> Failures:
        return await self._settle(ids, good=True)

    async def nack(self, ids: list[bytes]) -> Failures:
        return await self._settle(ids, good=False)

    async def _settle(self, ids: list[bytes], *, good: bool) -> Failures:
        failures: Failures = {}
        underlay = await self._channel.get_underlay_channel()
        tags: list[int] = []
        for row, id in enumerate(ids):
            tag = self._waiting.pop(id, None)
            if tag is None:
                failures[row] = UNKNOWN_ID
            else:
                tags.append(tag)
        for tag in tags:
            if good:
                await underlay.basic_ack(tag, wait=tag == tags[-1])
            else:
                await underlay.basic_nack(tag, requeue=True, wait=tag == tags[-1])
        return failures

    async def close(self) -> None:
        """The server gives what is in flight to the next reader."""
        self._channel.close_callbacks.discard(self._closed)
        await self._channel.close()


CONNECTOR: Final = AmqpConnector
