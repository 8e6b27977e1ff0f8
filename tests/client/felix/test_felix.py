"""The Felix client against a real server, and against servers with either message set of their own."""

import asyncio
import json
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
    NotAuthorized,
    NotFound,
    ProtocolViolation,
    Refused,
    RequestTimedOut,
)
from penstock.client.felix import (
    EventMissed,
    FelixClient,
    FrameTooLarge,
    QuicTrust,
    Subscription,
    connect_felix,
)
from penstock.wire.felix.batches import encode_shared_events, event_batch_head
from penstock.wire.felix.frames import HEADER_BYTES, frame_size, framed

SETTINGS = {"felix.auto_create": "true", "felix.caches": "t/n/c"}
ANYBODY = QuicTrust(insecure=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("felix-client"), SETTINGS) as running:
        yield running


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return f"tenant/näme/{request.node.name}"


def client_of(server: LiveServer, **options: Any) -> FelixClient:
    directory = server.server.config.server.data_directory
    chosen = {"trust": QuicTrust(ca=f"{directory}/quic-certificate.pem"), **options}
    return FelixClient(f"127.0.0.1:{server.port('felix')}", **chosen)


async def take(subscription: Subscription, count: int) -> list[bytes]:
    return [value async for batch in subscription.batches(limit=count) for value in batch.values]


@pytest.mark.parametrize("dialect", ["native", "doc"])
def test_every_operation(server: LiveServer, stream: str, dialect: str) -> None:
    async def work() -> None:
        stream_name = stream.replace("[", "").replace("]", "")
        async with client_of(server, token="dev-key", dialect=dialect) as client:
            subscription = await client.subscribe(stream_name)
            await client.publish(stream_name, b"one")
            await client.publish_many(stream_name, [b"two", b"", bytes(range(256))])
            await client.publish_many(stream_name, [])
            await client.send_many(stream_name, [b"binary", b"batch"])
            await client.send_many(stream_name, [b"json"], binary=False)
            await client.flush()
            expected = [b"one", b"two", b"", bytes(range(256)), b"binary", b"batch", b"json"]
            assert await take(subscription, 7) == expected
            tally = client.tally
            assert (tally.published, tally.confirmed, tally.unanswered) == (7, 7, 0)
            scope = "t/n/c" if dialect == "native" else None
            await client.cache_put("käy", b"\x00value", cache=scope)
            assert await client.cache_get("käy", cache=scope) == b"\x00value"
            await client.cache_put("käy", b"gone", ttl_s=0, cache=scope)
            assert await client.cache_get("käy", cache=scope) is None
            assert await client.cache_get("never", cache=scope) is None
            await subscription.close()
            assert await take(subscription, 1) == []

    run(work())


def test_large_and_many(server: LiveServer, stream: str) -> None:
    """In order, over several frames; a large message has its own."""

    async def work() -> None:
        values = [b"%d" % number for number in range(12_000)] + [b"x" * 3_000_000, b"last"]
        async with client_of(server) as client:
            subscription = await client.subscribe(stream)
            reading = asyncio.ensure_future(take(subscription, len(values)))
            await client.publish_many(stream, values)
            assert await reading == values
            with pytest.raises(FrameTooLarge, match="the most of Felix is 16777216"):
                await client.publish(stream, bytes(13 * 1024 * 1024))

    run(work())


@pytest.mark.parametrize("dialect", ["native", "doc"])
def test_an_event_above_a_frame_of_json(server: LiveServer, dialect: str) -> None:
    """NATIVE clients get it as a binary frame. Others are told which one they miss, and go on."""
    stream, large = f"t/n/large-{dialect}", bytes(13 * 1024 * 1024)

    async def work() -> None:
        async with client_of(server, dialect=dialect) as client:
            subscription = await client.subscribe(stream)
            await client.publish(stream, b"before")
            await client.send_many(stream, [large, b"behind"])
            await client.flush()
            if dialect == "native":
                assert await take(subscription, 3) == [b"before", large, b"behind"]
                return
            assert await take(subscription, 1) == [b"before"]
            with pytest.raises(EventMissed) as missed:
                await take(subscription, 2)
            assert str(missed.value).startswith(
                f"an event of {stream} is missing: topic '{stream}' partition 0 offset 1:"
            )
            assert await take(subscription, 1) == [b"behind"]

    run(work())


