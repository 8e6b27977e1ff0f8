"""What whoever looks on sees of a running pipeline, from made files: no JVM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from docs.terminal import Program
from kit.limits import HANG_S
from kit.live_server import SOURCES

from penstock.cli.pipeline_view import table_of
from penstock.spark.pipeline.checkpoints.clock import MOST_BACK_S, ClockWentBack, require_clock
from penstock.spark.pipeline.checkpoints.reading import read_topics
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.running.updates import flow_state
from penstock.spark.pipeline.running.waiting import Ends
from penstock.spark.pipeline.running.watching import Snapshot, Watch
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables.row_counts import RowCounts

CREATED_US = 7


@pytest.fixture
def project(tmp_path: Path) -> Project:
    write_project(tmp_path / "shop")
    return load_project(tmp_path / "shop")


def progress(topics: dict[str, dict[str, int]], created_us: int = CREATED_US) -> str:
    found = {
        topic: {"created_us": created_us, "partitions": partitions}
        for topic, partitions in topics.items()
    }
    return json.dumps({"version": 1, "query": "q", "topics": found})


def batch(project: Project, flow: str, number: int, *sources: str, done: bool = True) -> None:
    """`flow`: the place of its checkpoint, with the number of its refresh."""
    checkpoint = project.checkpoints_directory / flow
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", '{"batchWatermarkMs":0}', *sources]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
    if done:
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")


def rows(project: Project, table: str, name: str, count: int) -> Path:
    directory = project.tables_directory / table
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": list(range(count))}), directory / name)
    return directory / name


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def watching(project: Project, ends: Ends | None, clock: Clock) -> Watch:
    return Watch(project, lambda: ends, clock)


BRONZE = "spark_catalog/default/bronze/bronze"


def test_lag_is_what_no_batch_has_done(project: Project) -> None:
    """A batch that only began does not count, and neither does what was before a full refresh."""
    batch(project, f"{BRONZE}/0", 9, progress({"orders": {"0": 90}}))
    batch(project, f"{BRONZE}/1", 3, progress({"orders": {"0": 10, "1": 5}}))
    batch(project, f"{BRONZE}/1", 4, progress({"orders": {"0": 20, "1": 20}}), done=False)
    ends = {"orders": (CREATED_US, (12, 8, 4)), "clicks": (CREATED_US, (50,))}
    assert watching(project, ends, Clock()).lags() == {"bronze": {"orders": 2 + 3 + 4}}
    assert watching(project, None, Clock()).lags() is None


def test_topics_made_anew_and_topics_that_are_gone(project: Project) -> None:
    batch(project, f"{BRONZE}/0", 0, progress({"orders": {"0": 10}, "gone": {"0": 1}}))
    ends = {"orders": (CREATED_US + 1, (3,))}
    assert watching(project, ends, Clock()).lags() == {"bronze": {"orders": 3}}


def test_a_flow_of_several_sources_and_one_of_none_of_ours(project: Project) -> None:
    """A join of two topics, a sink, and a stream of files."""
    join, sink = "spark_catalog/default/joined/joined/0", "alerts/alerts/0"
    batch(project, join, 0, progress({"a": {"0": 1}}), progress({"b": {"0": 2}}))
    batch(project, sink, 0, progress({"a": {"0": 4}}))
    batch(project, "spark_catalog/default/files/files/0", 0, '{"logOffset":0}', "-")
    assert [name for name, _ in read_topics(project)] == ["alerts", "joined"]
    ends = {"a": (CREATED_US, (5,)), "b": (CREATED_US, (5,))}
    found = watching(project, ends, Clock()).lags()
    assert found == {"joined": {"a": 4, "b": 3}, "alerts": {"a": 1}}


def test_a_look_at_an_update(project: Project) -> None:
    clock = Clock()
    rows(project, "bronze", "a.parquet", 10)
    batch(project, f"{BRONZE}/0", 0, progress({"orders": {"0": 10}}))
    watch = watching(project, {"orders": (CREATED_US, (40,))}, clock)
    assert not watch.begun
    watch.update_begins(3)
    watch.told("Flow `spark_catalog`.`default`.`bronze` is RUNNING.")
    watch.told("Flow 'alerts' has COMPLETED.")
    watch.told("Run is COMPLETED.")
    clock.now_s += 4
    rows(project, "bronze", "b.parquet", 20)
    found = watch.look()
    assert (found.number, found.seconds, found.behind) == (3, 4.0, (("orders", 30),))
    alerts, bronze = found.lines
    assert (alerts.name, alerts.state, alerts.rows, alerts.lag) == (
        "alerts",
        "COMPLETED",
        None,
        None,
    )
    assert (bronze.state, bronze.rows, bronze.new, bronze.lag) == ("RUNNING", 30, 20, 30)
    assert bronze.rows_per_s == 5.0
    # The rate is that of the last seconds, and not of an hour.
    for _ in range(30):
        clock.now_s += 1
        found = watch.look()
    assert found.lines[1].rows_per_s == 0.0 and found.lines[1].new == 20


def test_streams_run_on_beside_an_update_of_other_tables(project: Project) -> None:
    watch = watching(project, {}, Clock())
    watch.update_begins(1)
    watch.told("Flow `x`.`y`.`bronze` has COMPLETED.")
    watch.running(["bronze"])
    watch.told("Flow `x`.`y`.`bronze` is EXCLUDED.")
    watch.told("Flow `x`.`y`.`view` has COMPLETED.")
    found = [(one.name, one.state) for one in watch.look().lines]
    assert found == [("bronze", "RUNNING"), ("view", "COMPLETED")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Flow `spark_catalog`.`default`.`a_b` has COMPLETED.", ("a_b", "COMPLETED")),
        ("Flow spark_catalog.default.bronze is QUEUED.", ("bronze", "QUEUED")),
        ("Run has FAILED.", None),
    ],
)
def test_states_are_what_spark_tells(line: str, found: Any) -> None:
    assert flow_state(line) == found


def test_rows_of_a_file_are_counted_once(project: Project) -> None:
    """A footer that is damaged later is not read again; a table that goes away meanwhile is left out."""
    counts = RowCounts(project)
    path = rows(project, "t", "a.parquet", 3)
    assert counts.count() == {"t": 3}
    state = path.stat()
    path.write_bytes(b"x" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    rows(project, "t", "b.parquet", 2)
    assert counts.count() == {"t": 5}


def test_a_clock_that_went_back_is_told(project: Project) -> None:
    batch(project, f"{BRONZE}/0", 0, progress({"orders": {"0": 1}}))
    require_clock(project, 0.0)
    offsets = project.checkpoints_directory / BRONZE / "0" / "offsets" / "1"
    offsets.write_text('v1\n{"batchTimestampMs": 100000}\n-')
    require_clock(project, 100.0 - MOST_BACK_S)
    with pytest.raises(ClockWentBack, match=r"the clock is 61 s behind the last batch of bronze"):
        require_clock(project, 99.0 - MOST_BACK_S)


# --- the view --------------------------------------------------------------------------------------


def drawn(snapshot: Snapshot, height: int) -> list[str]:
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(table_of(snapshot, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_what_runs_stands_above_what_is_done(project: Project) -> None:
    rows(project, "a_done", "a.parquet", 1234)
    batch(project, f"{BRONZE}/0", 0, progress({"orders": {"0": 10}}))
    watch = watching(project, {"orders": (CREATED_US, (4_010,))}, Clock())
    watch.update_begins(1)
    watch.told("Flow `x`.`y`.`a_done` has COMPLETED.")
    found = drawn(watch.look(), 20)
    assert found[0] == "update 1, 0 s, behind: orders 4,000"
    assert found[1].split() == ["flow", "or", "table", "state", "rows", "new", "rows/s", "lag"]
    assert found[2].split() == ["bronze", "4,000"]
    assert found[3].split() == ["a_done", "completed", "1,234"]
    assert drawn(watch.look(), 6)[-1].split() == ["and", "1", "more"]


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from penstock.cli.pipeline_view import PipelineView
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.running.watching import Watch
view = PipelineView(drawn=sys.argv[3] == "drawn")
watch = Watch(load_project(Path(sys.argv[1])), lambda: None)
with view.showing(watch):
    watch.update_begins(1)
    if sys.stdin.isatty():
        sys.stdin.readline()
    view.say("update 1: [done]")
"""


def program(project: Project, *words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(project.directory), SOURCES, *words]


def test_it_is_drawn_on_a_terminal(project: Project, tmp_path: Path) -> None:
    """And wiped when the run ends: the lines that were said stay."""
    rows(project, "bronze", "a.parquet", 4321)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    terminal = Program(program(project, "drawn"), tmp_path, environment)
    try:
        terminal.wait_for("...4,321...")
        terminal.write(b"\n")
        assert terminal.finish() == 0
        assert "update 1: [done]" in terminal.output
    finally:
        terminal.kill()


@pytest.mark.parametrize("words", ["drawn", "not"])
def test_nothing_is_drawn_elsewhere(project: Project, words: str) -> None:
    rows(project, "bronze", "a.parquet", 4321)
    done = subprocess.run(
        program(project, words),
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "update 1: [done]\n")
