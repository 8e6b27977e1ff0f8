"""Felix's and Fujin's clients in bad conditions: a network that drops, doubles and reorders 5 percent, slow
subscribers, and subscribers that vanish. Nothing is lost or doubled, and memory stays flat.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from client.peer import run
from e2e.bad_network import BadNetwork
from kit.live_server import LiveServer, ServerProcess

from penstock.client.felix import FelixClient, QuicTrust
from penstock.client.felix import Subscription as FelixSubscription
from penstock.client.fujin import FujinClient
from penstock.client.fujin import Subscription as FujinSubscription
from penstock.client.quic.line import QuicLine

ANYBODY = QuicTrust(insecure=True)
SETTINGS = {"felix.auto_create": "true", "fujin.auto_create": "true"}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("quic-clients"), SETTINGS) as running:
        yield running


async def take(subscription: FelixSubscription | FujinSubscription, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for batch in subscription.batches(limit=count):
        found += batch.values
    return found


VALUES = [b"%d " % number + b"x" * (number % 700) for number in range(5_000)]


def test_felix_over_a_bad_network(server: LiveServer) -> None:
    async def work(publishing: int, reading: int) -> None:
        stream = "bad/network/felix"
        async with (
            FelixClient(f"127.0.0.1:{publishing}", trust=ANYBODY) as publisher,
            FelixClient(f"127.0.0.1:{server.port('udp')}", trust=ANYBODY) as reader,
        ):
            # Only the events take the bad way: a shim knows one connection.
            reader._make = FelixClient(f"127.0.0.1:{reading}", trust=ANYBODY)._make
            subscription = await reader.subscribe(stream)
            got = asyncio.ensure_future(take(subscription, len(VALUES)))
            for first in range(0, len(VALUES), 250):
                await publisher.publish_many(stream, VALUES[first : first + 250])
            assert await got == VALUES
            assert publisher.reconnects == reader.reconnects == 0

    with ExitStack() as ways:
        one, two = (ways.enter_context(BadNetwork(server.port("udp"), seed)) for seed in (21, 22))
        run(work(one.port, two.port))
        assert min(one.fates.values()) > 10 and min(two.fates.values()) > 10


def test_fujin_over_a_bad_network(server: LiveServer) -> None:
    async def work(writing: int, reading: int) -> None:
        async with (
            FujinClient(f"127.0.0.1:{writing}", trust=ANYBODY) as client,
            FujinClient(f"127.0.0.1:{server.port('udp')}", trust=ANYBODY) as reader,
            client.writer() as writer,
        ):
            reader._make = FujinClient(f"127.0.0.1:{reading}", trust=ANYBODY)._make
            subscription = await reader.subscribe("bad-network", auto_commit=False)
            got: list[bytes] = []

            async def read() -> None:
                async for batch in subscription.batches(limit=len(VALUES)):
                    got.extend(batch.values)
                    assert all(one.failure is None for one in await subscription.ack(batch))

            task = asyncio.ensure_future(read())
            for first in range(0, len(VALUES), 250):
                await writer.write_many("bad-network", VALUES[first : first + 250])
            await task
            assert got == VALUES
            assert client.reconnects == reader.reconnects == 0

    with ExitStack() as ways:
        one, two = (ways.enter_context(BadNetwork(server.port("udp"), seed)) for seed in (31, 32))
        run(work(one.port, two.port))
        assert min(one.fates.values()) > 10 and min(two.fates.values()) > 10


# ---- slow and vanished subscribers -------------------------------------------------------------


def resident_bytes(process: int) -> int:
    """Of the kernel's page for it: the pages of its own memory."""
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


# Before memory is looked at, all windows, queues and caches of both sides are full; then comes as much
# again and more. `make soak` takes ten times as much.
FIRST_PARTS = 40
PARTS = 72
PART_BYTES = 1 * MIB
MESSAGE_BYTES = 1024
# What an allocator may add by chance; three times as much is published meanwhile.
ROOM_BYTES = 10 * MIB


@pytest.mark.parametrize("parts", [PARTS, pytest.param(10 * PARTS, marks=pytest.mark.soak)])
def test_slow_and_vanished_subscribers_cost_no_memory(tmp_path: Path, parts: int) -> None:
    """Subscribers of both protocols take nothing, and others are gone without a word, while far more is
    published than anything may hold. A quick one gets all of it meanwhile, the slow ones get it later."""
    count = PART_BYTES // MESSAGE_BYTES
    part = [bytes([number % 256]) * MESSAGE_BYTES for number in range(count)]
    topic = "slow/and/gone"
    settings = {**SETTINGS, "log.cache_bytes": "4 MiB", "fujin.ping_timeout": "300 s"}

    async def work(process: ServerProcess) -> None:
        address = f"127.0.0.1:{process.ports['udp']}"
        async with (
            FelixClient(address, trust=ANYBODY) as felix,
            FujinClient(address, trust=ANYBODY) as fujin,
            fujin.writer() as writer,
        ):
            vanished: list[QuicLine] = []
            slow = [await felix.subscribe(topic) for _ in range(2)]
            slow_fujin = await fujin.subscribe(topic, auto_commit=False)
            for gone in (
                await felix.subscribe(topic),
                await fujin.subscribe(topic, auto_commit=False),
            ):
                stream = gone._stream if isinstance(gone, FelixSubscription) else None
                talk = gone.talk if isinstance(gone, FujinSubscription) else None
                line = stream._line if stream is not None else talk.line if talk else None
                assert line is not None
                # No goodbye: its socket is read by nobody any more.
                asyncio.get_running_loop().remove_reader(line._udp.socket.fileno())
                vanished.append(line)
            quick = await felix.subscribe(topic)
            processes = (process.process.pid, os.getpid())
            before = [0, 0]
            seen = 0
            for number in range(parts):
                if number == FIRST_PARTS:
                    before = [resident_bytes(one) for one in processes]
                reading = asyncio.ensure_future(take(quick, count))
                await writer.write_many(topic, part)
                seen += len(await reading)
            assert seen == parts * count
            grown = [resident_bytes(one) - was for one, was in zip(processes, before, strict=True)]
            assert max(grown) < ROOM_BYTES, f"server and client have grown by {grown} bytes"
            late = await take(slow[0], 4 * len(part))
            assert late == part * 4
            batch = await anext(aiter(slow_fujin))
            assert batch.values[0] == part[0]
            for line in vanished:  # else the end would wait for them
                line._shut()

    with ServerProcess(tmp_path, settings) as process:
        run(work(process))
