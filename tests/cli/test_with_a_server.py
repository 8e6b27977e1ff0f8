"""Commands against a real server in this process: names, rights, and streams that a shell has closed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.listeners import as_flags, free_listeners
from kit.live_server import SOURCES, LiveServer

from penstock.cli import main as cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-contexts"))
    for name in ("SERVER", "HTTP", "KEY", "CONTEXT"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; gives exit code, stdout and stderr."""

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run_command


def use(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands talk to this server."""
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data") as server:
        use(server, monkeypatch)
        yield server


# ---- names ----


@pytest.mark.parametrize(
    "command",
    [
        ("cat", "bad\udcff"),
        ("topic", "create", "bad\udcff"),
        ("topic", "delete", "bad\udcff", "-y"),
        ("topic", "describe", "bad\udcff"),
        ("topic", "set", "demo", "bad\udcff=1"),
        ("pub", "bad\udcff", "x"),
        ("pub", "bad\udcff", "x", "--protocol", "rustlog"),
        ("sub", "demo", "-g", "bad\udcff", "--protocol", "rustlog"),
        ("group", "describe", "bad\udcff"),
        ("key", "create", "bad\udcff"),
        ("pub", "demo", "x", "--server", "bad\udcff"),
    ],
)
def test_a_name_that_is_not_utf8(run: Run, server: LiveServer, command: tuple[str, ...]) -> None:
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert r"bad\xff" in err and "is not UTF-8" in err and err.count("\n") == 1


def test_a_key_that_is_not_utf8_is_not_shown(run: Run, server: LiveServer) -> None:
    for command, words in ((("topic", "ls"), "topic ls"), (("pub", "demo", "x"), "pub")):
        code, _, err = run(*command, "--key", "secret\udcff")
        expected = f"penstock: the API key is not UTF-8; see penstock {words} --help\n"
        assert (code, err) == (2, expected)


def test_a_message_may_be_any_bytes(
    server: LiveServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["pub", "demo", "raw\udcff"]) == 0
    assert cli.main(["cat", "demo", "--format", "\udcfe%v"]) == 0
    assert capfdbinary.readouterr().out == b"\xferaw\xff"


@pytest.mark.parametrize("name", ["new\nline", "line\n", "a/b", "ü"])
def test_a_topic_that_is_not_there_whatever_its_name(
    run: Run, server: LiveServer, name: str
) -> None:
    code, _, err = run("cat", name)
    assert (code, err) == (
        3, f"penstock: no topic named {name!r}; penstock topic ls shows all\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"n\n", "topic demo is kept"),
        (b"", "the input ended before an answer; --yes asks nothing"),
    ],
)
def test_a_topic_that_shall_stay(
    run: Run, server: LiveServer, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    assert run("topic", "create", "demo")[0] == 0
    read_end, write_end = os.pipe()
    os.write(write_end, answer)
    os.close(write_end)
    with os.fdopen(read_end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, _, err = run("topic", "delete", "demo")
    assert code == 1 and err.endswith(f"{words}\n")
    assert ("ended" in err) == (answer == b"")
    assert run("topic", "describe", "demo")[0] == 0


def test_sub_of_a_topic_that_is_not_there(run: Run, server: LiveServer) -> None:
    """With a key that may make topics: a SUBSCRIBE alone would make this one."""
    assert run("topic", "create", "orders")[0] == 0
    code, out, err = run("sub", "ordres", "--idle", "0.05")
    assert (code, out) == (3, "")
    assert err == (
        "penstock: no topic named 'ordres'; did you mean orders?;"
        f" so says http://127.0.0.1:{server.port('http')}; --create makes it\n"
    )
    assert "ordres" not in run("topic", "ls")[1]
    assert run("sub", "ordres", "--idle", "0.05", "--create")[0] == 0
    assert "ordres" in run("topic", "ls")[1]
    assert run("sub", "orders", "--idle", "0.05")[0] == 0


# ---- rights ----


@pytest.mark.parametrize("command", [("pub", "demo", "x"), ("sub", "demo", "-n", "1")])
def test_rustlog_without_rights(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    assert run("key", "create", "ops", "--role", "admin", "--data", str(data))[0] == 0
    with LiveServer(data) as server:
        use(server, monkeypatch)
        code, _, err = run(*command, "--protocol", "rustlog")
    assert code == 5 and err.count("\n") == 1
    assert "anonymous may not" in err and "setting rustlog.principal" in err


def test_a_topic_is_purged_and_a_group_deleted(run: Run, server: LiveServer) -> None:
    assert run("pub", "full", "one", "-n", "2")[0] == 0
    assert run("group", "reset", "readers", "--topic", "full", "--to", "latest")[0] == 0
    code, out, err = run("topic", "purge", "full", "--yes", "--json")
    assert code == 0 and err.startswith("topic full is purged, ") and '"records":0' in out
    assert run("cat", "full")[1] == ""
    assert run("pub", "full", "three")[0] == 0
    assert run("cat", "full")[1] == "three\n"
    assert run("group", "delete", "readers")[::2] == (0, "group readers is deleted\n")
    code, _, err = run("group", "delete", "readers")
    assert code == 3 and "no group named 'readers'; penstock group ls shows all" in err
    code, _, err = run("topic", "purge", "fulll", "--yes")
    assert code == 3 and "did you mean full?" in err


def test_a_refusal_names_the_operation(
    run: Run, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a question which the command asks first."""
    assert run("topic", "create", "guarded")[0] == 0
    for role in ("reader", "writer"):
        secret = server.server.broker.access.create_key(role, role)
        monkeypatch.setenv("PENSTOCK_KEY", secret)
        for command, words in (
            (("topic", "delete", "guarded", "--yes"), "delete topic 'guarded'"),
            (("topic", "purge", "guarded", "--yes"), "purge topic 'guarded'"),
            (("topic", "set", "guarded", "durability=none"), "change topic 'guarded'"),
            (("group", "delete", "g"), "delete group 'g'"),
        ):
            code, _, err = run(*command)
            assert code == 5 and f"{role} may not {words}: that needs the right admin" in err


def test_the_first_key_of_a_server_should_be_an_admins(run: Run, server: LiveServer) -> None:
    advice = "make one now: penstock key create NAME --role admin\n"
    for name, options in (("app", ()), ("some", ("--role", "admin", "--topics", "orders.*"))):
        code, out, err = run("key", "create", name, *options)
        assert (code, out.count("\n")) == (0, 1)
        assert "dev-key ends at the next start" in err and err.endswith(advice)
    assert "dev-key" not in run("key", "create", "ops", "--role", "admin")[2]
    assert "dev-key" not in run("key", "create", "other")[2]
    code, _, err = run("key", "revoke", "ops")
    assert code == 1 and "API key 'ops' is the last that may manage keys" in err
    assert run("key", "revoke", "ops", "--force")[0] == 0
    assert run("key", "create", "third")[2].endswith(advice)


# ---- streams that are closed ----

PENSTOCK = (sys.executable, "-m", "penstock.cli.main")


def closed(
    redirections: str, *arguments: str, **variables: str
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command as a shell does that closes some of its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *PENSTOCK, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": SOURCES, **variables},
    )


@pytest.mark.parametrize(
    ("redirections", "arguments", "exit_code"),
    [
        (">&-", ("topic", "ls"), 0),
        (">&-", ("cat", "demo"), 0),
        ("<&-", ("pub", "demo"), 0),
        ("2>&-", ("pub", "demo", "x"), 0),
        ("2>&-", ("cat", "nosuch"), 3),
        ("<&- >&- 2>&-", ("pub", "demo", "x"), 0),
        ("<&- >&- 2>&-", ("cat", "demo"), 0),
    ],
)
def test_commands_whose_streams_are_closed(
    server: LiveServer, redirections: str, arguments: tuple[str, ...], exit_code: int
) -> None:
    assert cli.main(["pub", "demo", "first"]) == 0
    done = closed(redirections, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, b"", b"")


@pytest.mark.parametrize("redirections", [">&-", "<&- >&- 2>&-"])
def test_a_server_whose_streams_are_closed(tmp_path: Path, redirections: str) -> None:
    path = str(tmp_path / "notify")
    chosen = {"server.data_directory": str(tmp_path / "data"), "server.log_level": "warning"}
    flags = as_flags(free_listeners(chosen) | chosen)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(HANG_S)
        with subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirections}', "sh", *PENSTOCK, "serve", *flags],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SOURCES, "NOTIFY_SOCKET": path},
        ) as process:
            try:
                assert systemd.recv(100) == b"READY=1"
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=HANG_S)
            finally:
                process.kill()
    assert (process.returncode, errors) == (0, b"")
