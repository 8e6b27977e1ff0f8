"""Fujin over real QUIC, rows 1 to 13: connections and pings."""

import time
from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.fujin.kit import BEGIN, DISCONNECT
from conformance.quic import Wire
from cryptography import x509
from kit.live_server import LiveServer
from kit.quic_peer import QuicPeer, run_until
from sessions.fujin.peer import EXAMPLE, WRITER, done, write

from penstock.server.config.schema import Config
from penstock.server.net.quic.certificates import self_signed
from penstock.sessions.fujin import connection as fujin
from penstock.sessions.fujin.options import FujinOptions


@pytest.mark.row("fujin-1")
def test_the_application_is_fujin_and_no_other_name_like_it(live: LiveServer) -> None:
    good = Wire(live, ["fujin"])
    assert good.peer.application == "fujin"
    good.close()
    for names, listener in ((["fujin/1"], "udp"), (["other"], "fujin"), (None, "fujin")):
        refused = Wire(live, names, listener)
        assert refused.closed()[0] == 0x100 + 120
        refused.close()


@pytest.mark.row("fujin-2")
def test_the_default_port() -> None:
    assert str(Config().listeners.of("udp")) == "127.0.0.1:4848"


@pytest.mark.row("fujin-3")
def test_the_certificate_of_the_operator_is_served(tmp_path: Path) -> None:
    """A client that brings one of its own, which nobody asks for, is served all the same."""
    made = self_signed(time.time())
    (tmp_path / "cert.pem").write_bytes(made.chain)
    (tmp_path / "key.pem").write_bytes(made.key)
    settings = {
        "tls.certificate": str(tmp_path / "cert.pem"),
        "tls.key": str(tmp_path / "key.pem"),
    }
    own = x509.load_pem_x509_certificate(made.chain)
    with LiveServer(tmp_path / "data", settings) as live:
        port = live.server.listeners["udp"].address.port
        with QuicPeer(port, "aioquic", ["fujin"], certificate=own) as peer:
            run_until(lambda: peer.connected, [peer])
            assert peer.quic.tls._peer_certificate.serial_number == own.serial_number


@pytest.mark.row("fujin-4")
def test_each_stream_is_a_session(wire: Wire) -> None:
    """With a state of its own: a transaction is that of one of them."""
    first, second = wire.open(WRITER), wire.open(WRITER)
    wire.ask(first, BEGIN, done(3, 9))
    wire.ask(second, BEGIN + write(1, b"x"), done(3, 9) + done(2, 1))
    streams = [wire.open(WRITER) for _ in range(200)]
    for number, stream in enumerate(streams):
        wire.ask(stream, write(number, b"x"), done(2, number))


def ping(wire: Wire, number: int) -> int:
    """The stream of this ping, when all of it is there."""
    wire.until(lambda: len(wire.server_streams(unidirectional=False)) > number)
    stream = wire.server_streams(unidirectional=False)[number]
    wire.until(lambda: stream in wire.peer.finished)
    return stream


@pytest.mark.row("fujin-5")
@pytest.mark.row("fujin-6")
def test_pings_on_streams_of_their_own(wire: Wire) -> None:
    """The client is alive with [11] and the end, with a bare end, and with [11] alone."""
    answers = ((b"\x0b", True), (b"", True), (b"\x0b", False))
    for number in range(6):
        stream = ping(wire, number)
        assert wire.peer.received[stream] == b"\x0b"
        wire.send(stream, answers[number % 3][0], fin=answers[number % 3][1])
    assert wire.peer.closed is None


@pytest.mark.row("fujin-6")
@pytest.mark.row("fujin-8")
@pytest.mark.parametrize("how", ["other bytes", "reset"])
def test_a_wrong_answer_closes_with_3(wire: Wire, how: str) -> None:
    stream = ping(wire, 0)
    if how == "reset":
        wire.peer.quic.reset_stream(stream, 7)
    else:
        wire.send(stream, b"pong", fin=True)
    code, reason = wire.closed()
    assert code == 3 and reason.startswith("read: ")


@pytest.mark.row("fujin-7")
def test_the_times_of_pings() -> None:
    options = FujinOptions()
    assert (options.ping_interval_us, options.ping_timeout_us) == (2_000_000, 5_000_000)
    section = Config().protocols["fujin"]
    assert (section.ping_interval_us, section.ping_timeout_us) == (2_000_000, 5_000_000)  # type: ignore[attr-defined]


@pytest.mark.row("fujin-7")
@pytest.mark.row("fujin-8")
def test_a_client_that_does_not_answer_is_closed_with_3(tmp_path: Path) -> None:
    """The second ping is not sent while the first has no answer."""
    settings = {"fujin.ping_interval": "10 ms", "fujin.ping_timeout": "100 ms"}
    with LiveServer(tmp_path / "data", settings) as live:
        wire = Wire(live, ["fujin"])
        code, reason = wire.closed()
        assert code == 3 and reason.startswith("read: ")
        assert len(wire.server_streams(unidirectional=False)) == 1
        wire.close()


@pytest.mark.row("fujin-9")
def test_a_stream_that_cannot_be_accepted_closes_with_4(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    wire = Wire(live, ["fujin"])
    monkeypatch.setattr(fujin, "FujinSession", broken)
    wire.open(WRITER)
    assert wire.closed()[0] == 4
    wire.close()


@pytest.mark.row("fujin-10")
def test_a_client_that_closes_leaves_nothing(live: LiveServer) -> None:
    wire = Wire(live, ["fujin"])
    wire.ask(wire.open(WRITER), BEGIN + write(1, b"never"), done(3, 9) + done(2, 1))
    wire.close()
    broker = live.server.broker
    probe = Wire(live, ["fujin"])
    probe.until(lambda: live.call(lambda: len(broker.transactions)) == 0)
    probe.close()


@pytest.mark.row("fujin-11")
def test_pings_keep_an_idle_connection_and_silence_ends_one(tmp_path: Path) -> None:
    settings = {
        "fujin.ping_interval": "50 ms",
        "quic.idle_time": "1 s",
        "quic.keep_alive": "off",
    }
    with LiveServer(tmp_path / "data", settings) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        for number in range(30):  # longer than the idle time
            wire.send(ping(wire, number), b"\x0b", fin=True)
        wire.ask(wire.open(WRITER), write(1, b"x"), done(2, 1))

        def count() -> int:
            return live.call(lambda: len(live.server.hub.connections))

        other = Wire(live, ["fujin"])
        assert count() == 2
        other.peer.vanish()
        run_until(lambda: count() < 2, [wire.peer])
        wire.close()


@pytest.mark.row("fujin-12")
def test_streams_in_one_direction_are_ignored(wire: Wire, live: LiveServer) -> None:
    before = live.call(lambda: live.server.broker.offsets("t", 0))[1]
    wire.open(WRITER + EXAMPLE, unidirectional=True, fin=True)
    wire.ask(wire.open(WRITER), write(1, b"x"), done(2, 1))
    assert live.call(lambda: live.server.broker.offsets("t", 0))[1] == before + 1


@pytest.mark.row("fujin-13")
def test_a_pong_on_a_session_stream_is_an_unknown_command(wire: Wire) -> None:
    expected = done(2, 1) + DISCONNECT
    assert wire.rest(wire.open(WRITER + write(1, b"x") + b"\x0b")) == expected
