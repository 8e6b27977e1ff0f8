"""Felix and Fujin spoken by clients that are not ours, on a real server with a log: quinn as Felix clients
are, quic-go as Fujin clients are, with default settings. A ClientHello of quic-go comes in two packets: its
key share for ML-KEM alone is 1,216 bytes."""

import subprocess
from collections.abc import Iterator

import pytest
from kit.limits import HANG_S
from kit.live_server import ServerProcess
from kit.real_peers import Peer, real_peer

SETTINGS = {"felix.auto_create": "true", "fujin.auto_create": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("peers") / "data", SETTINGS) as made:
        yield made


def call(server: ServerProcess, name: Peer, *words: object) -> str:
    address = f"127.0.0.1:{server.ports['udp']}"
    applications = ["fujin"] if name == "quic_go" else []
    command = [str(real_peer(name)), address, *applications, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestFelix:
    """Each mode of the peer checks what it gets."""

    def test_publishes(self, server: ServerProcess) -> None:
        assert "messages/s" in call(server, "quinn", "batches", 64, 100, 20)

    def test_subscribers_get_everything(self, server: ServerProcess) -> None:
        assert "bytes to each" in call(server, "quinn", "events", 3, 100, 20)

    def test_one_event_after_the_other(self, server: ServerProcess) -> None:
        assert call(server, "quinn", "delivery", 20).startswith("p50 ")

    def test_the_cache(self, server: ServerProcess) -> None:
        assert "gets/s" in call(server, "quinn", "cache", 16, 100, 200)


@pytest.mark.parametrize("name", ["quinn", "quic_go"])
class TestFujin:
    def test_every_write_has_its_result(self, server: ServerProcess, name: Peer) -> None:
        assert "messages/s" in call(server, name, "writes", 100, 2000, f"writes-{name}")

    def test_coming_back(self, server: ServerProcess, name: Peer) -> None:
        for _ in range(3):
            call(server, name, "writes", 10, 10, f"again-{name}")


def test_a_reader_of_quic_go_gets_what_its_writer_wrote(server: ServerProcess) -> None:
    assert call(server, "quic_go", "reads", 100, 2000, "reads") == "2000 messages in order\n"
