"""What the Fujin client leaves behind: transactions that are lost, requests that are cancelled."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from client.peer import Waits, run
from client.quic.away import move_away
from kit.live_server import LiveServer

from penstock.client.errors import ConnectFailed, Refused
from penstock.client.fujin import FujinClient, QuicTrust, Subscription, Writer

ROUTE = '{ shared = { topic = "shared-work", group = "team", start = "earliest" } }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"fujin.auto_create": "true", "fujin.routes": ROUTE}
    with LiveServer(tmp_path_factory.mktemp("fujin-ends"), settings) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def client_of(server: LiveServer, **options: Any) -> FujinClient:
    chosen = {"trust": QuicTrust(insecure=True), **options}
    return FujinClient(f"127.0.0.1:{server.port('udp')}", **chosen)


def lose(client: FujinClient) -> None:
    line = client._writing.keeping.live
    assert line is not None
    line.abort("of the test")


async def take(subscription: Subscription, count: int) -> list[bytes]:
    return [value async for batch in subscription.batches(limit=count) for value in batch.values]


def test_nothing_is_written_outside_of_a_transaction_that_was_lost(
    server: LiveServer, topic: str
) -> None:
    """Neither by those that swallow the first error; the next transaction is a good one."""

    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            subscription = await client.subscribe(topic)
            with pytest.raises(Refused, match="its connection was lost"):
                async with writer.transaction():
                    await writer.write(topic, b"staged")
                    lose(client)
                    for value in (b"outside", b"outside too"):
                        with pytest.raises(Refused, match="its connection was lost"):
                            await writer.write(topic, value)
            async with writer.transaction():
                await writer.write(topic, b"inside")
            await writer.write(topic, b"after")
            assert await take(subscription, 2) == [b"inside", b"after"]

    run(work())


def test_an_error_in_a_transaction_that_was_lost_is_the_one_that_is_raised(
    server: LiveServer, topic: str
) -> None:
    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            with pytest.raises(KeyError):
                async with writer.transaction():
                    lose(client)
                    raise KeyError
            await writer.begin()
            lose(client)
            await writer.begin()
            await writer.rollback()

    run(work())


async def _begin(writer: Writer, topic: str) -> None:
    await writer.begin()


async def _commit(writer: Writer, topic: str) -> None:
    await writer.commit()


@pytest.mark.parametrize("cancelled", [_begin, _commit])
def test_a_cancelled_request_leaves_no_transaction_open(
    server: LiveServer, topic: str, cancelled: Any
) -> None:
    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            subscription = await client.subscribe(topic)
            await writer.write(topic, b"before")
            if cancelled is _commit:
                await writer.begin()
                await writer.write(topic, b"staged")
            task = asyncio.ensure_future(cancelled(writer, topic))
            while not writer._due:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await writer.write(topic, b"after")
            expected = [b"before", *([b"staged"] if cancelled is _commit else []), b"after"]
            assert await take(subscription, len(expected)) == expected

    run(work())


def test_a_reader_whose_opening_is_cancelled_gets_nothing(server: LiveServer) -> None:
    """The message of its group goes to the next reader at once."""

    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            opening = asyncio.ensure_future(client.subscribe("shared", auto_commit=False))
            while not any(one.sessions for one in client._reading):
                await asyncio.sleep(0)
            session = client._reading[0].sessions[0]
            while session.talk is None:
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            assert client._reading[0].sessions == []
            await writer.write("shared", b"work")
            async with await client.subscribe("shared", auto_commit=False) as subscription:
                assert await take(subscription, 1) == [b"work"]

    run(work())


@pytest.mark.parametrize("push", [True, False])
def test_readers_are_told_when_the_client_gives_up(server: LiveServer, push: bool) -> None:
    async def work() -> None:
        async with client_of(server, settings=Waits().settings(attempts=2)) as client:
            reader = await (client.subscribe("t") if push else client.consumer("t"))
            reading = asyncio.ensure_future(anext(aiter(reader)))
            await move_away(client._reading[0].keeping)
            with pytest.raises(ConnectFailed):
                await reading

    run(work())
