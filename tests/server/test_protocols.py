"""The table of protocols, and that a row and three files are all it takes to add one."""

import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.live_server import RawPeer, ServerProcess
from server.toy import wire
from server.toy.client import ToyClient

from penstock.client.blipmq import connect_blipmq
from penstock.client.rustlog import connect_rustlog
from penstock.server.protocols import PROTOCOLS

TESTS = Path(__file__).resolve().parent.parent
# `penstock` with one more row in its table.
WITH_TOY = (
    f"import runpy, sys; sys.path.insert(0, {str(TESTS)!r}); "
    "runpy.run_module('server.toy.row', run_name='__main__')"
)


@pytest.mark.parametrize("listener", ["tcp", "toy"])
def test_a_protocol_is_three_files_and_a_row(tmp_path: Path, listener: str) -> None:
    """On the shared port and on its own; the others read what it publishes, and it reads theirs."""
    with ServerProcess(tmp_path / "data", main=WITH_TOY) as server:
        assert "FlyMQ, RustLog, BlipMQ and Toy" in server.banner
        blipmq = f"127.0.0.1:{server.ports['tcp']}"
        with ToyClient(server.ports[listener], HANG_S) as toy:
            assert toy.put("meeting", b"from toy", b"again") == [0, 1]
            with connect_rustlog(blipmq) as rustlog:
                assert list(rustlog.fetch("meeting", 0, 0).values) == [b"from toy", b"again"]
            with connect_blipmq(blipmq, key="dev-key") as client:
                client.publish("meeting", b"from blipmq")
                client.flush()
            assert toy.get("meeting", 2) == b"from blipmq"
        assert server.stop() == 0


def test_a_row_brings_its_listener_to_the_command_line(tmp_path: Path) -> None:
    """And its section: `serve` and `config show` know both by the row alone."""

    def penstock(*arguments: str) -> str:
        command = [sys.executable, "-c", WITH_TOY, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        return done.stdout + done.stderr

    taken = "listeners.toy (flag listeners.toy) are both 127.0.0.1:9092"
    assert taken in penstock("serve", "--data", str(tmp_path / "data"), "--toy", "127.0.0.1:9092")
    shown = penstock("config", "show", "--set", "toy.principal=guest")
    assert 'principal = "guest"' in shown
    assert 'toy = "127.0.0.1:0"' in shown


def test_the_toy_has_the_manners_of_every_session(tmp_path: Path) -> None:
    """Refusals in order, in any pieces, and a last word for bytes that cannot be followed."""
    with ServerProcess(tmp_path / "data", main=WITH_TOY) as server:
        requests = [
            wire.encode(wire.PUT, "t", b"one"),
            wire.encode(wire.GET, "t", wire.pack_offset(0)),
            wire.encode(wire.GET, "t", b"no offset"),
            wire.encode(wire.GET, "nowhere", wire.pack_offset(0)),
            wire.encode(wire.PUT, "", b"no name"),
        ]
        with RawPeer(server.ports["toy"]) as peer:
            for byte in b"".join(requests):
                peer.send(bytes([byte]))
            peer.send(b"\xff" * 8)
            answers, _, _ = wire.split(peer.rest(), 0)
        kinds = [frame.kind for frame in answers]
        assert kinds == [
            wire.DONE,
            wire.RECORD,
            wire.REFUSED,
            wire.REFUSED,
            wire.REFUSED,
            wire.REFUSED,
        ]
        assert answers[2].payload == b"an offset has 8 bytes, not 9"
        assert answers[-1].payload == b"this is no toy"


def test_names_are_used_once() -> None:
    names = [row.name for row in PROTOCOLS]
    listeners = [name for row in PROTOCOLS for name in row.listeners]
    assert len(set(names)) == len(names)
    assert len({*listeners, "tcp", "http", "flight"}) == len(listeners) + 3
