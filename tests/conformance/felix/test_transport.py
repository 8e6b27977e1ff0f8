"""Felix over real QUIC, rows 1 to 20: connections, frames, the ends of streams."""

import json
import time
from pathlib import Path

import pytest
from conformance.felix.kit import ACKED, BATCH, OK, Events, end, event, reply
from conformance.quic import Wire
from cryptography import x509
from kit.live_server import LiveServer
from kit.quic_peer import QuicPeer, run_until
from sessions.felix.peer import exact, message, publish, subscribe

from penstock.server.config.schema import Config
from penstock.server.net.quic.certificates import self_signed
from penstock.server.protocols import row_of
from penstock.wire.felix.frames import framed

# The example of row 51: t1/default/demo with "hello" and an empty payload.
ROW_51 = bytes.fromhex(
    "464c5831000100010000002400027431000764656661756c74000464656d6f000000020000000568656c6c6f00000000"
)


@pytest.mark.row("felix-1")
def test_any_application_and_none_is_felix(live: LiveServer) -> None:
    for names, listener in ((None, "udp"), (["h3"], "udp"), (None, "felix"), (["x"], "felix")):
        wire = Wire(live, names, listener)
        wire.ask(wire.open(), ACKED, OK)
        wire.close()


@pytest.mark.row("felix-2")
def test_the_certificate_is_for_localhost_and_the_address(live: LiveServer) -> None:
    shown = certificate(live)
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))


@pytest.mark.row("felix-2")
def test_the_certificate_of_the_operator_is_served(tmp_path: Path) -> None:
    made = self_signed(time.time())
    (tmp_path / "cert.pem").write_bytes(made.chain)
    (tmp_path / "key.pem").write_bytes(made.key)
    settings = {
        "tls.certificate": str(tmp_path / "cert.pem"),
        "tls.key": str(tmp_path / "key.pem"),
    }
    with LiveServer(tmp_path / "data", settings) as live:
        own = x509.load_pem_x509_certificate(made.chain)
        assert certificate(live).serial_number == own.serial_number


def certificate(live: LiveServer) -> x509.Certificate:
    """What a client of aioquic is shown."""
    with QuicPeer(live.server.listeners["felix"].address.port, "aioquic") as peer:
        run_until(lambda: peer.connected, [peer])
        shown: x509.Certificate = peer.quic.tls._peer_certificate
    return shown


@pytest.mark.row("felix-3")
def test_the_default_ports() -> None:
    assert row_of("felix").listeners == {"felix": "127.0.0.1:5000"}
    listeners = Config().listeners
    assert str(listeners.of("felix")) == "127.0.0.1:5000"
    assert str(listeners.of("http")) == "127.0.0.1:8080"


@pytest.mark.row("felix-4")
def test_an_idle_subscriber_stays(tmp_path: Path) -> None:
    """The client gives up after 0.4 s of silence: it lives because the server is not silent."""
    assert Config().quic.idle_time_us >= 30_000_000
    assert Config().quic.keep_alive_us is not None
    with LiveServer(tmp_path / "data", {"quic.keep_alive": "100 ms"}) as live:
        peer = QuicPeer(live.server.listeners["felix"].address.port, idle_timeout=0.4)
        run_until(lambda: peer.connected, [peer])
        heard = [0]
        receive = peer.quic.receive_datagram

        def count(*datagram: object) -> None:
            heard[0] += 1
            receive(*datagram)

        peer.quic.receive_datagram = count
        run_until(lambda: peer.closed is not None or heard[0] >= 12, [peer])
        assert peer.closed is None
        peer.close()


@pytest.mark.row("felix-5")
def test_1024_streams_of_each_kind(wire: Wire, live: LiveServer) -> None:
    streams = [wire.open(ACKED) for _ in range(1_024)]
    assert all(wire.take(stream, len(OK)) == OK for stream in streams)
    before = end(live)
    for _ in range(1_024):
        wire.open(BATCH, unidirectional=True)
    wire.until(lambda: end(live) == before + 2 * 1_024)


@pytest.mark.row("felix-6")
def test_the_header_is_exact(wire: Wire) -> None:
    sent = framed(ACKED[12:])
    assert sent[:8] == bytes.fromhex("464c583100010000")
    assert int.from_bytes(sent[8:12], "big") == len(ACKED) - 12
    wire.ask(wire.open(), sent, bytes.fromhex("464c5831000100000000000d") + b'{"type":"ok"}')


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", "FLX1", marks=pytest.mark.row("felix-7")),
        pytest.param(b"FLX2", "FLX1", marks=pytest.mark.row("felix-7")),
        pytest.param(
            b"FLX1\x00\x02\x00\x00\x00\x00\x00\x00", "version 2", marks=pytest.mark.row("felix-8")
        ),
        pytest.param(
            b"FLX1\x00\x00\x00\x00\x00\x00\x00\x00", "version 0", marks=pytest.mark.row("felix-8")
        ),
    ],
)
def test_a_header_that_is_none_closes_the_connection(wire: Wire, bad: bytes, words: str) -> None:
    stream = wire.open(bad)
    code, reason = wire.closed()
    assert code == 1 and words in reason
    assert wire.peer.received[stream] == b""


