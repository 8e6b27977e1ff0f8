"""The RustLog client against servers that are not ours, over a real socket."""

import asyncio
import json
from typing import Any

import pytest
from client.peer import JsonServer, Peer, Script, Waits, answers, closes, json_frames, run, silent
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.blocking import LoopThread
from penstock.client.errors import (
    ClientError,
    ConnectionLost,
    NotAuthorized,
    NotFound,
    ProtocolViolation,
    RecordsTooLarge,
    Refused,
    RequestTimedOut,
)
from penstock.client.rustlog import SAFE_JSON_BYTES, Dialect, RustLogClient, connect_rustlog
from penstock.client.tally import Tally
from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog.frames import (
    CreateTopic,
    Fetch,
    ListTopics,
    OffsetCommit,
    Ping,
    Produce,
    Request,
)

BINARY_ONLY = rustlog_binary_reply.encode_error(2, "Decode error: unknown request type: 123")


def client_of(peer: Peer, dialect: Dialect = "json", **options: Any) -> RustLogClient:
    return RustLogClient(peer.address, dialect=dialect, settings=Waits().settings(**options))


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_produce_fetch_and_offsets(byte_by_byte: bool) -> None:
    async def main() -> None:
        server = JsonServer(byte_by_byte=byte_by_byte)
        async with Peer(server.script) as peer, client_of(peer) as client:
            assert await client.produce("demo", 0, [b"a", b"", bytes(range(256))]) == [0, 1, 2]
            assert await client.produce("demo", 0, []) == []
            batch = await client.fetch("demo", 0, 1)
            assert (list(batch.offsets), batch.values) == ([1, 2], [b"", bytes(range(256))])
            assert (batch.next_offset, len(batch)) == (3, 2)
            assert await client.end_offset("demo", 0) == 3
            assert await client.committed("demo", 0, "g") is None
            await client.commit("demo", 0, "g", 2)
            assert await client.committed("demo", 0, "g") == 2
            await client.ping()

    run(main())


def test_produces_are_pipelined_in_order() -> None:
    """The server answers nothing before it has seen all of them."""

    async def main() -> None:
        seen = 0

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            while seen < 5:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                seen += 1
            writer.write(
                b"".join(json_frames(json.dumps({"Produce": {"offsets": [n]}})) for n in range(5))
            )
            await silent(reader, writer)

        async with Peer(script) as peer, client_of(peer) as client:
            many = client.produce_many("demo", 0, [[b"a"], [b"b"], [b"c"]])
            ones = [client.produce("demo", 0, [b"d"]), client.produce("demo", 0, [b"e"])]
            assert await asyncio.gather(many, *ones) == [[[0], [1], [2]], [3], [4]]

    run(main())


def test_more_requests_than_may_be_in_flight() -> None:
    async def main() -> None:
        server = JsonServer()
        async with Peer(server.script) as peer, client_of(peer) as client:
            offsets = await client.produce_many("demo", 0, [[b"x"]] * 300)
            assert offsets == [[number] for number in range(300)]

    run(main())


def test_consume_from_the_committed_offset_and_commit() -> None:
    async def main() -> None:
        server = JsonServer()
        async with Peer(server.script) as peer, client_of(peer) as client:
            await client.produce("demo", 0, [b"%d" % number for number in range(6)])
            await client.commit("demo", 0, "g", 1)
            got: list[bytes] = []
            async for batch in client.consume("demo", 0, group="g"):
                got += batch.values
                if batch.next_offset == 5:
                    break
            assert got == [b"1", b"2", b"3", b"4"]
            # The batch that the consumer left in is not committed, the one before is.
            assert server.committed == {"g": 3}

    run(main())


def test_consume_waits_at_the_end_and_goes_on_after_a_lost_connection() -> None:
    async def main() -> None:
        server, waits = JsonServer(), Waits()
        async with Peer(server.script) as peer:
            settings = waits.settings()
            async with (
                RustLogClient(peer.address, settings=settings) as client,
                client_of(peer) as other,
            ):
                batches = client.consume("demo", 0)
                following = asyncio.ensure_future(anext(batches))
                while len(waits.delays_s) < 8:
                    await other.ping()
                assert waits.delays_s[:7] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1]
                server.cut_before.add("Fetch")
                while client.reconnects == 0:
                    await other.ping()
                await other.produce("demo", 0, [b"late"])
                assert (await following).values == [b"late"]
                await batches.aclose()

    run(main())


