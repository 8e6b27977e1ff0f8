"""`penstock report` before Spark starts: what is wrong is one line, at once. And the lag of groups."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.live_server import LiveServer

from penstock.cli.main import main
from penstock.cli.report import lag_of
from penstock.spark.report.facts import GroupLag


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with LiveServer(data, {"listeners.flight": "127.0.0.1:0"}) as running:
        running.call(lambda: running.server.engine.create_topic("orders", 1))
        yield running


def run(server: LiveServer, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    flight = [] if "--flight" in words else ["--flight", f"127.0.0.1:{server.port('flight')}"]
    http = ["--http", f"http://127.0.0.1:{server.port('http')}"]
    code = main(["report", *flight, *http, *words])
    said = capsys.readouterr()
    assert said.out == ""
    return code, said.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--topic", "ordres"], 3, "no topic matches 'ordres'; penstock topic ls shows all"),
        (["--key", "wrong"], 5, "topics was refused: invalid API key (code 8); give an API key"),
        (["--flight", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1: "),
        (["--flight", "nonsense:port"], 1, "option server: "),
        (["--bucket", "3s"], 2, "--bucket '3s': expected one of auto, 1s, 5s, 10s"),
        (["--from", "soon"], 2, "--from 'soon': expected "),
        (["--from", "17"], 2, "--from '17': expected earliest, a time such as "),
        (["--from", "latest"], 2, "--from 'latest': expected earliest, a time such as "),
        (["--from", "-1h", "--to", "-2h"], 2, "--to -2h is not after --from -1h"),
        (["--user", "al"], 2, "--user: Flight has no users; give an API key"),
        (["--output", "/no/such/place.html"], 1, "/no/such: No such file or directory"),
        (["--output", "/tmp"], 1, "/tmp: Is a directory"),
        (["--tls", "--insecure"], 2, "--insecure: Flight has no such option; give --ca"),
        (["--http", "nonsense", "--flight", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_one_line(
    server: LiveServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    found, errors = run(server, capsys, *words)
    assert found == code, errors
    assert errors.startswith(f"penstock: {said}"), errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_java(
    server: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "JAVA_HOME", "/no/java")
    code, errors = run(server, capsys)
    assert code == 1
    assert errors.startswith("penstock: Spark needs Java 17 or newer, found none at JAVA_HOME=/no/")


def group(name: str, *lags: tuple[str, int]) -> dict[str, Any]:
    offsets = [{"topic": topic, "lag": lag} for topic, lag in lags]
    return {"name": name, "offsets": offsets, "committed_us": 7}


def test_lag_by_group_and_topic() -> None:
    first = group("a", ("orders", 1), ("orders", 4), ("clicks", 9))
    listed = [first, group("b"), group("c", ("orders", 5))]
    found = lag_of(listed)
    assert found.count == 2
    assert found.top == (
        GroupLag("a", "clicks", 1, 9, 9, 7),
        GroupLag("a", "orders", 2, 5, 4, 7),
        GroupLag("c", "orders", 1, 5, 5, 7),
    )
    assert [one.topic for one in lag_of(listed, "cl*").top] == ["clicks"]


def test_of_very_many_groups_those_with_the_largest_lag() -> None:
    found = lag_of(group(f"g{number}", ("orders", number)) for number in range(1_000))
    assert found.count == 1_000
    assert [one.lag for one in found.top] == list(range(999, 979, -1))
