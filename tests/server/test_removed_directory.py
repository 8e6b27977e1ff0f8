"""A data directory that is removed while the server runs: nothing is acknowledged, and all can see it."""

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.rustlog.peer import BINARY, Talker
from kit.live_server import WAIT_S, ServerProcess


def ready(server: ServerProcess) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.ports['http']}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)["status"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["status"]


def refused(reply: bytes) -> bool:
    return b"storage" in reply.lower() or b"removed" in reply


@pytest.mark.parametrize("how", ["removed", "moved", "topics"])
def test_nothing_is_acknowledged_any_more(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        assert server.process.stdout is not None
        with Talker(server.ports["tcp"]) as peer:
            assert peer.ask(BINARY.create("t", 1)) == BINARY.created()
            assert peer.ask(BINARY.produce("t", 0, [b"a"])) == BINARY.produced(0, 1)
            assert ready(server) == (200, "ready")
            if how == "moved":
                data.rename(tmp_path / "elsewhere")
            else:
                shutil.rmtree(data / "topics" if how == "topics" else data)
            until(lambda: ready(server) == (503, "broken"), "the loss is seen")
            for request in (
                BINARY.produce("t", 0, [b"b"]),
                BINARY.create("new", 1),
                BINARY.commit("g", "t", 0, 1),
            ):
                reply = peer.ask(request)
                assert refused(reply), reply
        status = server.stop()
        printed = server.process.stdout.read()
    assert status == 1
    assert printed.count("was removed under the running server: nothing is stored any more") == 1
    assert "what it held is lost" in printed
    assert "Traceback" not in printed
