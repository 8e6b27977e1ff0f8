"""`penstock config show` and `penstock config init`."""

import tomllib
from pathlib import Path

import pytest

from penstock.cli import main as cli


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def test_show_tells_every_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(
        '[limits]\nconnections = 7\n[[keys]]\nname = "k"\nrole = "user"\nkey = "top-secret"\n'
    )
    monkeypatch.setenv("PENSTOCK__LIMITS__FAILED_LOGINS", "3")
    assert cli.main(["config", "show", "-c", str(path), "--set", "server.drain_time=2 s"]) == 0
    shown = capsys.readouterr().out
    assert "top-secret" not in shown
    lines = {line.split(" = ")[0]: " ".join(line.split()) for line in shown.splitlines()}
    assert lines["connections"] == f"connections = 7 # {path}:2"
    assert lines["failed_logins"].endswith("# environment PENSTOCK__LIMITS__FAILED_LOGINS")
    assert lines["drain_time"] == 'drain_time = "2 s" # flag server.drain_time'
    assert lines["login_time"] == 'login_time = "10 s" # default'
    assert tomllib.loads(shown)["limits"]["connections"] == 7


def test_the_file_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.toml").write_text("[limits]\nconnections = 9\n")
    monkeypatch.setenv("PENSTOCK_CONFIG", "other.toml")
    assert cli.main(["config", "show"]) == 0
    assert "# other.toml:2" in capsys.readouterr().out


def test_init_writes_a_file_that_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "show"]) == 0
    default = capsys.readouterr().out
    assert cli.main(["config", "init"]) == 0
    assert "penstock.toml written" in capsys.readouterr().out
    assert cli.main(["config", "show", "-c", "penstock.toml"]) == 0
    assert capsys.readouterr().out == default


def test_init_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "init", "-"]) == 0
    tomllib.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("precious")
    assert cli.main(["config", "init", "mine.toml"]) == 1
    assert (tmp_path / "mine.toml").read_text() == "precious"
    assert capsys.readouterr().err == (
        "penstock: mine.toml exists already; remove it first or write to another path\n"
    )


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PENSTOCK__X", "penstock config init - lists all"),
        ("PENSTOCK__LIMITS__CONECTIONS", "did you mean PENSTOCK__LIMITS__CONNECTIONS?"),
    ],
)
def test_a_variable_that_nothing_is_like(
    variable: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, "1")
    assert cli.main(["config", "show"]) == 1
    text = f'penstock: environment: unknown key "{variable}"; {words}\n'
    assert capsys.readouterr().err == text


def test_a_section_that_nothing_is_like(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.toml").write_text("[qqqq]\nx = 1\n")
    assert cli.main(["config", "show", "-c", str(tmp_path / "odd.toml")]) == 1
    assert capsys.readouterr().err.endswith('"[qqqq]"; penstock config init - lists all\n')


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["--set", "limits.connection=5"], 1, "did you mean limits.connections?"),
        (["--set", "svr=1"], 1, 'unknown key "svr"; penstock config init - lists all'),
        (["--set", "x.y=1"], 1, 'unknown key "x.y"; penstock config init - lists all'),
        (["--set", "limits.connections=many"], 1, "flag limits.connections"),
        (["--set", "limits.connections"], 2, "expected section.key=value"),
        (["--set", "=5"], 2, "expected section.key=value"),
        (["-c", "missing.toml"], 1, "missing.toml: cannot read the file"),
        (["--set", "tls.key=k.pem"], 1, "set both or neither"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], exit_code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "show", *arguments]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ") and captured.err.count("\n") == 1
    assert words in captured.err