def test_a_produce_that_was_cut_off_is_not_repeated() -> None:
    async def main() -> None:
        server = JsonServer()
        server.cut_before.add("Produce")
        async with Peer(server.script) as peer, client_of(peer) as client:
            with pytest.raises(ConnectionLost):
                await client.produce("demo", 0, [b"x"])
            server.cut_before.add("Ping")
            await client.ping()
        assert server.kinds == ["Produce", "Ping", "Ping"]

    run(main())


def test_errors_carry_the_text_and_the_kind() -> None:
    async def main() -> None:
        async with Peer(JsonServer().script) as peer, client_of(peer) as client:
            with pytest.raises(NotFound, match="partition not found: topic=no, partition=3") as got:
                await client.produce("no", 3, [b"x"])
            assert (got.value.code, got.value.exit_code) == (0, 3)
            with pytest.raises(NotFound):
                await client.commit("demo", 0, "forbidden", 1)

    run(main())


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("anonymous may not publish to topic 'demo': that needs the right write", True),
        ("the key 'app' is revoked", True),
        ("Not authorized: produce", False),
    ],
)
def test_a_refusal_for_want_of_rights(text: str, hint: bool) -> None:
    async def main() -> None:
        reply = json_frames(json.dumps({"Error": {"message": text}}))
        async with Peer(answers(reply)) as peer, client_of(peer) as client:
            with pytest.raises(NotAuthorized) as caught:
                await client.produce("demo", 0, [b"x"])
            assert (caught.value.text, caught.value.exit_code) == (text, 5)
            notes = getattr(caught.value, "__notes__", [])
            assert ["rustlog.principal" in note for note in notes] == [True] * hint

    run(main())


def test_what_became_of_the_records() -> None:
    async def main() -> None:
        server = JsonServer()
        server.room = 3
        async with Peer(server.script) as peer, client_of(peer) as client:
            with pytest.raises(Refused, match="no space"):
                await client.produce_many("demo", 0, [[b"a", b"b"], [b"c", b"d"], [b"e"]])
            assert client.tally == Tally(published=5, confirmed=3, refused=2)
            server.cut_before.add("Produce")
            with pytest.raises(ConnectionLost):
                await client.produce("demo", 0, [b"f", b"g"])
            assert (client.tally.published, client.tally.unanswered) == (7, 2)
            await client.ping()
            assert client.tally.unanswered == 2

    run(main())


def test_a_server_of_the_other_dialect_is_understood_when_it_refuses() -> None:
    async def main() -> None:
        async with Peer(answers(BINARY_ONLY)) as peer, client_of(peer) as client:
            with pytest.raises(Refused, match="unknown request type: 123") as caught:
                await client.ping()
            assert caught.value.code == 2

    run(main())


