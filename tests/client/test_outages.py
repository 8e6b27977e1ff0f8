"""Consumers over outages that are longer than a request may take: they never give up."""

import asyncio

import pytest
from client.outage import TIMEOUT_S, LeavingPeer
from client.peer import BlipMQPeer, JsonServer, run
from kit.echo_server import next_turn

from penstock.client.blipmq import BlipMQClient
from penstock.client.errors import ConnectFailed, ConnectionLost
from penstock.client.rustlog import RustLogClient
from penstock.client.settings import Backoff, ClientSettings


def settings(attempts: int | None = None) -> ClientSettings:
    return ClientSettings(TIMEOUT_S, attempts, Backoff(base_s=0.01, cap_s=0.05))


def test_a_blipmq_consumer_goes_on() -> None:
    """The connection is lost while it works on a batch: its next request finds none."""

    async def main() -> None:
        blipmq = BlipMQPeer()
        peer = LeavingPeer(blipmq.script)
        async with (
            peer,
            BlipMQClient(peer.address, key="secret", settings=settings()) as client,
        ):
            batches = (await client.subscribe("demo")).batches()
            await client.publish("demo", b"before")
            assert (await anext(batches)).values == [b"before"]
            peer.leave()
            while client._connection.live:
                await next_turn()
            following = asyncio.ensure_future(anext(batches))
            while not (client.reconnects or following.done()):
                await next_turn()
            await client.publish("demo", b"after")
            batch = await following
            assert (batch.values, batch.generation) == ([b"after"], 2)
            with pytest.raises(ConnectionLost):
                await client.flush()

    run(main())


def test_a_blipmq_consumer_gives_up_when_the_client_does() -> None:
    async def main() -> None:
        peer = LeavingPeer(BlipMQPeer().script)
        async with peer:
            client = BlipMQClient(peer.address, key="secret", settings=settings(attempts=2))
            await client.__aenter__()
            subscription = await client.subscribe("demo")
            peer.leave()
            with pytest.raises(ConnectFailed):
                await anext(subscription.batches())
            await client.close()

    run(main())


@pytest.mark.parametrize("cut_before", ["OffsetCommit", "OffsetFetch"])
def test_a_rustlog_group_goes_on(cut_before: str) -> None:
    """An outage that begins with the group's own request, of which there is nothing to fetch again."""

    class Cutting(JsonServer):
        cut = False

        def _reply(self, kind: str, fields: dict[str, object]) -> object:
            if kind == cut_before and not self.cut:
                self.cut = True
                asyncio.get_running_loop().call_soon(peer.leave)
                raise ConnectionError
            return super()._reply(kind, fields)

    server = Cutting()
    server.log = [b"one", b"two", b"three", b"four"]
    peer = LeavingPeer(server.script)

    async def main() -> None:
        async with peer, RustLogClient(peer.address, settings=settings()) as client:
            seen: list[bytes] = []
            async for batch in client.consume("demo", 0, group="g"):
                seen += batch.values
                if len(seen) == len(server.log):
                    break
            assert seen == server.log
            assert server.committed == {"g": 2}
            assert client.reconnects == 1

    run(main())
