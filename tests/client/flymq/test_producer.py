"""The producer: records gathered into writes, in order, with answers and refusals for each."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from client.peer import Peer, Waits, run
from conformance.flymq.peer import live
from kit.live_server import LiveServer

from penstock.client.errors import ClientClosed, ConnectionLost, NotFound
from penstock.client.flymq import FlyMQClient, connect_flymq
from penstock.client.flymq.asking import Asking
from penstock.client.flymq.operations import SENT_TOGETHER


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("producer")) as running:
        yield running


def address(server: LiveServer) -> str:
    return f"127.0.0.1:{server.port()}"


def test_records_are_gathered_and_stay_in_order(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    begin = Asking.begin

    async def noting(self: Asking, frames: bytes, count: int, *more: Any) -> Any:
        writes.append(count)
        return await begin(self, frames, count, *more)

    monkeypatch.setattr(Asking, "begin", noting)
    count = 3 * SENT_TOGETHER + 7

    async def body() -> None:
        async with FlyMQClient(address(server)) as client:
            async with client.producer("many", linger_ms=60_000) as producer:
                stored = [await producer.send(b"%d" % number) for number in range(count)]
                await producer.flush()
                assert [one.result().offset for one in stored] == list(range(count))
            assert client.tally.confirmed == count
            values: list[bytes] = []
            while len(values) < count:
                values += (await client.fetch("many", 0, len(values))).values
            assert values == [b"%d" % number for number in range(count)]

    run(body())
    producing = [one for one in writes if one > 1]
    assert max(producing) <= SENT_TOGETHER and len(producing) <= 5


def test_a_lone_record_is_sent_when_it_has_lingered(server: LiveServer) -> None:
    async def body() -> None:
        async with FlyMQClient(address(server)) as client, client.producer("lone") as producer:
            stored = await producer.send(b"a", key=b"k", partition=0)
            assert (await stored).key_size == 1

    run(body())


def test_it_waits_when_too_much_is_unanswered(server: LiveServer) -> None:
    async def body() -> None:
        async with (
            FlyMQClient(address(server)) as client,
            client.producer("narrow", linger_ms=60_000, max_bytes=100) as producer,
        ):
            first = await producer.send(b"x" * 90)
            await producer.send(b"y" * 90)  # returns, so the first was sent and answered
            assert first.done()

    run(body())


def test_refusals(server: LiveServer) -> None:
    """Each record stands for itself; `flush`, and the end of the block, raise the first."""

    async def body() -> None:
        async with FlyMQClient(address(server)) as client:
            await client.create_topic("few", 1)
            producer = client.producer("few")
            with pytest.raises(NotFound, match="partition 9 out of range"):
                async with producer:
                    good = await producer.send(b"a")
                    bad = await producer.send(b"b", partition=9)
                    other = await producer.send(b"c")
            assert (good.result().offset, other.result().offset) == (0, 1)
            assert isinstance(bad.exception(), NotFound)
            with pytest.raises(ClientClosed):
                await producer.send(b"d")

    run(body())


def test_a_lost_connection_fails_what_was_on_its_way() -> None:
    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async def body() -> None:
        waits = Waits()
        async with (
            Peer(hangs_up) as peer,
            FlyMQClient(peer.address, settings=waits.settings(attempts=0)) as client,
        ):
            producer = client.producer("t")
            stored = await producer.send(b"a")
            with pytest.raises(ConnectionLost):
                await producer.flush()
            assert isinstance(stored.exception(), ConnectionLost)

    run(body())


def test_blocking(server: LiveServer) -> None:
    with connect_flymq(address(server)) as client:
        with client.producer("blocking") as producer:
            stored = [producer.send(b"%d" % number) for number in range(10)]
            producer.flush()
            assert [one.result().offset for one in stored] == list(range(10))
        assert client.fetch("blocking", 0, 0).values == [b"%d" % number for number in range(10)]
