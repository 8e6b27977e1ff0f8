"""All five protocols with their clients, as one vocabulary: publish values to a topic, read so many of it.

A reader is opened before anything is published: some protocols have nothing older.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock.client.blipmq import BlipMQClient
from penstock.client.felix import FelixClient, QuicTrust
from penstock.client.flymq import FlyMQClient
from penstock.client.fujin import FujinClient
from penstock.client.rustlog import RustLogClient

Read = Callable[[int], Awaitable[list[bytes]]]
# RustLog writes each byte as a number: a megabyte takes four.
RUSTLOG_REQUEST_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Address:
    tcp: str
    udp: str
    trust: QuicTrust


class Blipmq:
    """QoS 0 for readers: at QoS 1 a slow test would get messages again."""

    def __init__(self, address: Address) -> None:
        self.client = BlipMQClient(address.tcp)

    async def publish(self, topic: str, values: list[bytes]) -> None:
        await self.client.publish_many(topic, values)
        await self.client.flush()

    async def open(self, topic: str) -> Read:
        subscription = await self.client.subscribe(topic, 0)

        async def read(count: int) -> list[bytes]:
            found: list[bytes] = []
            async for batch in subscription.batches(limit=count):
                found += batch.values
            return found

        return read


class Rustlog:
    def __init__(self, address: Address) -> None:
        self.client = RustLogClient(address.tcp)

    async def publish(self, topic: str, values: list[bytes]) -> None:
        part: list[bytes] = []
        for value in values:
            if part and sum(map(len, part)) + len(value) > RUSTLOG_REQUEST_BYTES:
                await self.client.produce(topic, 0, part)
                part = []
            part.append(value)
        await self.client.produce(topic, 0, part)

    async def open(self, topic: str) -> Read:
        offset = await self.client.end_offset(topic, 0)

        async def read(count: int) -> list[bytes]:
            nonlocal offset
            found: list[bytes] = []
            async for batch in self.client.consume(topic, 0, offset=offset):
                found += batch.values
                if len(found) >= count:
                    break
            offset += count
            return found[:count]

        return read


class Flymq:
    def __init__(self, address: Address) -> None:
        self.client = FlyMQClient(address.tcp)

    async def publish(self, topic: str, values: list[bytes]) -> None:
        await self.client.produce_many(topic, values)

    async def open(self, topic: str) -> Read:
        (ends,) = (await self.client.describe_topic(topic)).partitions
        offset = ends.newest

        async def read(count: int) -> list[bytes]:
            nonlocal offset
            found: list[bytes] = []
            while len(found) < count:
                batch = await self.client.fetch(topic, 0, offset, max_messages=count - len(found))
                offset = batch.next_offset
                found += batch.values
                if not batch.values:
                    await asyncio.sleep(0)
            return found

        return read


class Felix:
    def __init__(self, address: Address) -> None:
        self.client = FelixClient(address.udp, trust=address.trust)

    async def publish(self, topic: str, values: list[bytes]) -> None:
        await self.client.publish_many(topic, values)

    async def open(self, topic: str) -> Read:
        subscription = await self.client.subscribe(topic)

        async def read(count: int) -> list[bytes]:
            found: list[bytes] = []
            async for batch in subscription.batches(limit=count):
                found += batch.values
            return found

        return read


class Fujin:
    def __init__(self, address: Address) -> None:
        self.client = FujinClient(address.udp, trust=address.trust)

    async def publish(self, topic: str, values: list[bytes]) -> None:
        async with self.client.writer() as writer:
            await writer.write_many(topic, values)

    async def open(self, topic: str) -> Read:
        subscription = await self.client.subscribe(topic)

        async def read(count: int) -> list[bytes]:
            found: list[bytes] = []
            async for batch in subscription.batches(limit=count):
                found += batch.values
            return found

        return read


PROTOCOLS: dict[str, Callable[[Address], Any]] = {
    "blipmq": Blipmq,
    "rustlog": Rustlog,
    "flymq": Flymq,
    "felix": Felix,
    "fujin": Fujin,
}


@asynccontextmanager
async def meeting(address: Address) -> AsyncIterator[dict[str, Any]]:
    """A connected client of each protocol."""
    clients = {name: make(address) for name, make in PROTOCOLS.items()}
    opened: list[Any] = []
    try:
        for one in clients.values():
            await one.client.__aenter__()
            opened.append(one.client)
        yield clients
    finally:
        for client in opened:
            await client.close()
