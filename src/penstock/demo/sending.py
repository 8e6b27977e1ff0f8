"""The load on its way: topics and schemas are made, and every event is sent by the client of its protocol,
over real sockets, and is durable when `send` returns.

Events of one topic and one protocol keep their order. Nothing is sent again here: what a broken connection
leaves open is an error of the caller's.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.client.blipmq import BlipMQClient
from penstock.client.felix import FelixClient, QuicTrust
from penstock.client.flymq import FlyMQClient
from penstock.client.fujin import FujinClient
from penstock.client.rustlog import RustLogClient
from penstock.demo.events import ALERTS, CLICKS, ORDERS, TELEMETRY, Event

PARTITIONS: Final = {ORDERS: 2, CLICKS: 2, TELEMETRY: 1, ALERTS: 1}
SCHEMAS: Final = Path(__file__).with_name("project") / "schemas"
# Of the clicks that come by Fujin, which has headers.
HEADERS: Final = (("site", b"shop"),)
# RustLog writes each byte as a number, and a request has a limit.
RUSTLOG_RUN: Final = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Where the broker listens, as host:port; `trust`: of its QUIC certificate."""

    tcp: str
    udp: str
    trust: QuicTrust = field(default_factory=QuicTrust)


async def prepare(place: Place) -> None:
    """Makes topics and schemas; what is there already stays."""
    async with FlyMQClient(place.tcp) as client:
        there = set(await client.list_topics())
        for topic, partitions in PARTITIONS.items():
            if topic not in there:
                await client.create_topic(topic, partitions)
        for path in sorted(SCHEMAS.iterdir()):
            await client.register_schema(path.stem, path.read_bytes())


Send = Callable[[str, Sequence[Event]], Awaitable[None]]


class Sender:
    """Five clients, connected."""

    def __init__(
        self,
        blipmq: BlipMQClient,
        flymq: FlyMQClient,
        rustlog: RustLogClient,
        felix: FelixClient,
        fujin: FujinClient,
    ) -> None:
        self._blipmq = blipmq
        self._flymq = flymq
        self._rustlog = rustlog
        self._felix = felix
        self._fujin = fujin
        self._ways: dict[str, Send] = {
            "blipmq": self._by_blipmq,
            "flymq": self._by_flymq,
            "rustlog": self._by_rustlog,
            "felix": self._by_felix,
            "fujin": self._by_fujin,
        }

    async def send(self, events: Sequence[Event]) -> None:
        """All protocols at the same time. Raises ClientError."""
        ways: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in events:
            ways[event.protocol, event.topic].append(event)
        sending = [self._ways[protocol](topic, found) for (protocol, topic), found in ways.items()]
        await asyncio.gather(*sending)

    async def _by_blipmq(self, topic: str, events: Sequence[Event]) -> None:
        await self._blipmq.publish_many(topic, _values(events))
        await self._blipmq.flush()

    async def _by_flymq(self, topic: str, events: Sequence[Event]) -> None:
        """A key decides on the partition."""
        keys = [event.key for event in events]
        await self._flymq.produce_many(topic, _values(events), keys=keys)

    async def _by_rustlog(self, topic: str, events: Sequence[Event]) -> None:
        """Its client names the partition: by turns."""
        values = _values(events)
        runs = [values[n : n + RUSTLOG_RUN] for n in range(0, len(values), RUSTLOG_RUN)]
        for number, run in enumerate(runs):
            await self._rustlog.produce(topic, number % PARTITIONS[topic], run)

    async def _by_felix(self, topic: str, events: Sequence[Event]) -> None:
        await self._felix.publish_many(topic, _values(events))

    async def _by_fujin(self, topic: str, events: Sequence[Event]) -> None:
        async with self._fujin.writer() as writer:
            await writer.write_many(topic, _values(events), HEADERS)


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[Sender]:
    """Raises ClientError."""
    async with AsyncExitStack() as stack:
        yield Sender(
            await stack.enter_async_context(BlipMQClient(place.tcp)),
            await stack.enter_async_context(FlyMQClient(place.tcp)),
            await stack.enter_async_context(RustLogClient(place.tcp)),
            await stack.enter_async_context(FelixClient(place.udp, trust=place.trust)),
            await stack.enter_async_context(FujinClient(place.udp, trust=place.trust)),
        )


def _values(events: Sequence[Event]) -> list[bytes]:
    return [event.value for event in events]
