"""A real server with protocols on QUIC: configuration, banner, certificates and their reload, the stop."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from kit.limits import HANG_S
from kit.listeners import FREE_PORT, OFF
from kit.live_server import ServerProcess
from kit.quic_peer import QuicPeer, run_until

from penstock.server.net.quic.certificates import CERTIFICATE_FILE, self_signed

TESTS = Path(__file__).resolve().parents[3]
# `penstock` with two more rows in its table, and no other ones on QUIC.
WITH_ECHO = (
    f"import runpy, sys; sys.path.insert(0, {str(TESTS)!r}); "
    "runpy.run_module('server.net.quic.echo.row', run_name='__main__')"
)
# This `penstock` has others than the test kit knows.
LISTENERS = {f"listeners.{name}": FREE_PORT for name in ("udp", "echo", "plain", "tcp", "http")} | {
    "listeners.flight": OFF,
    "listeners.blipmq": OFF,
}


class EchoServer(ServerProcess):
    """With the listeners of its own table."""


@contextmanager
def serving(data: Path, settings: dict[str, str] | None = None) -> Iterator[EchoServer]:
    with EchoServer(data, settings, main=WITH_ECHO, listeners=LISTENERS) as server:
        yield server


def fingerprint_seen(port: int, library: str = "qh3") -> str:
    """Of the certificate that a new connection is shown."""
    with QuicPeer(port, applications=["echo"]) as peer:
        run_until(lambda: peer.connected, [peer])
        shown = peer.quic.get_peercert().public_bytes()
    loaded = x509.load_der_x509_certificate(shown)
    return loaded.fingerprint(hashes.SHA256()).hex(":").upper()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    with serving(tmp_path_factory.mktemp("quic") / "data") as made:
        yield made


@pytest.mark.parametrize(
    ("listener", "application"),
    [
        ("udp", "echo"),
        ("udp", None),
        ("udp", "x"),
        ("echo", "echo"),
        ("plain", None),
        ("plain", "echo"),
    ],
)
def test_every_listener_serves_its_protocols(
    server: EchoServer, listener: str, application: str | None
) -> None:
    names = None if application is None else [application]
    with QuicPeer(server.ports[listener], applications=names) as peer:
        run_until(lambda: peer.connected, [peer])
        assert peer.application == application
        stream = peer.open()
        peer.send(stream, b"hello", fin=True)
        run_until(lambda: stream in peer.finished, [peer])
        assert bytes(peer.received[stream]) == b"hello"


@pytest.mark.parametrize(
    ("listener", "application"), [("udp", "echo/1"), ("echo", None), ("echo", "other")]
)
def test_other_names_are_refused_with_120(
    server: EchoServer, listener: str, application: str | None
) -> None:
    names = None if application is None else [application]
    peer = QuicPeer(server.ports[listener], applications=names)
    run_until(lambda: peer.closed is not None, [peer])
    assert peer.closed is not None
    assert peer.closed[0] == 0x100 + 120
    peer.vanish()


def test_the_banner_names_engine_and_certificate(server: EchoServer) -> None:
    assert re.search(
        r"udp +127\.0\.0\.1:\d+ +Echo and Plain over QUIC, Python engine", server.banner
    )
    found = re.search(
        r"trust +quic-certificate.pem in the data directory, SHA-256 (\S+)", server.banner
    )
    assert found is not None
    assert found[1] == fingerprint_seen(server.ports["udp"])


def test_metrics_count_datagrams(server: EchoServer) -> None:
    import urllib.request

    url = f"http://127.0.0.1:{server.ports['http']}/metrics"
    text = urllib.request.urlopen(url, timeout=HANG_S).read().decode()
    assert re.search(r"penstock_quic_received_datagrams_total [1-9]", text)
    assert 'penstock_quic_accepted_total{library="qh3"}' in text


def test_a_stop_lets_streams_finish(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        peer = QuicPeer(server.ports["udp"], applications=["echo"])
        stream = peer.open()
        peer.send(stream, b"hello")
        run_until(lambda: bytes(peer.received[stream]) == b"hello", [peer])
        server.process.send_signal(signal.SIGTERM)
        run_until(lambda: peer.closed is not None, [peer])
        assert peer.closed == (0, "")
        assert bytes(peer.received[stream]) == b"hellobye"
        assert stream in peer.finished
        peer.vanish()
        assert server.process.wait(HANG_S) == 0


def test_the_certificate_is_read_again_at_sighup(tmp_path: Path) -> None:
    """And the self-signed one is kept over a restart."""
    data, pem, key = tmp_path / "data", tmp_path / "tls.pem", tmp_path / "tls.key"
    with serving(data) as server:
        first = fingerprint_seen(server.ports["udp"])
        assert server.stop() == 0
    with serving(data) as server:
        assert fingerprint_seen(server.ports["udp"]) == first
        assert server.stop() == 0
    assert (data / CERTIFICATE_FILE).exists()

    def renew() -> None:
        made = self_signed(1_790_000_000)
        pem.write_bytes(made.chain)
        key.write_bytes(made.key)

    renew()
    settings = {"tls.certificate": str(pem), "tls.key": str(key)}
    with serving(data, settings) as server:
        configured = fingerprint_seen(server.ports["udp"])
        assert configured != first
        assert "trust" not in server.banner
        renew()
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stdout is not None
        for line in server.process.stdout:
            if "certificates were read again" in line:
                break
        assert fingerprint_seen(server.ports["udp"]) != configured


def penstock(*arguments: str) -> str:
    command = [sys.executable, "-c", WITH_ECHO, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    return done.stdout + done.stderr


def test_the_configuration_shows_what_the_rows_bring() -> None:
    shown = penstock("config", "show")
    assert 'udp = "127.0.0.1:4848"' in shown
    assert "[quic]" in shown
    assert 'keep_alive = "10 s"' in shown
    # One port of TCP and one of UDP may have the same number; two of UDP may not.
    same = ("--set", "listeners.udp=127.0.0.1:9092")
    assert "are both" not in penstock("config", "show", *same)
    assert "listeners.udp (flag listeners.udp) and listeners.plain" in penstock(
        "config", "show", *same, "--set", "listeners.plain=127.0.0.1:9092"
    )


def test_client_certificates_cannot_be_asked_for(tmp_path: Path) -> None:
    """So a server that demands them has no QUIC, and says so where one was asked for."""
    files = [f"tls.{name}={tmp_path}/x" for name in ("certificate", "key", "client_ca")]
    settings = [item for one in files for item in ("--set", one)]
    assert "cannot ask" not in penstock("config", "show", *settings)
    asked = penstock("config", "show", *settings, "--set", "listeners.udp=127.0.0.1:1")
    assert "cannot ask for client certificates over QUIC; set listeners.udp to off" in asked