@pytest.mark.row("felix-9")
def test_flags_that_nobody_knows_are_ignored(wire: Wire) -> None:
    wire.ask(wire.open(), framed(ACKED[12:], 0xFFFE), OK)
    stream = wire.open(framed(BATCH[12:], 0x0002))
    assert reply(wire, stream)["message"].startswith("invalid JSON")
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-10")
def test_the_flag_of_a_batch_counts_beside_others(wire: Wire, live: LiveServer) -> None:
    before = end(live)
    wire.ask(wire.open(), framed(BATCH[12:], 0xFFFF) + ACKED, OK)
    assert end(live) == before + 3


@pytest.mark.row("felix-11")
def test_a_frame_too_large_ends_its_stream_only(wire: Wire) -> None:
    stream = wire.open(b"FLX1\x00\x01\x00\x00\x01\x00\x00\x01")
    assert wire.rest(stream) == exact('{"type":"error","message":"frame too large"}')
    wire.until(lambda: stream in wire.peer.stops)
    wire.ask(wire.open(), ACKED, OK)


@pytest.mark.row("felix-12")
def test_a_frame_of_exactly_the_limit_is_taken(wire: Wire) -> None:
    padded = json.dumps({"type": "cache_get", "key": "no such key"}).encode().ljust(16_777_216)
    value = exact('{"type":"cache_value","key":"no such key","value":null}')
    wire.ask(wire.open(), framed(padded), value)


@pytest.mark.row("felix-13")
def test_an_empty_payload_is_an_error_and_the_stream_goes_on(wire: Wire) -> None:
    stream = wire.open(framed(b""))
    found = reply(wire, stream)
    assert found["type"] == "error" and found["message"].startswith("invalid JSON")
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-14")
def test_frames_byte_by_byte_and_together(wire: Wire, live: LiveServer) -> None:
    stream = wire.open()
    before = end(live)
    for byte in ACKED + BATCH:
        wire.send(stream, bytes([byte]))
    assert wire.take(stream, len(OK)) == OK
    wire.ask(stream, ACKED * 5, OK * 5)
    assert end(live) == before + 1 + 2 + 5


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(0, marks=pytest.mark.row("felix-17")),
        pytest.param(1, marks=pytest.mark.row("felix-15")),
        pytest.param(11, marks=pytest.mark.row("felix-15")),
        pytest.param(40, marks=pytest.mark.row("felix-16")),
    ],
)
def test_the_end_of_input(wire: Wire, live: LiveServer, cut: int) -> None:
    """All replies, then the end of our side; what was cut off has none."""
    before = end(live)
    assert wire.rest(wire.open(ACKED * 3 + ACKED[:cut], fin=True)) == OK * 3
    assert end(live) == before + 3
    wire.ask(wire.open(), ACKED, OK)
    assert wire.peer.closed is None


@pytest.mark.row("felix-18")
def test_a_stream_in_one_direction_takes_publishes(live: LiveServer, wire: Wire) -> None:
    before = end(live)
    batch = message(
        "publish_batch", tenant_id="t", namespace="n", stream="s", payloads=["", "YQ=="]
    )
    stream = wire.open(BATCH + ACKED + batch, unidirectional=True, fin=True)
    wire.until(lambda: end(live) == before + 5)
    wire.ask(wire.open(), ACKED, OK)
    assert wire.peer.closed is None and wire.peer.received[stream] == b""


@pytest.mark.row("felix-19")
@pytest.mark.parametrize("other", [message("cache_get", key="k"), subscribe(), framed(b"{")])
def test_anything_else_stops_it(wire: Wire, other: bytes) -> None:
    stream = wire.open(other, unidirectional=True)
    wire.until(lambda: stream in wire.peer.stops)
    wire.ask(wire.open(), ACKED, OK)
    assert wire.peer.closed is None and wire.peer.received[stream] == b""


@pytest.mark.row("felix-20")
def test_a_reset_of_a_control_stream_leaves_its_subscriptions(wire: Wire) -> None:
    control = wire.open()
    wire.ask(control, subscribe(), OK)
    events = Events(wire)
    assert events.next()["type"] == "event_stream_hello"
    wire.peer.quic.reset_stream(control, 7)
    wire.ask(wire.open(), publish(b"after", ack="per_message"), OK)
    assert events.next() == event(b"after")
