"""The setup tool: what counts as a change, and what it says when it cannot go on."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kit.limits import HANG_S

TOOL = Path(__file__).parents[2] / "tools" / "bootstrap.py"


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_fingerprint_changes_with_content_only(bootstrap: ModuleType, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    before = bootstrap.fingerprint([one, two], "3.11")
    os.utime(one, (0, 0))
    assert bootstrap.fingerprint([one, two], "3.11") == before
    assert bootstrap.fingerprint([one, two], "3.12") != before
    assert bootstrap.fingerprint([two, one], "3.11") != before
    two.write_text("c")
    assert bootstrap.fingerprint([one, two], "3.11") != before


def test_a_stamp_comes_back_as_written(bootstrap: ModuleType, tmp_path: Path) -> None:
    bootstrap.write_stamp(tmp_path / "stamp.json", {"key": "k", "extras": ["dev"]})
    assert bootstrap.read_stamp(tmp_path / "stamp.json") == {"key": "k", "extras": ["dev"]}


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "null"])
def test_a_missing_or_damaged_stamp_means_nothing_done(
    bootstrap: ModuleType, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "stamp.json"
    if content is not None:
        path.write_text(content)
    assert bootstrap.read_stamp(path) == {}


@pytest.mark.parametrize(
    ("report", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("command not found", None),
    ],
)
def test_java_versions(bootstrap: ModuleType, report: str, version: int | None) -> None:
    assert bootstrap.java_version(report) == version


def test_who_is_not_root_is_told_what_to_install(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(bootstrap.SetupError, match=r"no venv.*apt-get install python3\.11-venv$"):
        bootstrap.install_system_package(["python3.11-venv"], "python3.11 has no venv module")


def test_a_step_says_what_it_does_how_long_and_that_it_moves(
    bootstrap: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The step goes on until it was told of twice; what it prints is not shown."""
    monkeypatch.setattr(bootstrap, "TELL_FILE_S", 0.01)
    going, told = tmp_path / "going", 0
    os.mkfifo(going)

    def count(text: str, **options: object) -> None:
        nonlocal told
        print(text)
        told += ", " in text
        if told == 2:
            going.write_text("on")
            told += 1

    monkeypatch.setattr(bootstrap, "print", count, raising=False)
    code = f"print('noise'); open({str(going)!r}).read()"
    bootstrap.run([sys.executable, "-c", code], "doing something", "a moment")
    first, *moving, last = capsys.readouterr().out.splitlines()
    assert first == "setup: doing something; this usually takes a moment"
    assert len(moving) >= 2
    assert all(re.fullmatch(r"setup: doing something, \d+ s", line) for line in moving)
    assert re.fullmatch(r"setup: done after \d+ s", last)


def test_a_step_that_fails_shows_what_it_printed(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(bootstrap.SetupError, match="failed with exit code 3: "):
        bootstrap.run([sys.executable, "-c", "print('the reason'); exit(3)"], "failing", "a moment")
    assert capsys.readouterr().err == "the reason\n"
    with pytest.raises(bootstrap.SetupError, match="cannot run no-such-program: it is not inst"):
        bootstrap.run(["no-such-program"], "failing", "a moment")


def test_ctrl_c_ends_a_step_and_the_setup_in_one_line(
    bootstrap: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def interrupted(child: "subprocess.Popen[bytes]", *more: object) -> int:
        children.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "wait_and_tell", interrupted)
    monkeypatch.setattr(bootstrap, "BUILD", tmp_path)
    forever = [sys.executable, "-c", "import signal; signal.pause()"]
    monkeypatch.setattr(bootstrap, "step_for", lambda _: lambda: bootstrap.run(forever, "x", "y"))
    assert bootstrap.main([]) == 130
    assert capsys.readouterr().err == "\nsetup: stopped; the next make goes on from here\n"
    assert children[0].returncode is not None


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["compile", "surplus"]])
def test_wrong_usage_is_one_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, TOOL, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 1
    steps = "env [EXTRA ...] | compile | java | ask-java | servers | browser"
    assert done.stderr == f"setup: usage: bootstrap.py {steps}\n"


def test_servers_that_cannot_be_installed_are_named(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(bootstrap, "KAFKA_JARS", tmp_path)
    bootstrap.make_servers()
    said = capsys.readouterr().out
    packages = "mosquitto rabbitmq-server redis-server"
    assert f"skipped: no {packages}; on Debian: apt-get install {packages}" in said
    assert "tests of routes to Kafka are skipped: no Maven" in said


def test_servers_that_are_there_cost_nothing(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap, "KAFKA_JARS", tmp_path)
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / f"kafka_2.13-{bootstrap.KAFKA_VERSION}.jar").touch()
    bootstrap.make_servers()
    assert capsys.readouterr().out == ""


def test_a_browser_that_cannot_be_installed_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    bootstrap.make_browser()
    said = capsys.readouterr().out
    assert said.endswith("skipped: no chromium; on Debian: apt-get install chromium\n")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    bootstrap.make_browser()
    assert capsys.readouterr().out == ""
