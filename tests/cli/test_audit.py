"""`penstock audit` against a real server."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.audit import trail
from kit.live_server import MAIN, SOURCES, LiveServer

from penstock.broker.access.principal import Principal
from penstock.broker.audit.events import TOPIC_CREATED
from penstock.cli import main as cli

Run = Callable[..., tuple[int, str, str]]
BO = Principal("bo", "admin")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("audit")) as running:
        add(running, 0, 30)
        yield running


def add(running: LiveServer, start: int, end: int) -> None:
    audit = running.server.broker.audit

    def fill() -> None:
        for number in range(start, end):
            audit.changed(BO, TOPIC_CREATED, f"bo.{number}", {"partitions": 1})

    running.call(fill)
    trail(running)


@pytest.fixture
def run(
    server: LiveServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-contexts"))
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")
    monkeypatch.setenv("PENSTOCK_KEY", "dev-key")

    def run_command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        code = cli.main(("audit", *arguments))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_a_list_shows_the_newest_first(run: Run) -> None:
    code, table, said = run("ls", "--who", "bo", "-n", "2")
    assert code == 0
    head, first, second = table.splitlines()
    assert head.split() == [
        "TIME", "TYPE", "USER", "ADDRESS", "DOOR", "RESOURCE", "RESULT", "DETAILS",
    ]  # fmt: skip
    assert "topic.create" in first and "bo.29" in first and "partitions=1" in first
    assert "bo.28" in second
    assert said == "2 of 30 shown; -n, --offset and --since show others\n"


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (["--who", "bo", "-n", "100"], 30),
        (["--type", "topic.create", "--type", "user.*"], 30),
        (["--resource", "bo.2*"], 11),
        (["--search", "BO.13"], 1),
        (["--who", "bo", "--since", "-1h"], 30),
        (["--who", "bo", "--until", "-1h"], 0),
        (["--who", "bo", "--result", "failure"], 0),
        (["--who", "bo", "--offset", "25"], 5),
    ],
)
def test_filters(run: Run, options: list[str], number: int) -> None:
    code, lines, _ = run("ls", "--json", *options)
    assert code == 0
    assert len(json.loads(lines)) == number


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "earliest"], "--since 'earliest': expected a time"),
        (["--since", "noon"], "--since 'noon'"),
        (["--type", "topic.made"], "types: 'topic.made' is none of"),
    ],
)
def test_bad_options_get_one_line(run: Run, options: list[str], words: str) -> None:
    code, out, said = run("ls", *options)
    assert code != 0 and not out and words in said and said.count("\n") == 1


def test_an_export(run: Run) -> None:
    code, lines, _ = run("export", "--who", "bo")
    assert code == 0
    assert [json.loads(line)["resource"] for line in lines.splitlines()] == [
        f"bo.{number}" for number in range(30)
    ]
    code, lines, _ = run("export", "--format", "csv", "--who", "bo")
    assert code == 0 and len(lines.splitlines()) == 31
    code, _, said = run("export", "--format", "xml")
    assert code != 0 and said == "penstock: format: expected one of json, csv\n"


def test_the_tail_ends_or_follows(server: LiveServer, run: Run) -> None:
    code, lines, _ = run("tail", "-n", "1000")
    assert code == 0
    shown = [json.loads(line)["resource"] for line in lines.splitlines()]
    assert [one for one in shown if one] == [f"bo.{number}" for number in range(30)]
    following = subprocess.Popen(
        [sys.executable, "-c", MAIN, "audit", "tail", "-f", "-n", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            "PYTHONPATH": SOURCES,
            "PENSTOCK_HTTP": f"http://127.0.0.1:{server.port('http')}",
            "PENSTOCK_KEY": "dev-key",
        },
    )
    try:
        assert following.stdout is not None
        following.stdout.readline()
        add(server, 30, 31)
        while "bo.30" not in following.stdout.readline():
            continue
    finally:
        following.terminate()
        following.communicate()
