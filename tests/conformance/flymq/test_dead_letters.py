"""FETCH_DLQ, REPLAY_DLQ and PURGE_DLQ over a socket, in both dialects; then over HTTP and by command."""

import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import OK, FlyMQPeer, blob, both, raw, text
from kit.live_server import LiveServer

from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.records import Records
from penstock.cli import main as cli
from penstock.cli.http import Api, ApiNotFound
from penstock.errors import ExitCode, PenstockError

FIND = struct.pack(">i", 10)


@pytest.fixture
def buried(server: LiveServer, topic: str, dialect: str) -> str:
    """The topic of two dead letters: v, given up after 3 deliveries for boom, and one with nothing said."""
    broker = server.server.broker
    headers = [[(b"penstock-reason", b"boom"), (b"penstock-deliveries", b"3")], []]

    async def bury() -> None:
        records = Records([b"v", b"w"], headers=headers)
        await broker.publish(ITSELF, f"{topic}.dlq", None, records)

    server.run(bury())
    return topic


def speak(peer: FlyMQPeer, dialect: str) -> None:
    if dialect == "sdk":
        peer.want(0x53)


def test_nothing(peer: FlyMQPeer) -> None:
    """Of topics without dead letters no request is an ERROR."""
    assert peer.want(0x20, text("none") + FIND) == bytes(4)
    assert peer.want(0x22, text("none")) == OK
    assert peer.want(0x21, text("none") + text("m1")) == b"\x00" + text("message not found")


@pytest.mark.row("flymq-0x20", "flymq-0x21", "flymq-0x22", "flymq-D9")
@both
def test_fetch_replay_and_purge(peer: FlyMQPeer, buried: str, dialect: str) -> None:
    speak(peer, dialect)
    one = text("0-0") + blob(b"v") + text("boom") + struct.pack(">i", 3)
    two = text("0-1") + blob(b"w") + text("") + struct.pack(">i", 0)
    assert peer.want(0x20, text(buried) + FIND) == raw("00000002") + one + two
    assert peer.want(0x20, text(buried) + struct.pack(">i", 1)) == raw("00000001") + one
    for most in (0, -1):
        assert peer.want(0x20, text(buried) + struct.pack(">i", most)) == bytes(4)
    # By id, then by offset as SDKs do it.
    assert peer.want(0x21, text(buried) + text("0-0")) == OK
    assert peer.want(0x21, text(buried) + struct.pack(">Q", 1)) == OK
    assert [one[1:] for one in peer.fetch(buried)[0]] == [(b"", b"v"), (b"", b"w")]
    again = peer.want(0x21, text(buried) + text("0-0"))
    assert again[:1] == b"\x00" and b"was replayed already" in again
    assert text("boom, replayed") in peer.want(0x20, text(buried) + FIND)
    # Eight bytes that begin with 0006 are an id of six.
    for unknown in (text("0-9999"), text("m1"), struct.pack(">Q", 2)):
        reply = peer.want(0x21, text(buried) + unknown)
        assert reply == b"\x00" + text("message not found")
    assert peer.want(0x22, text(buried)) == OK
    assert peer.want(0x20, text(buried) + FIND) == bytes(4)
    assert text(f"{buried}.dlq") in peer.want(0x08)


@pytest.mark.parametrize("dialect", ["spec"])
def test_over_http(server: LiveServer, buried: str) -> None:
    api = Api(f"http://127.0.0.1:{server.port('http')}", "dev-key", 300)
    place = f"/topics/{buried.replace('[', '%5B').replace(']', '%5D')}/dead-letters"
    page = api.get(place, limit=1)
    (found,) = page["dead_letters"]
    assert (found["id"], found["reason"], found["deliveries"], page["next"]) == (
        "0-0",
        "boom",
        3,
        "0-0",
    )
    assert found["value"] == "dg==" and found["headers"][1] == ["penstock-deliveries", "Mw=="]
    for body, error in (
        ({"id": "0-0"}, None),
        ({"id": "0-0"}, "REPLAYED_ALREADY"),
        ({"id": "0-0", "force": True}, None),
        ({"id": "0-7"}, "UNKNOWN_DEAD_LETTER"),
    ):
        try:
            api.call("POST", f"{place}/replay", body)
            assert error is None
        except PenstockError as refusal:
            assert refusal.name == error  # type: ignore[attr-defined]  # of an ApiError
            assert isinstance(refusal, ApiNotFound) is (error == "UNKNOWN_DEAD_LETTER")
    assert api.call("DELETE", place)["freed_bytes"] >= 0
    assert api.get(place) == {"dead_letters": []}


@pytest.mark.parametrize("dialect", ["spec"])
def test_on_the_command_line(
    server: LiveServer, buried: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(["dlq", *arguments])
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err

    assert run("list", buried)[1] == [
        "ID   REASON  DELIVERIES  REPLAYS  VALUE",
        "0-0  boom    3           0        v",
        "0-1          0           0        w",
    ]
    assert run("replay", buried, "0-0")[0] == 0
    code, _, errors = run("replay", buried, "0-1", "0-0")
    assert code == ExitCode.FAILED and "was replayed already" in errors and "1 replayed" in errors
    assert run("replay", buried, "--all") == (0, [], f"0 replayed to {buried}\n")
    assert run("replay", buried, "--all", "--force")[2] == f"2 replayed to {buried}\n"
    assert run("replay", buried, "9-9")[0] == ExitCode.NOT_FOUND
    assert run("replay", buried)[0] == ExitCode.USAGE
    assert run("purge", buried, "-y")[0] == 0
    assert run("ls", buried)[1] == ["ID  REASON  DELIVERIES  REPLAYS  VALUE"]
