"""`penstock pub` over HTTP: headers, and the way that is chosen by what was asked for."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.live_server import LiveServer

from penstock.cli import http_outbox
from penstock.cli import main as cli
from penstock.errors import ExitCode

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("outbox")) as server:
        yield server


@pytest.fixture
def run(
    server: LiveServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(list(arguments))
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return run


def test_headers_go_and_come(run: Run) -> None:
    options = ("-K", "k", "-H", "trace=7", "--header", "empty=", "-H", "sum=a=b")
    assert run("pub", "headed", "hello", *options)[0] == 0
    code, (line,), _ = run(
        "sub", "headed", "--protocol", "http", "--from", "earliest", "--json", "-n1"
    )
    found = json.loads(line)
    assert code == 0 and found.pop("timestamp_us") > 0
    assert found == {
        "topic": "headed",
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "hello",
        "headers": [
            {"name": "trace", "value": "7"},
            {"name": "empty", "value": ""},
            {"name": "sum", "value": "a=b"},
        ],
    }
    assert run("cat", "headed", "--format", r"%p %o %k %h\n")[1] == ["0 0 k trace=7,empty=,sum=a=b"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-H", "trace"), "--header 'trace': write NAME=VALUE"),
        (("-H", "=7"), "--header '=7': write NAME=VALUE"),
        (("-H", "a=b", "--protocol", "blipmq"), "--header needs --protocol http"),
        (("-H", "a=b", "--protocol", "flymq"), "--header needs --protocol http"),
        (("-H", "a=b", "--delay", "1 h"), "--delay goes with no --message-key, --header"),
    ],
)
def test_what_cannot_be(run: Run, options: tuple[str, ...], words: str) -> None:
    code, _, errors = run("pub", "headed", "x", *options)
    assert code == ExitCode.USAGE and words in " ".join(errors.split())


def test_another_server_needs_its_url(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_HTTP")
    code, _, errors = run("pub", "headed", "x", "-H", "a=b")
    assert code == ExitCode.USAGE and "--server is given without --http" in errors


@pytest.mark.parametrize(
    "options",
    [("--ttl", "1 h"), ("--ttl", "1 h", "-K", "k"), ("--delay", "1 ms"), ("-p", "0"), ("-K", "k")],
)
def test_the_way_is_chosen(run: Run, options: tuple[str, ...]) -> None:
    """Each is there, whichever way it took."""
    topic = "chosen-" + "-".join(one.strip("- ").replace(" ", "") for one in options)
    assert run("pub", topic, "x", *options)[0] == 0
    read = ("sub", topic, "--protocol", "http", "--from", "earliest", "-n", "1")
    assert run(*read)[1] == ["x"]


def test_many_lines(run: Run, tmp_path: Path) -> None:
    """More than one request has room for."""
    count = http_outbox.REQUEST_RECORDS + 5
    (tmp_path / "lines").write_text("".join(f"{n}\n" for n in range(count)))
    assert run("pub", "many", "-f", str(tmp_path / "lines"), "-H", "a=b")[0] == 0
    assert run("cat", "many")[1] == [str(n) for n in range(count)]


def test_a_refusal_says_what_became_of_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    code, _, errors = run("pub", "_internal", "-f", str(tmp_path / "lines"), "-H", "a=b")
    assert code == ExitCode.NOT_AUTHORIZED
    assert "belong to the server" in errors and "0 confirmed, 2 refused" in errors
    (tmp_path / "large").write_bytes(b"x" * (http_outbox.MAX_MESSAGE_BYTES + 1))
    code, _, errors = run("pub", "many", "--raw", "-f", str(tmp_path / "large"), "-H", "a=b")
    assert code == ExitCode.USAGE and "HTTP takes 2900000 at most" in errors
