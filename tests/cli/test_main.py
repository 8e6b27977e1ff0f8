"""What all commands have in common: exit codes, words of wrong usage, variables, completion."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock import __version__
from penstock.cli import main as cli
from penstock.cli.environment import complaints
from penstock.errors import EXIT_MEANINGS, ExitCode

ROOT = Path(__file__).parents[2]


def test_the_exit_codes_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(EXIT_MEANINGS) == set(ExitCode)
    documented = re.findall(
        r"^\| (\d+) \| (.*?)(?:[;:,].*)? \|$", (ROOT / "docs/cli.md").read_text(), re.M
    )
    assert documented == [(str(code.value), text) for code, text in EXIT_MEANINGS.items()]
    assert cli.main(["--help"]) == 0
    helped = " ".join(capsys.readouterr().out.split())
    assert all(f"{code.value} {text}" in helped for code, text in EXIT_MEANINGS.items())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sub", "x", "--bad"], "No such option: --bad (Possible options: --ca); see penstock sub --help"),
        (["topic", "create"], "Missing argument 'name'; see penstock topic create --help"),
        (["pub", "x", "-n", "2"], "--count repeats MESSAGE, and there is none; see penstock pub --help"),
        (["nope"], "No such command 'nope'; see penstock --help"),
    ],
)  # fmt: skip
def test_wrong_usage_names_the_help_of_its_command(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err == f"penstock: {line}\n"


def test_words_of_others_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sub", "x", "-n", "0"]) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert text.startswith("penstock: -n / --count: ")
    assert "Invalid value" not in text and "Value error" not in text


def test_a_group_of_commands_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topic"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "describe" in captured.out + captured.err
    assert "penstock: " not in captured.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


@pytest.mark.parametrize("group", ["topic", "group", "key", "context"])
@pytest.mark.parametrize("word", ["ls", "list"])
def test_every_listing_has_both_names(
    group: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([group, word, "--help"]) == 0
    assert "Show" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("PENSTOCK_HTPP", "did you mean PENSTOCK_HTTP?"),
        ("PENSTOCK_COLOUR_OF_THE_SKY", "known are PENSTOCK_SERVER, "),
        ("PENSTOCK_KEY", None),
        ("PENSTOCK__LIMITS__CONNECTIONS", None),
        ("PENSTOCKS", None),
    ],
)
def test_variables_that_nothing_reads(name: str, complaint: str | None) -> None:
    found = list(complaints({name: "x"}))
    assert len(found) == (complaint is not None)
    assert complaint is None or (name in found[0] and complaint in found[0])


def test_a_slip_of_the_pen_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_SEVER", "there:1")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().err.startswith("penstock: environment variable PENSTOCK_SEVER is")


def test_completion() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": "penstock topic de",
            "COMP_CWORD": "2",
        },
    )
    assert done.stdout.split() == ["describe", "delete"]


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["topic", "ls"], ["topic"]),
        (["version", "--json"], ["version"]),
        (["--help"], cli.COMMAND_MODULES),
        (["topics"], cli.COMMAND_MODULES),
    ],
)
def test_a_command_loads_its_own_module(arguments: list[str], modules: Sequence[str]) -> None:
    assert cli.needed_modules(arguments) == modules


def test_a_command_loads_only_what_it_needs() -> None:
    """Each of these takes as long to import as all that `penstock --version` needs."""
    heavy = (
        "asyncio",
        "ssl",
        "logging",
        "pyarrow",
        "uvloop",
        "importlib.resources",
        "penstock.log.embedded",
    )
    code = (
        "import sys; from penstock.cli.main import main; main(['--version']);"
        f" print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.splitlines()[-1] == "[]"
