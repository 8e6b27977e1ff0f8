"""The FlyMQ client against a real server, and against servers with habits of their own."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.peer import Peer, Waits, run
from conformance.flymq.peer import blob, frame, live, names, text
from kit.live_server import LiveServer

from penstock.client.errors import (
    ConnectionLost,
    NotAuthorized,
    NotFound,
    ProtocolViolation,
    Refused,
)
from penstock.client.flymq import FlyMQClient, connect_flymq
from penstock.client.flymq.operations import SENT_TOGETHER


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("flymq-client")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def address(server: LiveServer) -> str:
    return f"127.0.0.1:{server.port()}"


def test_every_operation_blocking(server: LiveServer, topic: str) -> None:
    with connect_flymq(address(server)) as client:
        client.create_topic(topic, 3)
        client.create_topic(topic, 9)
        assert topic in client.list_topics()
        first = client.produce(topic, b"a", key=b"user-123")
        assert (first.topic, first.partition, first.offset, first.key_size) == (topic, 2, 0, 8)
        client.produce(topic, b"b", partition=2)
        assert [one.newest for one in client.describe_topic(topic).partitions] == [0, 0, 2]
        record = client.get(topic, 2, 0)
        assert (record.key, record.value) == (b"user-123", b"a")
        batch = client.fetch(topic, 2, 0)
        assert (batch.values, batch.next_offset, len(batch)) == ([b"a", b"b"], 2, 2)
        assert client.fetch(topic, 2, 0, filter="B").values == [b"b"]
        client.commit(topic, 2, "g", 1)
        assert client.committed(topic, 2, "g") == 1
        assert client.lag(topic, 2, "g").lag == 1
        for to, expected in (("latest", 2), ("earliest", 0), (1, 1)):
            client.reset_offset(topic, 2, "g", to)
            assert client.committed(topic, 2, "g") == expected
        row = client.describe_group("g", topic)
        assert (row.topic, row.members, row.offsets[0].offset) == (topic, 0, 1)
        assert row in client.list_groups()
        assert client.seek_to_time(topic, 2, 0, "g") == 0
        client.delete_group("g", topic)
        with pytest.raises(NotFound, match="consumer group not found"):
            client.committed(topic, 2, "g")
        assert client.cluster_status().nodes[0].client_address == address(server)
        assert not client.who_am_i().logged_in
        client.delete_topic(topic)
        with pytest.raises(NotFound, match=f"METADATA {topic} was refused: topic not found"):
            client.describe_topic(topic)


def test_transactions_blocking(server: LiveServer, topic: str) -> None:
    values = [b"%d" % number for number in range(SENT_TOGETHER + 1)]
    with connect_flymq(address(server)) as client:
        client.create_topic(topic)
        one = client.begin_transaction()
        client.stage(one, topic, values)
        assert client.fetch(topic, 0, 0).values == []
        client.commit_transaction(one)
        client.commit_transaction(one)
        assert client.fetch(topic, 0, 0).values == values
        other = client.begin_transaction()
        client.stage(other, topic, [b"never"])
        client.roll_back_transaction(other)
        for refused in (client.roll_back_transaction, client.commit_transaction):
            with pytest.raises(Refused, match=f"transaction not found: {other}"):
                refused(other)
        with pytest.raises(Refused, match="transaction not found"):
            client.stage(other, topic, [b"never"])
        assert client.fetch(topic, 0, 0).values == values


def test_many_records_at_once(server: LiveServer, topic: str) -> None:
    async def main() -> None:
        async with FlyMQClient(address(server)) as client:
            values = [b"%d" % number for number in range(3 * SENT_TOGETHER + 7)]
            placed = await client.produce_many(topic, values)
            assert [one.offset for one in placed] == list(range(len(values)))
            assert client.tally.confirmed == len(values)
            ones = [client.produce(topic, b"x%d" % number, key=b"k") for number in range(10)]
            assert len(await asyncio.gather(*ones)) == 10
            found = await client.fetch(topic, 0, 0, max_messages=5_000)
            assert found.values[: len(values)] == values
            assert await client.produce_many(topic, []) == []
            with pytest.raises(NotFound, match="partition 7 out of range"):
                await client.produce(topic, b"x", partition=7)
            assert client.tally.refused == 1 and not client.tally.unanswered

    run(main())


def test_consume_goes_on_from_the_committed_offset(server: LiveServer, topic: str) -> None:
    async def main() -> None:
        async with FlyMQClient(address(server)) as client:
            await client.produce_many(topic, [b"%d" % number for number in range(5)])

            async def read(count: int, **options: Any) -> list[bytes]:
                found: list[bytes] = []
                batches = client.consume(topic, 0, max_messages=2, **options)
                async for batch in batches:
                    found += batch.values
                    if len(found) >= count:
                        break
                await batches.aclose()
                return found

            assert await read(4, group="g") == [b"0", b"1", b"2", b"3"]
            # The batch that the consumer left in is not committed, the one before is.
            assert await client.committed(topic, 0, "g") == 2
            assert await read(2, group="g") == [b"2", b"3"]
            assert await read(1, start=4) == [b"4"]
            assert await read(1, start="earliest", filter="3") == [b"3"]
            late = asyncio.ensure_future(read(1, start="latest"))
            while not late.done():
                await client.produce(topic, b"late")
            assert (await late)[0] == b"late"

    run(main())


def test_it_logs_in_with_the_name_of_a_key(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        key = server.server.broker.access.create_key("app", "user")
        with connect_flymq(address(server), user="app", key=key) as client:
            me = client.who_am_i()
            assert (me.user, me.roles) == ("app", ["producer", "consumer"])
            client.produce("t", b"v")
            with pytest.raises(NotAuthorized, match="app may not delete topic 't'"):
                client.delete_topic("t")
        with pytest.raises(NotAuthorized, match="invalid username or password"):
            connect_flymq(address(server), user="app", key="no").__enter__()


@pytest.mark.parametrize("dialect", ["auto", "spec", "sdk"])
def test_it_works_with_every_dialect(tmp_path: Path, dialect: str) -> None:
    with live(tmp_path, flymq__dialect=dialect) as server:
        key = server.server.broker.access.create_key("ops", "admin")
        with connect_flymq(address(server), user="ops", key=key) as client:
            client.produce("t", b"v")
            assert client.fetch("t", 0, 0, filter="").values == [b"v"]
            with pytest.raises(NotFound) as caught:
                client.get("none", 0, 0)
            assert caught.value.text == "topic not found: none"
            assert caught.value.code == (1 if dialect == "sdk" else 0)


# ---- servers that are not ours -------------------------------------------------------------------

GO_ERRORS = [
    b"topic not found",
    struct.pack(">I", 1) + text("topic not found: t"),
    b"\x00" + text("topic not found: t"),
]


@pytest.mark.parametrize("payload", GO_ERRORS)
def test_errors_of_other_servers(payload: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame(0xFF, payload))
        await reader.read()

    async def main() -> None:
        settings = Waits().settings(attempts=0)
        async with Peer(script) as peer, FlyMQClient(peer.address, settings=settings) as client:
            with pytest.raises(NotFound, match="topic not found"):
                await client.get("t", 0, 0)

    run(main())


def test_a_flag_alone_is_a_success() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in (b"\x01", b"\x00\x00\x02no"):
            header = await reader.readexactly(8)
            await reader.readexactly(int.from_bytes(header[4:], "big"))
            writer.write(frame(header[2], reply))
        await reader.read()

    async def main() -> None:
        settings = Waits().settings(attempts=0)
        async with Peer(script) as peer, FlyMQClient(peer.address, settings=settings) as client:
            await client.create_topic("t")
            with pytest.raises(Refused, match="CREATE_TOPIC t was refused: no"):
                await client.create_topic("t")

    run(main())


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400", b"\xaf\x02\x01\x01\0\0\0\0", b"\xaf\x01\x01\x01\xff\xff\xff\xff"]
)
def test_bytes_that_break_the_protocol(reply: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(reply)
        await reader.read()

    async def main() -> None:
        settings = Waits().settings(attempts=0)
        async with Peer(script) as peer, FlyMQClient(peer.address, settings=settings) as client:
            with pytest.raises(ProtocolViolation):
                await client.list_topics()

    run(main())


def test_what_cannot_be_read_is_said() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for opcode, payload in ((0x08, b"\x00"), (0x09, b"")):
            await reader.readexactly(8)
            writer.write(frame(opcode, payload))
        await reader.read()

    async def main() -> None:
        settings = Waits().settings(attempts=0)
        async with Peer(script) as peer, FlyMQClient(peer.address, settings=settings) as client:
            with pytest.raises(Refused, match="the answer cannot be read: invalid binary format"):
                await client.list_topics()
            with pytest.raises(Refused, match="the server answered with opcode 0x09"):
                await client.list_topics()

    run(main())


def test_after_a_loss_it_logs_in_again_and_repeats_what_does_no_harm() -> None:
    """A PRODUCE that was cut off is not repeated: it may have arrived."""
    seen: list[list[int]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append([])
        while True:
            header = await reader.readexactly(8)
            await reader.readexactly(int.from_bytes(header[4:], "big"))
            opcode = header[2]
            seen[-1].append(opcode)
            if opcode == 0x70:
                writer.write(frame(0x71, b"\x01" + text("") + text("al") + names()))
            elif len(seen) <= 2:
                writer.close()
                return
            else:
                writer.write(frame(0x02, blob(b"k") + blob(b"v")))

    async def main() -> None:
        settings = Waits().settings(attempts=3)
        async with Peer(script) as peer:
            client = FlyMQClient(peer.address, user="al", key="pw", settings=settings)
            async with client:
                with pytest.raises(ConnectionLost):
                    await client.produce("t", b"v")
                assert (await client.get("t", 0, 0)).value == b"v"
                assert client.reconnects == 2

    run(main())
    assert seen == [[0x70, 0x01], [0x70, 0x02], [0x70, 0x02]]


# ---- members that share partitions ---------------------------------------------------------------


def test_members_of_a_group_share_the_partitions(server: LiveServer, topic: str) -> None:
    """Each record is read, also those of a member that has left in the middle of a batch."""

    async def main() -> None:
        async with FlyMQClient(address(server)) as one, FlyMQClient(address(server)) as other:
            await one.create_topic(topic, 4)
            for number in range(40):
                await one.produce(topic, b"%d" % number, partition=number % 4)
            seen: set[bytes] = set()
            left = one.consume_group(topic, "g", max_messages=3)
            first = await anext(left)
            assert len(first) == 3
            await left.aclose()  # not committed: the other reads them
            async for batch in other.consume_group(topic, "g", max_messages=3):
                seen.update(batch.values)
                if len(seen) == 40:
                    break
            assert seen == {b"%d" % number for number in range(40)}

    run(main())


def test_a_member_that_was_forgotten_joins_again(server: LiveServer, topic: str) -> None:
    async def main() -> None:
        async with FlyMQClient(address(server)) as client:
            await client.create_topic(topic, 2)
            await client.produce(topic, b"a", partition=0)
            batches = client.consume_group(topic, "g", timeout_ms=1_000)
            assert (await anext(batches)).values == [b"a"]
            sharing = server.server.broker.sharing
            await asyncio.to_thread(server.call, lambda: sharing.forget_topic(topic))
            await client.produce(topic, b"b", partition=1)
            assert (await anext(batches)).values == [b"b"]
            while not await asyncio.to_thread(server.call, lambda: ("g", topic) in sharing._shared):
                await client.produce(topic, b"c", partition=1)
                await anext(batches)
            await batches.aclose()

    run(main())
