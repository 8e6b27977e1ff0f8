"""Fujin over real QUIC, rows 14 to 29: how sessions begin and end."""

from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.fujin.kit import BEGIN, CONNECTED, DISCONNECT, end
from conformance.quic import Wire
from kit.limits import HANG_S
from kit.live_server import LiveServer
from sessions.fujin.peer import EXAMPLE, WRITER, connect_reader, done, failed, fetch, write


def row(number: int, sent: bytes, expected: bytes) -> object:
    return pytest.param(
        sent, expected, marks=pytest.mark.row(f"fujin-{number}"), id=f"{number}-{sent[:12].hex()}"
    )


@pytest.mark.row("fujin-14")
@pytest.mark.row("fujin-15")
@pytest.mark.row("fujin-16")
@pytest.mark.parametrize(
    "id",
    [b"\1\0\0\0\0", b"\1\0\0\0\1", b"\1\0\0\0\2id", b"\1\0\0\0\x03abc", b"\1\0\0\1\0"],
    ids=["none", "number", "text", "text of 3", "256"],
)
@pytest.mark.parametrize("way", ["whole", "bytes"])
def test_writer_ids_have_no_reply(wire: Wire, id: bytes, way: str) -> None:
    stream = wire.open()
    for part in [id + write(1, b"x")] if way == "whole" else [bytes([one]) for one in id]:
        wire.send(stream, part)
    if way == "bytes":
        wire.send(stream, write(1, b"x"))
    assert wire.take(stream, len(done(2, 1))) == done(2, 1)


@pytest.mark.row("fujin-17")
@pytest.mark.row("fujin-19")
@pytest.mark.row("fujin-20")
@pytest.mark.row("fujin-21")
@pytest.mark.row("fujin-22")
@pytest.mark.row("fujin-23")
@pytest.mark.row("fujin-25")
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        row(17, WRITER + fetch(1), DISCONNECT),
        row(17, WRITER + write(1, b"x") + WRITER, done(2, 1) + DISCONNECT),
        row(17, WRITER + b"\xff" + write(1, b"x"), DISCONNECT),
        row(17, connect_reader("t") + write(1, b"x"), CONNECTED + DISCONNECT),
        row(17, connect_reader("t") + WRITER, CONNECTED + DISCONNECT),
        row(19, b"\x00", b""),
        row(19, b"\x0b", b""),
        row(19, write(1, b"x"), b""),
        row(20, DISCONNECT, DISCONNECT),
        row(21, WRITER + write(1, b"x") * 30 + DISCONNECT, done(2, *[1] * 30) + DISCONNECT),
        row(21, WRITER + BEGIN + DISCONNECT, done(3, 9) + DISCONNECT),
        row(22, connect_reader("t") + DISCONNECT, CONNECTED + DISCONNECT),
        row(23, WRITER + DISCONNECT + write(1, b"x"), DISCONNECT),
        row(25, WRITER + DISCONNECT, DISCONNECT),
    ],
)
def test_what_ends_a_session(wire: Wire, sent: bytes, expected: bytes) -> None:
    """These bytes, and the end of the server's side; the connection goes on."""
    stream = wire.open(sent)
    assert wire.rest(stream) == expected
    wire.until(lambda: stream in wire.peer.stops)
    assert wire.peer.stops[stream] == 0
    wire.ask(wire.open(WRITER), write(1, b"x"), done(2, 1))


@pytest.mark.row("fujin-21")
def test_n_results_of_six_bytes_and_one(wire: Wire) -> None:
    """What the benchmarks of clients count on."""
    assert len(wire.rest(wire.open(WRITER + write(1, b"x") * 1_000 + DISCONNECT))) == 6 * 1_000 + 1


@pytest.mark.row("fujin-22")
def test_no_message_comes_behind_a_disconnect(wire: Wire) -> None:
    reader = wire.open(connect_reader("u", auto_commit=True))
    assert wire.take(reader, 2) == CONNECTED
    wire.send(reader, DISCONNECT)
    wire.ask(wire.open(WRITER), write(1, b"late", b"u") * 20, done(2, *[1] * 20))
    assert wire.rest(reader).endswith(DISCONNECT)