def test_the_binary_dialect() -> None:
    """The golden vectors of the protocol page, both ways."""
    exchanges: list[tuple[Request, str, str]] = [
        (CreateTopic("demo", 1), "0000000B05000464656D6F00000001", "000000020501"),
        (
            Produce("demo", 0, [b"hi"]),
            "0000001501000464656D6F0000000000000001000000026869",
            "0000000D01000000000000000000000001",
        ),
        (
            Fetch("demo", 0, 0, 1024, None),
            "00000019020000000464656D6F00000000000000000000000000000400",
            "0000001302000000010000000268690000000000000001",
        ),
        (
            OffsetCommit("demo", 0, "g", 5),
            "0000001603000167000464656D6F000000000000000000000005",
            "000000020301",
        ),
        (ListTopics(), "0000000106", "0000000F0600000001000464656D6F00000001"),
        (Ping(), "00000001FF", "00000001FF"),
    ]
    for request, asked, _ in exchanges:
        assert rustlog_binary.encode_request(request).hex().upper() == asked

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _, asked, answered in exchanges:
            assert (await reader.readexactly(len(asked) // 2)).hex().upper() == asked
            writer.write(bytes.fromhex(answered))
        await reader.read(1)
        writer.write(rustlog_binary_reply.encode_error(10, "Topic or partition does not exist"))
        await silent(reader, writer)

    async def main() -> None:
        async with Peer(script) as peer, client_of(peer, "binary") as client:
            await client.create_topic("demo")
            assert list(await client.produce("demo", 0, [b"hi"])) == [0]
            assert (await client.fetch("demo", 0, 0, max_bytes=1024)).values == [b"hi"]
            await client.commit("demo", 0, "g", 5)
            assert await client.list_topics() == {"demo": 1}
            await client.ping()
            with pytest.raises(NotFound) as caught:
                await client.fetch("no", 0, 0)
            assert caught.value.code == 10
            with pytest.raises(ValueError, match="log end"):
                await client.end_offset("demo", 0)

    run(main())


def test_requests_that_no_frame_can_hold() -> None:
    async def main() -> None:
        async with Peer(JsonServer().script) as peer, client_of(peer) as client:
            with pytest.raises(ValueError, match="frame of"):
                await client.produce("demo", 0, [bytes(11_000_000)])
            with pytest.raises(RecordsTooLarge, match="with 2 messages of 6000000 bytes") as caught:
                await client.produce("demo", 0, [bytes(5_000_000), bytes(1_000_000)])
            assert caught.value.safe_bytes == SAFE_JSON_BYTES
            assert len(await client.produce("demo", 0, [b"\xff" * SAFE_JSON_BYTES])) == 1
            assert client.tally.published == 1
            await client.ping()
        async with Peer(answers(BINARY_ONLY)) as peer, client_of(peer, "binary") as client:
            with pytest.raises(RecordsTooLarge, match="up to 10481664 bytes always fit") as caught:
                await client.produce("demo", 0, [bytes(10_500_000)])
            assert "number" not in str(caught.value)
            with pytest.raises(ValueError, match="text of 70000 bytes"):
                await client.produce("x" * 70_000, 0, [b"x"])
        with pytest.raises(ValueError, match="dialect"):
            client_of(peer, "xml")  # type: ignore[arg-type]  # what the test is about

    run(main())


def test_no_answer_in_time() -> None:
    async def main() -> None:
        async with Peer(silent) as peer:
            client = client_of(peer, attempts=0, timeout_s=0.05)
            async with client:
                with pytest.raises(RequestTimedOut, match=r"did not answer Ping within 0\.05 s"):
                    await client.ping()

    run(main())


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answers(b"\x00\x00\x00\x00"), ProtocolViolation),
        (answers(b"\xff\xff\xff\xff"), ProtocolViolation),
        (answers(json_frames('{"Pong":1}')), ProtocolViolation),
        (answers(json_frames('"Pong"', '"Pong"')), ProtocolViolation),
        (answers(json_frames('{"Produce":{"offsets":[1]}}')), Refused),
        (closes(b"\x00\x00"), ConnectionLost),
        (closes(), ConnectionLost),
    ],
)
def test_bad_peers(script: Script, error: type[ClientError]) -> None:
    async def main() -> None:
        async with Peer(script) as peer, client_of(peer, attempts=0) as client:
            with pytest.raises(error):
                await client.ping()
                await client.ping()

    run(main())


@given(st.binary(max_size=64), st.sampled_from(["json", "binary"]))
@settings(max_examples=60)
def test_any_bytes_parse_or_raise_a_client_error(data: bytes, dialect: Dialect) -> None:
    async def main() -> None:
        script = closes(len(data).to_bytes(4, "big") + data)
        async with Peer(script) as peer, client_of(peer, dialect, attempts=0) as client:
            try:
                await client.ping()
            except ClientError:
                return

    run(main())


def test_the_blocking_face() -> None:
    thread = LoopThread()
    peer = Peer(JsonServer().script)
    thread.run(peer.__aenter__())
    try:
        with connect_rustlog(peer.address) as client:
            assert client.produce("demo", 0, [b"a", b"b", b"c"]) == [0, 1, 2]
            got: list[bytes] = []
            for batch in client.consume("demo", 0):
                got += batch.values
                if len(got) == 3:
                    break
            assert got == [b"a", b"b", b"c"]
    finally:
        thread.run(peer.__aexit__(None, None, None))
        thread.stop()