def test_blocking(server: LiveServer, stream: str) -> None:
    directory = server.server.config.server.data_directory
    trust = QuicTrust(ca=f"{directory}/quic-certificate.pem")
    with connect_felix(f"127.0.0.1:{server.port('udp')}", trust=trust) as client:
        subscription = client.subscribe(stream)
        client.publish(stream, b"hello")
        for batch in subscription:
            assert (batch.stream, batch.values, batch.generation) == (stream, [b"hello"], 1)
            break
        client.cache_put("k", b"v")
        assert client.cache_get("k") == b"v"


def test_pooled_connections_keep_the_order_of_a_stream(server: LiveServer, stream: str) -> None:
    async def work() -> None:
        async with client_of(server, connections=3, cache_streams=2, event_connections=2) as client:
            subscriptions = [await client.subscribe(f"{stream}{n}") for n in range(5)]
            assert len(client._event_pool) == 2
            for n in range(5):
                for value in (b"a", b"b", b"c"):
                    await client.send_many(f"{stream}{n}", [value])
            await client.flush()
            for subscription in subscriptions:
                assert await take(subscription, 3) == [b"a", b"b", b"c"]
            puts = [client.cache_put(f"pool{n}", b"%d" % n) for n in range(50)]
            await asyncio.gather(*puts)
            found = await asyncio.gather(*(client.cache_get(f"pool{n}") for n in range(50)))
            assert found == [b"%d" % n for n in range(50)]

    run(work())


