"""What the Felix client says and leaves when connections are lost, given up, or requests are cancelled."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.peer import Waits, run
from client.quic.away import move_away
from client.quic.server import foreign_server
from kit.authority import Authority
from kit.live_server import LiveServer

from penstock.client.errors import ClientClosed, ConnectFailed, ConnectionLost
from penstock.client.felix import FelixClient, QuicTrust, Subscription
from penstock.client.felix.connection import PUBLISHES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"felix.auto_create": "true"}
    with LiveServer(tmp_path_factory.mktemp("felix-ends"), settings) as running:
        yield running


def client_of(server: LiveServer, **options: Any) -> FelixClient:
    chosen = {"trust": QuicTrust(insecure=True), **options}
    return FelixClient(f"127.0.0.1:{server.port('felix')}", **chosen)


async def take(subscription: Subscription, count: int) -> list[bytes]:
    return [value async for batch in subscription.batches(limit=count) for value in batch.values]


def test_a_flush_does_not_confirm_what_another_connection_has_lost(server: LiveServer) -> None:
    async def work() -> None:
        client = client_of(server)
        async with client:
            await client.send_many("t/n/flushed", [b"one", b"two"])
            await client.send_many("t/n/other", [b"three"])
            line = client._pool[0].keeping.live
            assert line is not None
            line.abort("of the test")
            await client.publish("t/n/flushed", b"on the next connection")
            with pytest.raises(ConnectionLost) as raised:
                await client.flush()
            assert raised.value.unconfirmed == 2
            assert client.tally.confirmed == 1
            await client.flush()  # told once

    run(work())


def test_subscriptions_are_told_when_the_client_gives_up(server: LiveServer) -> None:
    async def work() -> None:
        async with client_of(server, settings=Waits().settings(attempts=2)) as client:
            subscription = await client.subscribe("t/n/given-up")
            reading = asyncio.ensure_future(take(subscription, 1))
            await move_away(client._event_pool[0].keeping)
            with pytest.raises(ConnectFailed):
                await reading

    run(work())


def test_a_cancelled_subscribe_does_not_harm_the_next(server: LiveServer) -> None:
    """Its event stream comes while the next one waits for its own."""

    async def work() -> None:
        async with client_of(server, event_connections=1) as client:
            kept = await client.subscribe("t/n/kept")
            events = client._event_pool[0]
            for turns in range(12):
                cancelled = asyncio.ensure_future(client.subscribe("t/n/cancelled"))
                while events._hello is None:
                    await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled.cancel()
                next_one = await client.subscribe("t/n/next")
                await client.publish("t/n/next", b"value")
                assert await take(next_one, 1) == [b"value"]
                await next_one.close()
                (outcome,) = await asyncio.gather(cancelled, return_exceptions=True)
                if isinstance(outcome, Subscription):  # it was done before
                    await outcome.close()
            await client.publish("t/n/kept", b"value")
            assert await take(kept, 1) == [b"value"]
            assert client.reconnects == 0
            assert events.subscriptions == [kept]

    run(work())


def test_closing_ends_what_waits_for_an_answer(tmp_path: Path) -> None:
    """Of a server that gives none: it does not take until the time limit."""

    async def work() -> None:
        pem = Authority(tmp_path / "ca").server()
        async with foreign_server(pem, lambda peer, stream, data, fin: len(data)) as server:
            client = FelixClient(server.address, trust=QuicTrust(insecure=True))
            async with client:
                publishing = asyncio.ensure_future(client.publish("t/n/s", b"value"))
                control = await client._pool[0].control(PUBLISHES)
                while control.is_idle:
                    await asyncio.sleep(0)
            with pytest.raises(ClientClosed):
                await publishing

    run(work())
