"""`penstock version`, and the one line that every error a user can cause becomes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer
from kit.limits import HANG_S

from penstock import __version__, build_info
from penstock._build import hot_modules
from penstock.cli import main as cli
from penstock.errors import PenstockError


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": source, **variables},
    )


def test_version_tells_version_python_and_build() -> None:
    done = run("version", PENSTOCK_PURE="1")
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    python = ".".join(map(str, sys.version_info[:3]))
    assert first == f"penstock {__version__}, Python {python}, pure"
    assert rest == [f"  {module}: pure" for module in hot_modules()]
    assert done.stderr == ""


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == __version__
    assert answer["kind"] == build_info().kind
    assert answer["pure"] == list(build_info().pure)


def test_no_arguments_show_the_help() -> None:
    done = run()
    assert done.returncode == 0
    assert "version" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["no-such"], ["version", "--no-such"], ["version", "surplus"], ["--no-such"]]
)
def test_wrong_usage_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ")
    assert re.search(r"; see penstock( [a-z]+)* --help\n$", captured.err)
    assert captured.err.count("\n") == 1


class LogLocked(PenstockError):
    exit_code = 3

    def __str__(self) -> str:
        return "data directory is in use\nby process 7"


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (LogLocked(), 3, "data directory is in use by process 7"),
        (FileNotFoundError(2, "No such file", "/no/such"), 1, "/no/such: No such file"),
        (OSError("short"), 1, "short"),
        (PenstockError(), 1, "failed without a message"),
        (EOFError(), 1, "the input ended before an answer; --yes asks nothing"),
        (typer.BadParameter("port is no number."), 2, None),
    ],
)
def test_errors_of_commands_are_one_line(
    error: BaseException,
    exit_code: int,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_command(monkeypatch, error)
    assert cli.main(["fail"]) == exit_code
    lines = [text for text in capsys.readouterr().err.splitlines() if text]
    assert len(lines) == 1
    assert lines[0].startswith("penstock: ")
    assert line is None or lines == [f"penstock: {line}"]


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    use_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


@pytest.mark.parametrize(
    ("error", "exit_code"), [(typer.Exit(0), 0), (typer.Exit(4), 4), (KeyboardInterrupt(), 130)]
)
def test_some_ends_need_no_text(
    error: BaseException,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_command(monkeypatch, error)
    assert cli.main(["fail"]) == exit_code
    assert capsys.readouterr().err == ""


def use_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `penstock fail` a command that raises this error."""

    def fail() -> None:
        raise error

    def build_app(modules: Sequence[str]) -> typer.Typer:
        app = typer.Typer()
        app.callback()(lambda: None)
        app.command("fail")(fail)
        return app

    monkeypatch.setattr(cli, "build_app", build_app)


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    yield write_end
    os.close(write_end)


def test_a_reader_that_went_away_is_no_error_text(closed_pipe: int) -> None:
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "version"],
        check=False,
        stdout=closed_pipe,
        stderr=subprocess.PIPE,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert (done.returncode, done.stderr) == (0, b"")