def test_what_a_server_refuses(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as strict:

        async def work() -> None:
            with pytest.raises(NotAuthorized, match="the login was refused: unauthorized"):
                await client_of(strict, token="wrong").__aenter__()
            async with client_of(strict) as client:
                for refused in (client.publish("t/n/s", b""), client.subscribe("t/n/s")):
                    with pytest.raises(NotFound, match="stream not found: tenant=t"):
                        await refused
                await client.send_many("t/n/s", [b"x"])
                with pytest.raises(NotFound):
                    await client.flush()
                with pytest.raises(NotFound, match="cache scope not found: t/n/c"):
                    await client.cache_get("k", cache="t/n/c")
                with pytest.raises(ValueError, match="tenant/namespace/stream"):
                    await client.publish("t/s", b"")
                assert client.tally.refused == 2

        run(work())


# ---- servers that are not ours -----------------------------------------------------------------


@pytest.fixture
def pem(tmp_path: Path) -> str:
    return Authority(tmp_path / "ca").server()


def messages(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Frames of JSON with their flags; a binary one as an empty object."""
    found: list[tuple[int, dict[str, Any]]] = []
    at = 0
    while (size := frame_size(data, at, len(data))) and at + size <= len(data):
        flags = int.from_bytes(data[at + 6 : at + 8], "big")
        payload = data[at + HEADER_BYTES : at + size]
        found.append((flags, {} if flags & 1 else json.loads(payload)))
        at += size
    return found, at


def reply(**fields: Any) -> bytes:
    return framed(json.dumps(fields).encode())


def document_server(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
    """Knows the document alone: no ids but texts, and no fields that it does not have."""
    found, used = messages(data)
    for flags, one in found:
        if flags & 1:
            continue
        assert one["type"] == "auth" or not isinstance(one.get("request_id"), int)
        assert "tenant_id" in one or one["type"] in ("cache_put", "cache_get", "auth")
        if one["type"] == "cache_get":
            value = {"key": one["key"], "value": "dg=="}
            peer.send(stream, reply(type="cache_value", request_id=one["request_id"], **value))
        elif one["type"] == "cache_put":
            peer.send(stream, reply(type="ok", request_id=one["request_id"]))
        elif one.get("ack") != "none":
            peer.send(stream, reply(type="ok"))
        if one["type"] == "subscribe":
            peer.open(
                reply(type="event_stream_hello", subscription_id="sub-1")
                + reply(type="event", tenant_id="t", namespace="n", stream="s", payload="YQ==")
                + reply(type="event_batch", payloads=["Yg==", ""], tenant_id="t"),
                unidirectional=True,
            )
    return used


def native_server(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
    """As the Rust broker: numbers, events in binary frames, and the control stream ends after subscribe."""
    found, used = messages(data)
    for flags, one in found:
        if flags & 1:
            continue
        id = one.get("request_id")
        if one["type"] == "subscribe":
            number = one["subscription_id"]
            peer.send(stream, reply(type="subscribed", subscription_id=number), True)
            shared = encode_shared_events([b"a", b"b", b""])
            head = event_batch_head(number, len(shared))
            hello = reply(type="event_stream_hello", subscription_id=number)
            peer.open(hello + head + shared, unidirectional=True)
        elif one["type"] == "cache_get":
            assert isinstance(id, int) and one["cache"] == "c"
            peer.send(
                stream, reply(type="cache_value", key=one["key"], value="dg==", request_id=id)
            )
        elif one["type"] == "cache_put":
            peer.send(stream, reply(type="cache_ok", request_id=id))
        elif one.get("ack") != "none":
            assert isinstance(id, int)
            peer.send(stream, reply(type="publish_ok", request_id=id))
    return used


@pytest.mark.parametrize(
    ("dialect", "script"), [("doc", document_server), ("native", native_server)]
)
def test_servers_with_one_message_set(pem: str, dialect: str, script: Any) -> None:
    async def work() -> None:
        async with foreign_server(pem, script) as peer:
            options: dict[str, Any] = {"trust": ANYBODY, "dialect": dialect}
            async with FelixClient(peer.address, **options) as client:
                subscription = await client.subscribe("t/n/s")
                assert await take(subscription, 3) == [b"a", b"b", b""]
                await client.publish("t/n/s", b"x")
                await client.publish_many("t/n/s", [b"x", b"y"])
                await client.send_many("t/n/s", [b"z"])
                await client.flush()
                scope = "t/n/c" if dialect == "native" else None
                await client.cache_put("k", b"v", cache=scope)
                assert await client.cache_get("k", cache=scope) == b"v"

    run(work())


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400", reply(type="event", payload=""), reply(type=1)]
)
def test_a_server_that_breaks_the_protocol(pem: str, answer: bytes) -> None:
    def script(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        peer.send(stream, answer)
        return len(data)

    async def work() -> None:
        async with (
            foreign_server(pem, script) as peer,
            FelixClient(peer.address, trust=ANYBODY) as client,
        ):
            for _ in range(2):
                with pytest.raises(ProtocolViolation):
                    await client.publish("t/n/s", b"x")

    run(work())


def test_a_stream_that_ends_without_an_answer_and_one_that_gets_none(pem: str) -> None:
    ends = True

    def script(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        if ends:
            peer.send(stream, b"", fin=True)
        return len(data)

    async def work() -> None:
        nonlocal ends
        async with foreign_server(pem, script) as peer:
            settings = Waits().settings(attempts=0, timeout_s=0.2)
            async with FelixClient(peer.address, trust=ANYBODY, settings=settings) as client:
                with pytest.raises(Refused, match="the server ended it, without an answer"):
                    await client.publish("t/n/s", b"x")
                ends = False
                with pytest.raises(RequestTimedOut, match="did not answer publish to t/n/s"):
                    await client.publish("t/n/s", b"x")

    run(work())


# ---- losses ------------------------------------------------------------------------------------


def test_a_lost_connection_fails_what_was_due_and_subscriptions_come_back(pem: str) -> None:
    answers = False

    def script(peer: Foreign, stream: int, data: bytes, fin: bool) -> int:
        return (
            native_server(peer, stream, data, fin) if answers or b"subscribe" in data else len(data)
        )

    async def work() -> None:
        nonlocal answers
        async with foreign_server(pem, script) as peer:
            waits = Waits()
            async with FelixClient(
                peer.address, trust=ANYBODY, settings=waits.settings()
            ) as client:
                subscription = await client.subscribe("t/n/s")
                assert await take(subscription, 3) == [b"a", b"b", b""]
                lost = asyncio.ensure_future(client.publish("t/n/s", b"x"))
                while not any(one.held for one in peer.connections[:1]):
                    await asyncio.sleep(0)
                for one in list(peer.connections):
                    one._quic.close(reason_phrase="restart")
                    one.transmit()
                with pytest.raises(ConnectionLost, match="restart"):
                    await lost
                answers = True
                batch = await anext(aiter(subscription))
                assert (batch.values, batch.generation) == ([b"a", b"b", b""], 2)
                await client.publish("t/n/s", b"x")
                assert client.reconnects == 2 and waits.delays_s == [0.1, 0.1]

    run(work())


def test_an_event_stream_that_the_server_ends_is_made_again(
    server: LiveServer, stream: str
) -> None:
    """Also with a topic that is made anew; without one, the subscription ends with an error."""

    async def work() -> None:
        async with client_of(server, settings=Waits().settings()) as client:
            subscription = await client.subscribe(stream)
            await client.publish(stream, b"old")
            assert await take(subscription, 1) == [b"old"]
            await asyncio.to_thread(server.delete_topic, stream)
            while subscription.generation == 1:
                await asyncio.sleep(0)
            await client.publish(stream, b"new")
            batch = await anext(aiter(subscription))
            assert (batch.values, batch.generation) == ([b"new"], 2)

    run(work())
