"""`penstock sub` while its server is away for longer than a request may take."""

import asyncio

import pytest
from client.outage import TIMEOUT_S, LeavingPeer
from client.peer import BlipMQPeer, JsonServer

from penstock.cli import main as cli
from penstock.client.blipmq.subscription import IDLE_MOST_S
from penstock.client.blocking import LoopThread
from penstock.wire.blipmq import frames as wire

# Of one POLL each, as one message is wanted. After so many the client waits its longest between two.
QUIET_ROUNDS = 8


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_KEY", "secret")


def sub(peer: LeavingPeer, *options: str) -> int:
    """The exit code of `penstock sub demo -n 1`, with the server in another thread."""
    thread = LoopThread()
    try:
        thread.run(peer.__aenter__())
        arguments = ["--server", peer.address, "--timeout", str(TIMEOUT_S), *options]
        return cli.main(["sub", "demo", "-n", "1", *arguments])
    finally:
        thread.run(peer.__aexit__(None, None, None))
        thread.stop()


def test_blipmq(capsys: pytest.CaptureFixture[str]) -> None:
    class Leaving(BlipMQPeer):
        """Goes away between two rounds of POLLs; a second SUBSCRIBE gets a message."""

        def _subscribe(self, number: int, wanted: wire.Subscribe) -> bytes:
            answer = super()._subscribe(number, wanted)
            if len(self.queues) == 2:
                self.queues[max(self.queues)].append(("demo", 1, b"after"))
            return answer

        def _poll(self, number: int, subscription: int) -> bytes:
            answer = super()._poll(number, subscription)
            if self.polls == QUIET_ROUNDS:
                asyncio.get_running_loop().call_later(IDLE_MOST_S / 2, peer.leave)
            return answer

    peer = LeavingPeer(Leaving().script)
    assert sub(peer, "--create") == 0
    assert capsys.readouterr().out == "after\n"
    assert peer.connections == 2


def test_a_rustlog_group(capsys: pytest.CaptureFixture[str]) -> None:
    class Leaving(JsonServer):
        """Goes away instead of taking the first commit."""

        def _reply(self, kind: str, fields: dict[str, object]) -> object:
            if kind == "OffsetCommit" and peer.connections == 1:
                asyncio.get_running_loop().call_soon(peer.leave)
                raise ConnectionError
            return super()._reply(kind, fields)

    server = Leaving()
    server.log = [b"one"]
    peer = LeavingPeer(server.script)
    assert sub(peer, "--protocol", "rustlog", "--from", "earliest", "--group", "g") == 0
    assert capsys.readouterr().out == "one\n"
    assert server.committed == {"g": 1}
