"""`penstock user` and `penstock acl` against a real server, and the first administrator without one."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.live_server import LiveServer

from penstock.cli import main as cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-contexts"))
    for name in ("SERVER", "HTTP", "KEY", "USER", "CONTEXT"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_command(*arguments: str, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = cli.main(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_from_the_first_administrator_to_a_guest(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "data")
    made = run("user", "create", "root", "--admin", "--data", data, given=b"first\n")
    assert made == (0, "", "user 'root' (admin)\n")
    assert run("user", "passwd", "nobody", "--data", data, given=b"x\n")[0] == 3
    assert run("user", "passwd", "root", "--data", data, given=b"root-pw\n")[0] == 0
    with LiveServer(tmp_path / "data") as server:
        monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
        monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")
        assert run("user", "ls", "--key", "dev-key")[0] == 5
        monkeypatch.setenv("PENSTOCK_USER", "root")
        monkeypatch.setenv("PENSTOCK_KEY", "root-pw")
        assert run("user", "create", "al", "--roles", "guest", given=b"pw\n")[0] == 0
        code, table, _ = run("user", "ls")
        lines = [line.split()[:3] for line in table.splitlines()]
        assert code == 0
        assert lines == [
            ["NAME", "ROLES", "ENABLED"],
            ["al", "guest", "yes"],
            ["root", "admin", "yes"],
        ]
        assert run("pub", "--protocol", "flymq", "news.today", "hello")[0] == 0
        guest = ("--user", "al", "--key", "pw")
        assert run("cat", "news.today", *guest)[0] == 5
        assert run("acl", "set", "news.*", "--public")[2] == "the rule of news.* is set\n"
        assert run("cat", "news.today", *guest)[:2] == (0, "hello\n")
        assert run("acl", "ls")[1].splitlines()[1].split() == ["news.*", "yes", "-", "-"]
        rule = {"topic": "news.*", "public": True, "users": [], "roles": []}
        assert json.loads(run("acl", "get", "news.*", "--json")[1]) == [rule]
        assert run("acl", "delete", "news.*")[0] == 0
        assert run("acl", "get", "news.*")[0] == 3
        assert run("cat", "news.today", *guest)[0] == 5
        assert run("user", "update", "al", "--roles", "reader")[2] == "user 'al' (reader)\n"
        assert run("cat", "news.today", *guest)[:2] == (0, "hello\n")
        assert run("user", "disable", "al")[2] == "user 'al' is disabled\n"
        code, _, said = run("cat", "news.today", *guest)
        assert code == 5 and "invalid username or password" in said
        assert run("user", "enable", "al")[0] == 0
        # The own password: the current one is the key.
        assert run("user", "passwd", "al", *guest, given=b"new\n")[0] == 0
        assert run("cat", "news.today", *guest)[0] == 5
        assert run("cat", "news.today", "--user", "al", "--key", "new")[0] == 0
        assert run("user", "delete", "al")[2] == "user 'al' is deleted\n"
        assert run("user", "delete", "al")[0] == 3
        assert run("user", "passwd", "root", "--data", data, given=b"x\n")[0] == 1


@pytest.mark.parametrize("given", [b"", b"\n", b"\xff\n", b"x" * 1025])
def test_a_bad_password_is_refused(tmp_path: Path, run: Run, given: bytes) -> None:
    code, _, said = run("user", "create", "al", "--data", str(tmp_path / "data"), given=given)
    assert code == 1
    assert said == "penstock: give a password of 1 to 1024 bytes of UTF-8 on stdin\n"


@pytest.mark.parametrize("command", ["pub", "sub"])
@pytest.mark.parametrize("protocol", ["blipmq", "rustlog"])
def test_protocols_without_users_say_so(run: Run, command: str, protocol: str) -> None:
    words = ("t", "hello") if command == "pub" else ("t",)
    code, _, said = run(command, "--protocol", protocol, "--user", "al", *words)
    assert code == 2 and " has no users; give an API key, or --protocol flymq" in said
