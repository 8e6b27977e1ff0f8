"""The Fujin client against a real server, and against one with the habits of the existing one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.peer import Waits, run
from client.quic.server import Foreign, foreign_server
from kit.authority import Authority
from kit.live_server import LiveServer

from penstock.client.errors import (
    ConnectionLost,
    NotFound,
    ProtocolViolation,
    Refused,
)
from penstock.client.fujin import FujinClient, QuicTrust, Subscription, connect_fujin
from penstock.client.quic.line import QuicLine
from penstock.client.quic.stream import QuicStream
from penstock.wire.fujin import commands as c
from penstock.wire.fujin.writing import OFF, Transaction, WriteRun, encode_written, split_writer

ROUTES = {
    "fujin.auto_create": "true",
    "fujin.retry_backoff": "1 ms",
    "fujin.max_deliveries": "2",
    "fujin.ping_interval": "50 ms",
}
ANYBODY = QuicTrust(insecure=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {
        **ROUTES,
        "fujin.routes": '{ shared = { topic = "work", group = "team", start = "earliest" } }',
    }
    with LiveServer(tmp_path_factory.mktemp("fujin-client"), settings) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"tòpic-{request.node.name}"


def client_of(server: LiveServer, **options: Any) -> FujinClient:
    directory = server.server.config.server.data_directory
    chosen = {"trust": QuicTrust(ca=f"{directory}/quic-certificate.pem"), **options}
    return FujinClient(f"127.0.0.1:{server.port('udp')}", **chosen)


async def take(subscription: Subscription, count: int) -> list[bytes]:
    return [value async for batch in subscription.batches(limit=count) for value in batch.values]


def test_written_messages_are_pushed_and_fetched(server: LiveServer, topic: str) -> None:
    """Of any size around those where the forms with and without headers could be mixed up."""
    values = [b"one", b"x" * 0xFFFF, b"y" * 0x10000, b"z" * 0x20000, bytes(range(256)) * 12_000]

    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            subscription = await client.subscribe(topic)
            consumer = await client.consumer(topic, auto_commit=False)
            await writer.write(topic, values[0], headers=[("náme", b"\x00value")])
            await writer.write_many(topic, values[1:])
            assert await take(subscription, len(values)) == values
            fetched: list[bytes] = []
            while len(fetched) < len(values):
                batch = await consumer.fetch(3)
                assert 0 < len(batch) <= 3 and len(batch.ids) == len(batch)
                fetched += batch.values
                outcomes = await consumer.ack(batch)
                assert [one.id for one in outcomes] == batch.ids
                assert all(one.failure is None for one in outcomes)
            assert fetched == values
            assert (client.tally.confirmed, client.tally.refused) == (len(values), 0)
        assert client.reconnects == 0

    run(work())


def test_many_in_order_and_pings_meanwhile(server: LiveServer, topic: str) -> None:
    async def work() -> None:
        values = [b"%d" % number for number in range(20_000)]
        async with client_of(server) as client, client.writer(7) as writer:
            subscription = await client.subscribe(topic, auto_commit=False)
            reading = asyncio.ensure_future(take(subscription, 10_000))
            await writer.write_many(topic, values)
            assert await reading == values[:10_000]
            assert client.reconnects == 0

    run(work())


def test_a_slow_consumer_is_not_taken_for_dead(server: LiveServer, topic: str) -> None:
    """Far more than what is held here is published; PINGs come through behind it, and are answered."""

    async def work() -> None:
        count, size = 12_000, 1_000
        async with client_of(server) as client, client.writer() as writer:
            subscription = await client.subscribe(topic)
            await writer.write_many(topic, [b"x" * size] * count)
            (reading,) = client._reading
            line = reading.keeping.live
            assert line is not None
            while not line._link.waits:
                await asyncio.sleep(0)
            pings: list[QuicStream] = []
            accept = line._accept

            def accepted(line: QuicLine, stream: QuicStream) -> None:
                pings.append(stream)
                accept(line, stream)

            line._accept = accepted
            while len(pings) < 3:
                await writer.write(f"{topic}-other", b"meanwhile")
            assert len(await take(subscription, count)) == count
            assert client.reconnects == 0

    run(work())


def test_transactions(server: LiveServer, topic: str) -> None:
    async def work() -> None:
        async with client_of(server) as client, client.writer("transäctional") as writer:
            subscription = await client.subscribe(topic)
            async with writer.transaction():
                await writer.write_many(topic, [b"a", b"b"])
            with pytest.raises(KeyError):
                async with writer.transaction():
                    await writer.write(topic, b"never")
                    raise KeyError
            await writer.write(topic, b"c")
            assert await take(subscription, 3) == [b"a", b"b", b"c"]
            for refused in (writer.commit(), writer.rollback()):
                with pytest.raises(Refused, match="no transaction is open"):
                    await refused
            await writer.begin()
            with pytest.raises(Refused, match="invalid tx state"):
                await writer.begin()

    run(work())


def test_a_group_with_acks_and_nacks(server: LiveServer) -> None:
    """What was acknowledged does not come again, to another client either; what is refused comes again, and
    then goes to the dead letters."""

    async def work() -> None:
        async with client_of(server) as client, client.writer() as writer:
            await writer.write_many("shared", [b"good", b"bad"])
            letters = await client.subscribe("work.dlq")
            async with await client.subscribe("shared", auto_commit=False) as first:
                batch = await anext(aiter(first))
                assert batch.values[0] == b"good"
                assert (await first.ack(batch.ids[:1]))[0].failure is None
                assert (await first.ack([b"what"]))[0].failure == "msg not found"
                seen = batch.values[1:]
                if len(batch) > 1:
                    await first.nack(batch.ids[1:])
                async for batch in first:
                    seen += batch.values
                    await first.nack(batch)
                    if len(seen) == 2:
                        break
                assert seen == [b"bad", b"bad"]
                assert await take(letters, 1) == [b"bad"]
            async with await client.consumer("shared", auto_commit=False) as second:
                await writer.write("shared", b"next")
                assert (await second.fetch(10)).values == [b"next"]

    run(work())


def test_blocking(server: LiveServer, topic: str) -> None:
    directory = server.server.config.server.data_directory
    trust = QuicTrust(ca=f"{directory}/quic-certificate.pem")
    with (
        connect_fujin(f"127.0.0.1:{server.port('udp')}", trust=trust) as client,
        client.subscribe(topic) as subscription,
        client.writer() as writer,
    ):
        writer.write(topic, b"hello")
        for batch in subscription:
            assert (batch.values, batch.ids, batch.generation) == ([b"hello"], [], 1)
            break


def test_what_is_refused(server: LiveServer, topic: str, tmp_path: Path) -> None:
    with LiveServer(tmp_path) as strict:

        async def work() -> None:
            async with client_of(strict) as client, client.writer() as writer:
                with pytest.raises(
                    NotFound, match=f"WRITE to {topic} was refused: writer not found"
                ):
                    await writer.write(topic, b"x")
                for refused in (client.subscribe(topic), client.consumer(topic)):
                    with pytest.raises(NotFound, match="reader not found"):
                        await refused
                with pytest.raises(ValueError, match="no empty messages"):
                    await writer.write(topic, b"")
                with pytest.raises(ValueError, match="1 to 1024"):
                    await writer.write("", b"x")
                assert (client.tally.published, client.tally.refused) == (1, 1)
            async with client_of(server, write_headers=False) as plain, plain.writer() as writer:
                with pytest.raises(ValueError, match="without headers"):
                    await writer.write(topic, b"x", headers=[("a", b"b")])
                subscription = await plain.subscribe(topic)
                with pytest.raises(Refused, match="auto commit is on"):
                    await subscription.ack([b"id"])

        run(work())


def test_a_server_that_stops_says_so_and_the_client_disconnects(tmp_path: Path) -> None:
    """STOP: everything that was answered is done, sessions are closed, and the server ends before its
    grace is over."""
    grace = {"fujin.stop_grace": "60 s", "fujin.auto_create": "true"}
    with LiveServer(tmp_path, grace) as stopping:

        async def work() -> None:
            settings = Waits().settings(attempts=0)
            async with client_of(stopping, settings=settings) as client:
                writer = client.writer()
                await writer.write("t", b"before")
                subscription = await client.subscribe("t")
                await writer.write("t", b"x")
                assert await take(subscription, 1) == [b"x"]
                await asyncio.to_thread(lambda: stopping.run(stopping.server.stop()))
                with pytest.raises(ConnectionLost):
                    await writer.write("t", b"after")
                with pytest.raises(ConnectionLost):
                    await take(subscription, 1)

        run(work())


# ---- a server that is not ours -----------------------------------------------------------------


@pytest.fixture
def pem(tmp_path: Path) -> str:
    return Authority(tmp_path / "ca").server()


class ExistingServer:
    """As the existing one: no headers, text ids of writers, a PING for each connection."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.commands: list[int] = []
        self.pongs = 0
        self.roles: dict[tuple[Foreign, int], str] = {}

    def __call__(self, peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        if stream & 1:
            assert data == c.PING and fin
            self.pongs += 1
            return len(data)
        role = self.roles.get((peer, stream))
        used = 0
        if role is None:
            (begins,), used = c.split_connect(data, 0, len(data))
            role = "writer" if isinstance(begins, c.ConnectWriter) else "reader"
            self.roles[peer, stream] = role
            peer.open(c.PING, unidirectional=False, fin=True)
            if role == "reader":
                peer.send(stream, c.CONNECTED)
                peer.send(stream, b"\x06\x00\x00\x00\x05hello\x06\x00\x00\x00\x01x")
        if role == "writer":
            items, used = split_writer(data, used, len(data), OFF)
            for item in items:
                if isinstance(item, WriteRun):
                    self.written += item.values
                    peer.send(stream, encode_written(item.cids))
                elif isinstance(item, Transaction):
                    self.commands.append(item.opcode)
                    peer.send(stream, c.encode_result(item.opcode - 1, item.cid))
        if data.endswith(c.DISCONNECTED):
            peer.send(stream, c.DISCONNECTED, fin=True)
            return len(data)
        return used


def test_the_existing_server(pem: str) -> None:
    async def work() -> None:
        existing = ExistingServer()
        async with foreign_server(pem, existing, ["fujin"]) as peer:
            options: dict[str, Any] = {"trust": ANYBODY, "write_headers": False}
            async with FujinClient(peer.address, **options) as client:
                subscription = await client.subscribe("sub")
                assert await take(subscription, 2) == [b"hello", b"x"]
                async with client.writer("id") as writer:
                    values = [b"one", b"x" * 0x10000]
                    async with writer.transaction():
                        await writer.write_many("pub", values)
                assert existing.written == values
                assert existing.commands == [c.BEGIN, c.COMMIT]
                while existing.pongs < 2:
                    await asyncio.sleep(0)

    run(work())


@pytest.mark.parametrize("answer", [b"\x00", b"\x0b", b"\x02\x00\x00\x00\x63\x00", b"\x06"])
def test_a_server_that_breaks_the_protocol(pem: str, answer: bytes) -> None:
    def script(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        peer.send(stream, answer + b"\x00\x00\x00\x01x")
        return len(data)

    async def work() -> None:
        async with foreign_server(pem, script, ["fujin"]) as peer:
            client = FujinClient(peer.address, trust=ANYBODY)
            await client.__aenter__()
            with pytest.raises(ProtocolViolation):
                await client.writer().write("t", b"x")
            await client.close()

    run(work())


def test_losses(pem: str) -> None:
    """What was in flight is unknown and told; readers are opened again, an open transaction is gone."""
    existing = ExistingServer()
    answers = True

    def script(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        if not answers and (peer, stream) in existing.roles:
            return 0
        return existing(peer, stream, data, fin)

    async def work() -> None:
        nonlocal answers
        async with foreign_server(pem, script, ["fujin"]) as peer:
            client = FujinClient(peer.address, trust=ANYBODY, settings=Waits().settings())
            client._write_headers = False
            await client.__aenter__()
            subscription = await client.subscribe("sub")
            assert await take(subscription, 2) == [b"hello", b"x"]
            writer = client.writer()
            await writer.begin()
            answers = False
            lost = asyncio.ensure_future(writer.write_many("t", [b"a", b"b"]))
            while not any(held for one in peer.connections for held in one.held.values()):
                await asyncio.sleep(0)
            for one in list(peer.connections):
                one._quic.close(reason_phrase="restart")
                one.transmit()
            with pytest.raises(ConnectionLost, match="2 messages were not confirmed") as caught:
                await lost
            assert caught.value.unconfirmed == 2
            answers = True
            with pytest.raises(Refused, match="no transaction is open"):
                await writer.commit()
            await writer.write("t", b"c")
            assert existing.written == [b"c"]
            batch = await anext(aiter(subscription))
            assert (batch.values, batch.generation) == ([b"hello", b"x"], 2)
            await client.close()

    run(work())
