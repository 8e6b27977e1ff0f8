"""Clients that are not ours, with their default settings: quinn without ALPN, quic-go with a name."""

import subprocess
from collections.abc import Iterator

import pytest
from kit.limits import HANG_S
from kit.real_peers import Peer, real_peer
from server.net.quic.test_server import EchoServer, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    with serving(tmp_path_factory.mktemp("peers") / "data") as made:
        yield made


def call(server: EchoServer, name: Peer, *words: str) -> str:
    address = f"127.0.0.1:{server.ports['udp']}"
    applications = ["echo"] if name == "quic_go" else []
    command = [str(real_peer(name)), address, *applications, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["quinn", "quic_go"])
class TestEach:
    def test_one_stream(self, server: EchoServer, name: Peer) -> None:
        assert call(server, name, "echo", "1", "1000") == "1 streams of 1000 bytes\n"

    def test_an_empty_stream(self, server: EchoServer, name: Peer) -> None:
        assert call(server, name, "echo", "1", "0") == "1 streams of 0 bytes\n"

    def test_1024_streams(self, server: EchoServer, name: Peer) -> None:
        assert call(server, name, "echo", "1024", "2000") == "1024 streams of 2000 bytes\n"

    def test_bulk_both_ways(self, server: EchoServer, name: Peer) -> None:
        assert call(server, name, "echo", "3", "3000000") == "3 streams of 3000000 bytes\n"

    def test_bulk_push_on_a_stream_of_the_server(self, server: EchoServer, name: Peer) -> None:
        assert "MB/s" in call(server, name, "pull", "10000000")

    def test_rounds_on_one_stream(self, server: EchoServer, name: Peer) -> None:
        assert call(server, name, "latency", "200").startswith("p50 ")

    def test_coming_back(self, server: EchoServer, name: Peer) -> None:
        for _ in range(5):
            call(server, name, "echo", "2", "10")


def test_a_name_that_only_begins_like_ours_is_refused(server: EchoServer) -> None:
    command = [
        str(real_peer("quic_go")),
        f"127.0.0.1:{server.ports['udp']}",
        "echo/1",
        "echo",
        "1",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1
    assert "CRYPTO_ERROR 0x178" in done.stderr


def test_libraries_by_peer(server: EchoServer) -> None:
    """quic-go has no connection id of its own and is served by aioquic, quinn by qh3."""
    import urllib.request

    call(server, "quic_go", "echo", "1", "1")
    url = f"http://127.0.0.1:{server.ports['http']}/metrics"
    text = urllib.request.urlopen(url, timeout=HANG_S).read().decode()
    assert 'penstock_quic_accepted_total{library="aioquic"}' in text
