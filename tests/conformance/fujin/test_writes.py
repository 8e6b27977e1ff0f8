"""Fujin over real QUIC, rows 30 to 50: WRITE and transactions of the log, not those of connectors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.fujin.kit import BEGIN, COMMIT, DISCONNECT, ROLLBACK, SETTINGS, end
from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.fujin.peer import EXAMPLE, WRITER, connect_reader, done, failed, write

from penstock.broker.broker import Broker
from penstock.log.engine import ReadResult
from penstock.wire.fujin.writing import encode_write


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LiveServer]:
    """For clients that never send headers."""
    settings = {**SETTINGS, "fujin.write_headers": "off"}
    with LiveServer(tmp_path / "data", settings) as server:
        server.call(lambda: server.server.broker.create_topic(ANYBODY, "t", 1))
        yield server


def last(live: LiveServer, topic: str) -> tuple[bytes, dict[bytes, bytes]]:
    """Value and headers of the last record."""
    broker = live.server.broker
    offset = end(live, topic) - 1
    found = live.run(read(broker, topic, offset))
    record = found.views[0].record(found.views[0].first_row)
    return record.value or b"", dict(record.headers)


async def read(broker: Broker, topic: str, offset: int) -> ReadResult:
    return await broker.read(ANYBODY, topic, 0, offset, 10_000_000)


@pytest.mark.row("fujin-30")
def test_the_example_of_the_document(live: LiveServer, wire: Wire) -> None:
    wire.ask(wire.open(WRITER), EXAMPLE, bytes([2, 0, 1, 1, 1, 0]))
    assert last(live, "t") == (b"hello", {})


@pytest.mark.row("fujin-30")
def test_the_example_with_headers_off(plain: LiveServer) -> None:
    wire = Wire(plain, ["fujin"])
    wire.ask(wire.open(WRITER), EXAMPLE, bytes([2, 0, 1, 1, 1, 0]))
    assert last(plain, "t") == (b"hello", {})
    # What would be taken for headers elsewhere: 65,536 bytes.
    wire.ask(wire.open(WRITER), encode_write(1, b"t", bytes(65_536), None), done(2, 1))
    assert last(plain, "t") == (bytes(65_536), {})
    wire.close()


@pytest.mark.row("fujin-31")
def test_the_form_of_the_table_with_headers(live: LiveServer, wire: Wire) -> None:
    """Told apart by its bytes where the listener says auto."""
    stream = wire.open(WRITER)
    wire.ask(stream, encode_write(5, b"t", b"with", [(b"n", b"v"), (b"m", b"")]), done(2, 5))
    assert last(live, "t") == (b"with", {b"n": b"v", b"m": b""})
    wire.ask(stream, encode_write(6, b"t", b"none", []), done(2, 6))
    assert last(live, "t") == (b"none", {})


@pytest.mark.row("fujin-31")
def test_headers_always(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", {"fujin.write_headers": "on"}) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        wire.ask(wire.open(WRITER), encode_write(1, b"t", bytes(65_536), []), done(2, 1))
        assert last(live, "t") == (bytes(65_536), {})
        odd = b"\3\0\0\0\1\0\0\0\1t\0\1\0\0\0\1n\0\0\0\1v"
        stream = wire.open(WRITER)
        wire.send(stream, odd)
        reply = wire.take(stream, 6)
        assert reply == b"\2\0\0\0\1\1"
        wire.close()


@pytest.mark.row("fujin-32")
@pytest.mark.row("fujin-39")
def test_an_unknown_writer(wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, write(7, b"x", b"none"), failed(2, 7, "writer not found"))
    wire.ask(stream, write(8, b"x", b"gone"), failed(2, 8, "writer not found"))
    wire.ask(stream, write(9, b"x"), done(2, 9))


@pytest.mark.row("fujin-39")
@pytest.mark.parametrize("setting", ["fujin.auto_create", "fujin.only_routes"])
def test_names_are_routes_and_topics_as_the_configuration_says(
    tmp_path: Path, setting: str
) -> None:
    with LiveServer(tmp_path / "data", {**SETTINGS, setting: "true"}) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        made = setting == "fujin.auto_create"
        expected = done(2, 1) if made else failed(2, 1, "writer not found")
        wire.ask(wire.open(WRITER), write(1, b"x", b"new"), expected)
        wire.ask(wire.open(WRITER), EXAMPLE, done(2, 0x010101))
        assert end(live, "t") == 1
        wire.close()


@pytest.mark.row("fujin-33")
def test_a_topic_of_no_length(wire: Wire) -> None:
    words = b"\2\0\0\0\1\1\0\0\0\x21writer topic len arg not provided"
    sent = WRITER + bytes([3, 0, 0, 0, 1, 0, 0, 0, 0])
    assert wire.rest(wire.open(sent)) == words + DISCONNECT


@pytest.mark.row("fujin-34")
def test_a_message_of_no_length(plain: LiveServer) -> None:
    """The session goes on, and nothing is stored."""
    wire = Wire(plain, ["fujin"])
    stream = wire.open(WRITER)
    words = b"\2\0\0\0\1\1\0\0\0\x1bwrite size arg not provided"
    wire.ask(stream, encode_write(1, b"t", b"", None), words)
    assert end(plain, "t") == 0
    wire.ask(stream, encode_write(2, b"t", b"x", None), done(2, 2))
    wire.close()


@pytest.mark.row("fujin-34")
def test_a_message_of_no_length_behind_headers(wire: Wire, live: LiveServer) -> None:
    before = end(live, "t")
    stream = wire.open(WRITER)
    expected = failed(2, 1, "write size arg not provided")
    wire.ask(stream, encode_write(1, b"t", b"", [(b"n", b"v")]), expected)
    wire.ask(stream, write(2, b"x"), done(2, 2))
    assert end(live, "t") == before + 1


@pytest.mark.row("fujin-35")
def test_large_messages(wire: Wire, live: LiveServer) -> None:
    stream = wire.open(WRITER)
    for size in (65_535, 65_537, 1_048_577):
        wire.ask(stream, encode_write(1, b"t", bytes([7]) * size, [(b"n", b"v")]), done(2, 1))
        assert last(live, "t")[0] == bytes([7]) * size
    head = encode_write(2, b"t", b"", [(b"n", b"v")])[:-4]
    text = "message too large, the most is 16777216 bytes"
    wire.ask(stream, head + (16_777_217).to_bytes(4, "big"), failed(2, 2, text))
    # Its bytes are skipped, and the session goes on behind them.
    for _ in range(16):
        wire.send(stream, bytes(1_048_576))
    wire.ask(stream, b"\0" + write(3, b"after"), done(2, 3))
    assert last(live, "t")[0] == b"after"


@pytest.mark.row("fujin-37")
@pytest.mark.row("fujin-38")
def test_results_are_in_order_for_each_topic_and_ids_come_back(wire: Wire) -> None:
    repeated = [0, 0, 7, 7, 0xFFFFFFFF, 1]
    sent = b"".join(write(cid, b"x") for cid in repeated)
    wire.ask(wire.open(WRITER), sent, done(2, *repeated))
    stream = wire.open(WRITER)
    wire.send(stream, b"".join(write(n, b"x", (b"t", b"u")[n % 2]) for n in range(40)))
    results = wire.take(stream, 40 * 6)
    cids = [int.from_bytes(results[at + 1 : at + 5], "big") for at in range(0, 240, 6)]
    for topic in range(2):
        assert [cid for cid in cids if cid % 2 == topic] == list(range(topic, 40, 2))


@pytest.mark.row("fujin-40")
@pytest.mark.row("fujin-41")
def test_begin(wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, write(1, b"x") * 3 + BEGIN, done(2, 1, 1, 1) + bytes([3, 0, 0, 0, 9, 0]))
    again = b"\3\0\0\0\x09\1\0\0\0\x10invalid tx state"
    wire.ask(stream, BEGIN, again)
    wire.ask(stream, COMMIT, bytes([4, 0, 0, 0, 9, 0]))


@pytest.mark.row("fujin-42")
def test_an_end_without_a_beginning(wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, COMMIT, b"\4\0\0\0\x09\1\0\0\0\x10invalid tx state")
    wire.ask(stream, ROLLBACK, b"\5\0\0\0\x09\1\0\0\0\x10invalid tx state")
    wire.ask(stream, write(1, b"x"), done(2, 1))


@pytest.mark.row("fujin-43")
@pytest.mark.parametrize(("last", "result"), [(COMMIT, 4), (ROLLBACK, 5)])
def test_an_empty_transaction(wire: Wire, last: bytes, result: int) -> None:
    wire.ask(wire.open(WRITER), (BEGIN + last) * 2, (done(3, 9) + done(result, 9)) * 2)


@pytest.mark.row("fujin-49")
@pytest.mark.row("fujin-50")
@pytest.mark.parametrize("writer", [WRITER, b"\1\0\0\0\2id"], ids=["no id", "id"])
def test_messages_of_a_transaction_appear_together(
    live: LiveServer, wire: Wire, writer: bytes
) -> None:
    before = end(live, "u"), end(live, "v")
    reader = wire.open(connect_reader("u", auto_commit=True))
    assert wire.take(reader, 2) == b"\1\0"
    stream = wire.open(writer)
    wire.ask(stream, BEGIN + write(1, b"first", b"u"), done(3, 9) + done(2, 1))
    wire.ask(stream, write(2, b"other", b"v"), done(2, 2))
    wire.ask(stream, write(3, b"third", b"u"), done(2, 3))
    assert (end(live, "u"), end(live, "v")) == before
    wire.ask(stream, COMMIT, done(4, 9))
    # On Kafka the end of the transaction takes an offset too.
    assert end(live, "u") >= before[0] + 2 and end(live, "v") >= before[1] + 1
    assert wire.take(reader, 20) == b"\6\0\0\0\5first\6\0\0\0\5third"


@pytest.mark.row("fujin-49")
def test_what_is_rolled_back_never_appears(live: LiveServer, wire: Wire) -> None:
    before = end(live, "u")
    stream = wire.open(WRITER)
    sent = BEGIN + write(1, b"b", b"u") + ROLLBACK
    wire.ask(stream, sent, done(3, 9) + done(2, 1) + done(5, 9))
    wire.ask(stream, write(2, b"plain", b"u"), done(2, 2))
    assert end(live, "u") == before + 1 and last(live, "u")[0] == b"plain"
