"""`penstock demo` without Spark: a small program stands where the pipeline does, and tells of tables.

The whole of it is run by test_the_command, in `make soak`; what the tables hold, by tests/spark/pipeline.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from kit.limits import HANG_S
from kit.live_server import MAIN, SOURCES

from penstock.cli import main as cli
from penstock.demo.events import Amounts, make_load
from penstock.demo.reference import COLUMNS, Expected
from penstock.demo.running import (
    MARK,
    AlreadyRunning,
    Demo,
    Interrupted,
    NoTables,
    NotOurs,
    prepared,
    write_demo_project,
)
from penstock.errors import ExitCode
from penstock.server.pipeline_host import PipelineChild
from penstock.spark.pipeline.project import load_project

# Tells that every table has its rows, or those of an update before.
TELLS = """
import json, signal, sys
for rows in json.loads(sys.argv[1]):
    tables = {name: {"rows": count} for name, count in rows.items()}
    print(json.dumps({"update": 1, "seconds": 0.5, "tables": tables}), flush=True)
signal.pause()
"""
DIES = "import sys; sys.exit('penstock: no such thing')"


@pytest.fixture(autouse=True)
def signals() -> object:
    """As they were: the demonstration watches for Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


LOAD = make_load(Random(1), datetime.now(UTC), Amounts(orders=60, clicks=60, readings=60))
COUNTS = Expected(LOAD).counts()


def demo(directory: Path, child: Callable[[str], list[str]], said: Callable[[str], None]) -> None:
    with prepared(directory) as layout:
        work = Demo(layout, PipelineChild(child, "tables"), LOAD, said)
        asyncio.run(asyncio.wait_for(work.run(), HANG_S))


def telling(*rows: dict[str, int]) -> Callable[[str], list[str]]:
    return lambda flight: [sys.executable, "-c", TELLS, json.dumps(rows)]


def test_it_sends_the_load_and_ends_when_the_tables_are_there(tmp_path: Path) -> None:
    said = Said()
    short = {**COUNTS, "orders_silver": COUNTS["orders_silver"] - 1}
    demo(tmp_path / "demo", telling(short, COUNTS), said)
    assert any(line.startswith("sent ") and "by blipmq and flymq" in line for line in said)
    assert said[-1] == f"{len(COUNTS)} of {len(COUNTS)} tables are complete"


def test_a_pipeline_that_does_not_live_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoTables) as raised:
        demo(tmp_path / "demo", lambda flight: [sys.executable, "-c", DIES], Said())
    text = str(raised.value)
    assert "no such thing" in text and "orders_silver has 0 of" in text and "spark.log" in text
    assert "\n" not in text


def test_a_signal_ends_all_of_it(tmp_path: Path) -> None:
    def say(text: str) -> None:
        if text.startswith("sent"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        demo(tmp_path / "demo", telling({}), say)


def test_only_its_own_directory_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(NotOurs, match="penstock demo has not made it"), prepared(tmp_path):
        raise AssertionError
    assert (tmp_path / "mine").exists()
    with prepared(tmp_path / "demo") as layout:
        (layout.pipeline / "old").write_text("")
    with prepared(tmp_path / "demo") as layout:
        assert not (layout.pipeline / "old").exists()
        with pytest.raises(AlreadyRunning, match="end it first"), prepared(tmp_path / "demo"):
            raise AssertionError
    assert (tmp_path / "demo" / MARK).is_file()


def test_the_project_can_be_loaded(tmp_path: Path) -> None:
    write_demo_project(tmp_path / "project")
    names = {path.name for path in (tmp_path / "project" / "transformations").iterdir()}
    assert names == {"bronze.py", "orders.py", "clicks.py", "telemetry.py", "gold.sql"}
    assert load_project(tmp_path / "project").name == "project"


def test_without_java_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cli.main(["demo", "--directory", str(tmp_path / "demo")]) == ExitCode.FAILED
    assert capsys.readouterr().err.startswith("penstock: Spark needs Java 17 or newer, found none")
    assert not (tmp_path / "demo").exists()


@pytest.mark.soak
def test_the_command(tmp_path: Path) -> None:
    """Twice: the second one begins anew."""
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "demo", "--seed", seed],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCES, "SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=3 * HANG_S,
        )
        assert done.returncode == 0, done.stderr
        for table in COLUMNS:
            assert table in done.stdout
        assert "Where to look:" in done.stderr
