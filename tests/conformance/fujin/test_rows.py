"""Fujin over real QUIC: the rows of its table, with the bytes that they name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.quic import Wire
from kit.limits import HANG_S
from kit.live_server import LiveServer
from sessions.fujin.peer import EXAMPLE, WRITER, connect_reader, done, failed, fetch, message, write

from penstock.wire.fujin.reading import encode_id, encode_settle
from penstock.wire.fujin.writing import encode_write

SETTINGS = {
    "fujin.routes": (
        '{ pub = { topic = "t" }, work = { topic = "t", group = "billing" }, gone = { topic = "x" } }'
    ),
    "fujin.ping_interval": "100 ms",
    "fujin.fetch_max_wait": "100 ms",
}
BEGIN, COMMIT, ROLLBACK = (bytes([opcode, 0, 0, 0, 9]) for opcode in (4, 5, 6))
DISCONNECT = b"\x0a"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(Path(tmp_path_factory.mktemp("fujin")) / "data", SETTINGS) as server:
        server.call(lambda: server.server.broker.create_topic(ANYBODY, "t", 1))
        server.call(lambda: server.server.broker.create_topic(ANYBODY, "u", 1))
        yield server


@pytest.fixture
def wire(live: LiveServer) -> Iterator[Wire]:
    made = Wire(live, ["fujin"])
    yield made
    made.close()


@pytest.mark.row("fujin-1")
def test_the_application_is_fujin_and_no_other_name_like_it(live: LiveServer) -> None:
    good = Wire(live, ["fujin"])
    assert good.peer.application == "fujin"
    good.close()
    for names, listener in ((["fujin/1"], "udp"), (["other"], "fujin"), (None, "fujin")):
        refused = Wire(live, names, listener)
        assert refused.closed()[0] == 0x100 + 120
        refused.close()


@pytest.mark.row("fujin-4")
def test_each_stream_is_a_session(wire: Wire) -> None:
    streams = [wire.open(WRITER) for _ in range(5)]
    for number, stream in enumerate(streams):
        wire.ask(stream, write(number, b"x"), done(2, number))


@pytest.mark.row("fujin-5")
@pytest.mark.row("fujin-6")
@pytest.mark.row("fujin-7")
def test_pings_on_streams_of_their_own(wire: Wire) -> None:
    for number in range(3):
        wire.until(lambda number=number: len(wire.server_streams(unidirectional=False)) > number)  # type: ignore[misc]
        stream = wire.server_streams(unidirectional=False)[number]
        wire.until(lambda stream=stream: stream in wire.peer.finished)  # type: ignore[misc]
        assert wire.peer.received[stream] == b"\x0b"
        wire.send(stream, b"\x0b" if number else b"", fin=True)
    assert wire.peer.closed is None


@pytest.mark.row("fujin-8")
def test_a_client_that_does_not_answer_is_closed_with_3(tmp_path: Path) -> None:
    settings = {"fujin.ping_interval": "10 ms", "fujin.ping_timeout": "10 ms"}
    with LiveServer(tmp_path / "data", settings) as live:
        wire = Wire(live, ["fujin"])
        code, reason = wire.closed()
        assert code == 3 and reason.startswith("read: ")
        wire.close()


@pytest.mark.row("fujin-12")
def test_streams_in_one_direction_are_ignored(wire: Wire) -> None:
    wire.open(WRITER + EXAMPLE, unidirectional=True)
    stream = wire.open(WRITER)
    wire.ask(stream, write(1, b"x"), done(2, 1))


@pytest.mark.row("fujin-14")
@pytest.mark.row("fujin-15")
@pytest.mark.row("fujin-16")
@pytest.mark.parametrize("id", [b"\1\0\0\0\0", b"\1\0\0\0\1", b"\1\0\0\0\2id"])
def test_writer_ids(wire: Wire, id: bytes) -> None:
    wire.ask(wire.open(id), write(1, b"x"), done(2, 1))


@pytest.mark.row("fujin-13")
@pytest.mark.row("fujin-17")
@pytest.mark.row("fujin-19")
@pytest.mark.row("fujin-20")
@pytest.mark.row("fujin-21")
@pytest.mark.row("fujin-22")
@pytest.mark.row("fujin-23")
@pytest.mark.row("fujin-25")
@pytest.mark.row("fujin-33")
@pytest.mark.row("fujin-52")
@pytest.mark.row("fujin-53")
@pytest.mark.row("fujin-54")
@pytest.mark.row("fujin-55")
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (WRITER + write(1, b"x") + b"\x0b", done(2, 1) + DISCONNECT),
        (WRITER + fetch(1), DISCONNECT),
        (WRITER + WRITER, DISCONNECT),
        (connect_reader("t") + WRITER, b"\1\0" + DISCONNECT),
        (b"\x00", b""),
        (b"\x0b", b""),
        (DISCONNECT, DISCONNECT),
        (WRITER + write(1, b"x") * 3 + DISCONNECT + b"dropped", done(2, 1, 1, 1) + DISCONNECT),
        (connect_reader("t") + DISCONNECT, b"\1\0" + DISCONNECT),
        (
            WRITER + bytes([3, 0, 0, 0, 1, 0, 0, 0, 0]),
            failed(2, 1, "writer topic len arg not provided") + DISCONNECT,
        ),
        (b"\2\3\0", b"\1\1\0\0\0\x13invalid reader type"),
        (b"\2\1\2", b"\1\1\0\0\0\x29connect reader is auto commit arg invalid"),
        (b"\2\1\0\0\0\0\0", b"\1\1\0\0\0\x21reader name size arg not provided"),
        (connect_reader("gone"), b"\1\1\0\0\0\x10reader not found"),
    ],
)
def test_what_ends_a_session(wire: Wire, sent: bytes, expected: bytes) -> None:
    assert wire.rest(wire.open(sent)) == expected


@pytest.mark.row("fujin-18")
@pytest.mark.row("fujin-24")
def test_the_end_of_a_stream_rolls_back(live: LiveServer, wire: Wire) -> None:
    expected = done(3, 9) + done(2, 1) + DISCONNECT
    assert wire.rest(wire.open(WRITER + BEGIN + write(1, b"never"), fin=True)) == expected
    assert wire.rest(wire.open(WRITER + BEGIN + write(1, b"never") + b"\x07")) == expected
    assert live.call(lambda: len(live.server.broker.transactions)) == 0


@pytest.mark.row("fujin-28")
def test_commands_byte_by_byte(wire: Wire) -> None:
    stream = wire.open()
    for byte in WRITER + EXAMPLE + write(2, b"y") + DISCONNECT:
        wire.send(stream, bytes([byte]))
    assert wire.rest(stream) == done(2, 0x010101) + done(2, 2) + DISCONNECT


@pytest.mark.row("fujin-30")
@pytest.mark.row("fujin-32")
@pytest.mark.row("fujin-37")
@pytest.mark.row("fujin-38")
@pytest.mark.row("fujin-39")
def test_writes(wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, EXAMPLE, bytes([2, 0, 1, 1, 1, 0]))
    wire.ask(stream, write(0, b"x", b"none"), failed(2, 0, "writer not found"))
    wire.ask(stream, write(0, b"x") * 2, done(2, 0, 0))
    wire.ask(stream, encode_write(5, b"t", b"with", [(b"n", b"v")]), done(2, 5))


@pytest.mark.row("fujin-35")
def test_a_large_message(wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, write(1, bytes([7]) * 1_048_576), done(2, 1))
    text = "message too large, the most is 16777216 bytes"
    head = encode_write(2, b"t", b"", None)[:-4]
    wire.ask(stream, head + (16_777_217).to_bytes(4, "big"), failed(2, 2, text))


@pytest.mark.row("fujin-40")
@pytest.mark.row("fujin-41")
@pytest.mark.row("fujin-42")
@pytest.mark.row("fujin-43")
@pytest.mark.row("fujin-49")
@pytest.mark.row("fujin-50")
def test_transactions(live: LiveServer, wire: Wire) -> None:
    stream = wire.open(WRITER)
    wire.ask(stream, COMMIT, failed(4, 9, "invalid tx state"))
    wire.ask(stream, ROLLBACK, failed(5, 9, "invalid tx state"))
    wire.ask(stream, BEGIN + BEGIN, done(3, 9) + failed(3, 9, "invalid tx state"))
    wire.ask(stream, COMMIT, done(4, 9))
    wire.ask(stream, BEGIN + write(1, b"a", b"u"), done(3, 9) + done(2, 1))
    assert live.call(lambda: live.server.broker.offsets("u", 0)) == (0, 0)
    wire.ask(stream, COMMIT, done(4, 9))
    assert live.call(lambda: live.server.broker.offsets("u", 0)) == (0, 1)
    wire.ask(stream, BEGIN + write(1, b"b", b"u") + ROLLBACK, done(3, 9) + done(2, 1) + done(5, 9))
    assert live.call(lambda: live.server.broker.offsets("u", 0)) == (0, 1)


@pytest.mark.row("fujin-51")
@pytest.mark.row("fujin-56")
@pytest.mark.row("fujin-59")
@pytest.mark.row("fujin-63")
@pytest.mark.row("fujin-65")
@pytest.mark.row("fujin-66")
def test_pushed_messages_for_each_reader_alone(wire: Wire) -> None:
    readers = [wire.open(connect_reader("u", auto_commit=True)) for _ in range(2)]
    for reader in readers:
        assert wire.take(reader, 2) == b"\1\0"
    wire.ask(wire.open(WRITER), write(1, b"hello", b"u"), done(2, 1))
    for reader in readers:
        assert wire.take(reader, 10) == bytes([6, 0, 0, 0, 5]) + b"hello"
    wire.ask(readers[0], fetch(1), failed(7, 1, "invalid reader type"))


@pytest.mark.row("fujin-60")
@pytest.mark.row("fujin-61")
@pytest.mark.row("fujin-62")
@pytest.mark.row("fujin-64")
@pytest.mark.row("fujin-67")
@pytest.mark.row("fujin-69")
@pytest.mark.row("fujin-70")
@pytest.mark.row("fujin-71")
@pytest.mark.row("fujin-72")
@pytest.mark.row("fujin-74")
@pytest.mark.row("fujin-76")
@pytest.mark.row("fujin-78")
@pytest.mark.row("fujin-79")
@pytest.mark.row("fujin-81")
@pytest.mark.row("fujin-82")
@pytest.mark.row("fujin-84")
@pytest.mark.row("fujin-87")
@pytest.mark.row("fujin-89")
def test_a_group_that_fetches_and_settles(live: LiveServer, wire: Wire) -> None:
    reader = wire.open(connect_reader("work", push=False))
    assert wire.take(reader, 2) == b"\1\0"
    wire.ask(reader, fetch(0), failed(7, 1, "fetch arg not provided"))
    wire.ask(reader, fetch(5), b"\7\0\0\0\1\0\0\0\0\0")
    first = live.call(lambda: live.server.broker.offsets("t", 0))[1]
    wire.ask(wire.open(WRITER), write(1, b"a") + write(2, b"b"), done(2, 1, 2))
    wire.ask(reader, fetch(1, 3), b"\7\0\0\0\3\0\0\0\0\1" + message(first, b"a"))
    wire.ask(reader, fetch(9, 4), b"\7\0\0\0\4\0\0\0\0\1" + message(first + 1, b"b"))
    wire.ask(reader, encode_settle(8, 5, []), b"\10\0\0\0\5\0\0\0\0\0")
    ids = [encode_id(0, first), b"", b"no"]
    lost = b"\1\0\0\0\x0dmsg not found"
    expected = b"\0\0\0\x0c" + ids[0] + b"\0" + b"\0\0\0\0" + lost + b"\0\0\0\2no" + lost
    wire.ask(reader, encode_settle(8, 6, ids), b"\10\0\0\0\6\0\0\0\0\3" + expected)
    assert live.call(lambda: live.server.broker.committed_offset("billing", "t", 0)) == first + 1
    id = encode_id(0, first + 1)
    nacked = b"\11\0\0\0\7\0\0\0\0\1\0\0\0\x0c" + id + b"\0"
    wire.ask(reader, encode_settle(9, 7, [id]), nacked)
    again = b""
    while len(again) <= 10:  # empty until the backoff is over
        wire.send(reader, fetch(9))
        again = wire.take(reader, 10)
        if again[-1:] == b"\1":
            again += wire.take(reader, len(message(first + 1, b"b")))
    assert again == b"\7\0\0\0\1\0\0\0\0\1" + message(first + 1, b"b")


@pytest.mark.row("fujin-68")
@pytest.mark.row("fujin-86")
def test_a_fetch_with_auto_commit(wire: Wire) -> None:
    reader = wire.open(connect_reader("u", push=False, auto_commit=True))
    assert wire.take(reader, 2) == b"\1\0"
    wire.ask(wire.open(WRITER), write(1, b"hello", b"u"), done(2, 1))
    wire.ask(reader, fetch(1), b"\7\0\0\0\1\0\0\0\0\1\0\0\0\5hello")
    text = "auto commit is on, there is nothing to settle"
    wire.ask(reader, encode_settle(8, 1, [b"x"]), failed(8, 1, text))


@pytest.mark.row("fujin-80")
def test_the_examples_of_ack_wait_for_an_id(wire: Wire) -> None:
    reader = wire.open(connect_reader("u"))
    assert wire.take(reader, 2) == b"\1\0"
    wire.send(reader, bytes([8, 0, 0, 0, 1, 0, 0, 0, 1]))
    wire.ask(reader, b"\0\0\0\1x", b"\10\0\0\0\1\0\0\0\0\1\0\0\0\1x\1\0\0\0\x0dmsg not found")


@pytest.mark.row("fujin-10")
def test_a_client_that_closes_leaves_nothing(live: LiveServer) -> None:
    wire = Wire(live, ["fujin"])
    wire.ask(wire.open(WRITER), BEGIN + write(1, b"never"), done(3, 9) + done(2, 1))
    wire.close()
    broker = live.server.broker
    probe = Wire(live, ["fujin"])
    probe.until(lambda: live.call(lambda: len(broker.transactions)) == 0)
    probe.close()


@pytest.mark.row("fujin-26")
@pytest.mark.row("fujin-27")
def test_a_server_that_stops_says_so_and_waits(tmp_path: Path) -> None:
    live = LiveServer(tmp_path / "data")
    with live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        stream = wire.open(WRITER)
        wire.ask(stream, write(1, b"x"), done(2, 1))
        stopping = live.begin(live.server.stop())
        assert wire.take(stream, 1) == b"\x0c"
        wire.send(stream, DISCONNECT)
        assert wire.rest(stream) == DISCONNECT
        assert wire.closed()[0] == 0
        wire.close()
        stopping.result(HANG_S)