@pytest.mark.row("fujin-18")
@pytest.mark.row("fujin-24")
@pytest.mark.parametrize("way", ["end of input", "unknown command", "disconnect"])
def test_the_end_of_a_session_rolls_back(live: LiveServer, wire: Wire, way: str) -> None:
    before = end(live, "t")
    last = {"unknown command": b"\x63", "disconnect": DISCONNECT}.get(way, b"")
    sent = WRITER + BEGIN + write(1, b"never") + last
    expected = done(3, 9) + done(2, 1) + DISCONNECT
    assert wire.rest(wire.open(sent, fin=way == "end of input")) == expected
    wire.until(lambda: live.call(lambda: len(live.server.broker.transactions)) == 0)
    assert end(live, "t") == before


@pytest.mark.row("fujin-24")
def test_the_end_of_input_is_a_disconnect(wire: Wire) -> None:
    assert wire.rest(wire.open(WRITER + write(1, b"x"), fin=True)) == done(2, 1) + DISCONNECT
    assert wire.rest(wire.open(connect_reader("t"), fin=True)) == CONNECTED + DISCONNECT
    assert wire.rest(wire.open(WRITER, fin=True)) == DISCONNECT


@pytest.mark.row("fujin-26")
@pytest.mark.row("fujin-27")
def test_a_server_that_stops_says_so_and_waits(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        writer = wire.open(WRITER)
        wire.ask(writer, write(1, b"x"), done(2, 1))
        reader = wire.open(connect_reader("t"))  # from the end of the log on: no message comes
        assert wire.take(reader, 2) == CONNECTED
        stopping = live.begin(live.server.stop())
        assert wire.take(writer, 1) == b"\x0c"
        wire.send(writer, DISCONNECT)
        wire.send(reader, DISCONNECT)
        assert wire.rest(writer) == DISCONNECT
        assert wire.rest(reader) == b"\x0c" + DISCONNECT
        assert wire.closed()[0] == 0
        wire.close()
        stopping.result(HANG_S)


@pytest.mark.row("fujin-26")
def test_a_client_that_stays_is_disconnected_after_the_grace(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", {"fujin.stop_grace": "100 ms"}) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        stream = wire.open(WRITER)
        wire.ask(stream, write(1, b"x"), done(2, 1))
        stopping = live.begin(live.server.stop())
        assert wire.rest(stream) == b"\x0c" + DISCONNECT
        assert wire.closed()[0] == 0
        wire.close()
        stopping.result(HANG_S)


@pytest.mark.row("fujin-28")
def test_commands_byte_by_byte_and_together(wire: Wire) -> None:
    stream = wire.open()
    for byte in WRITER + EXAMPLE + write(2, b"y") + DISCONNECT:
        wire.send(stream, bytes([byte]))
    assert wire.rest(stream) == done(2, 0x010101) + done(2, 2) + DISCONNECT
    together = WRITER + write(1, b"x") * 50 + EXAMPLE * 50 + DISCONNECT
    expected = done(2, *[1] * 50, *[0x010101] * 50) + DISCONNECT
    assert wire.rest(wire.open(together)) == expected


@pytest.mark.row("fujin-29")
def test_a_silent_session_stays(wire: Wire) -> None:
    """While several pings come and are answered."""
    from conformance.fujin.test_connection import ping

    writer, reader = wire.open(WRITER), wire.open(connect_reader("v", auto_commit=True))
    assert wire.take(reader, 2) == CONNECTED
    for number in range(5):
        wire.send(ping(wire, number), b"\x0b", fin=True)
    wire.ask(writer, write(1, b"still", b"v"), done(2, 1))
    assert wire.take(reader, 10) == b"\6\0\0\0\5still"


def test_a_refused_write_ends_with_its_words(wire: Wire) -> None:
    missing = WRITER + bytes([3, 0, 0, 0, 1, 0, 0, 0, 0])
    expected = failed(2, 1, "writer topic len arg not provided") + DISCONNECT
    assert wire.rest(wire.open(missing)) == expected
