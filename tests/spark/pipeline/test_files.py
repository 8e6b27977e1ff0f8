"""What needs no JVM: projects, tables as files, and names."""

import ast
import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from docs.markdown import ROOT, Document

from penstock.cli import main as cli
from penstock.errors import ExitCode
from penstock.spark.pipeline.blocks.bronze import names
from penstock.spark.pipeline.blocks.expectations import WrongExpectation, expect
from penstock.spark.pipeline.errors import BrokenProject, NoProject, NoTable
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.starter import TEMPLATE, write_project
from penstock.spark.pipeline.tables.files import last_rows, read_table, table_directory, table_files
from penstock.spark.pipeline.upkeep.keep import keep_days, remove_old_days


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "shop")
    return tmp_path / "shop"


def test_a_new_project_says_where_its_tables_are(project: Path) -> None:
    found = load_project(project)
    assert found.name == "shop"
    assert found.tables_directory == project.resolve() / "tables"
    assert found.checkpoints_directory == project.resolve() / "storage" / "_checkpoints"
    assert found.keep == {"bronze": "30d"}


def test_nothing_is_overwritten(project: Path) -> None:
    with pytest.raises(BrokenProject, match="is there already; choose another name"):
        write_project(project)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: [", "line 1: "),
        ("- a\n- b\n", "expected name, storage and libraries"),
        ("name: shop\n", "storage is missing, or is no text"),
        ("name: s\nstorage: s\nconfiguration:\n  a.b: 1\n", "a.b: put 1 in quotes"),
        ("name: s\nstorage: s\nconfiguration: 1\n", "configuration must be names with values"),
    ],
)
def test_a_broken_project_is_one_line(project: Path, text: str, problem: str) -> None:
    (project / "spark-pipeline.yml").write_text(text)
    with pytest.raises(BrokenProject) as raised:
        load_project(project)
    assert problem in str(raised.value) and "spark-pipeline.yml" in str(raised.value)


def test_no_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoProject):
        load_project(tmp_path)
    assert cli.main(["pipeline", "run", str(tmp_path)]) == ExitCode.NOT_FOUND
    told = f"penstock: {tmp_path} has no spark-pipeline.yml; penstock pipeline init NAME writes a project\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--full-refresh-all", "--refresh", "t"], "--full-refresh-all is all tables"),
        (["--master", "local[1]", "--remote", "sc://h"], "give one of --master and --remote"),
        (["--continuous", "--dry-run"], "--continuous brings all tables up to date"),
    ],
)
def test_options_that_contradict_each_other(
    project: Path, options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "run", str(project), *options]) == ExitCode.USAGE
    assert problem in capsys.readouterr().err


# --- names -----------------------------------------------------------------------------------------


def test_topics_become_names_of_tables() -> None:
    assert names(["orders", "orders.dlq", "Clicks-2"]) == {
        "orders": "orders",
        "orders.dlq": "orders_dlq",
        "Clicks-2": "clicks_2",
    }


def test_topics_that_would_share_a_table_do_not() -> None:
    found = names(["a-b", "a.b", "A_B", "c"])
    assert len(set(found.values())) == 4 and found["c"] == "c"
    assert found == names(["c", "A_B", "a.b", "a-b"])


# --- tables ----------------------------------------------------------------------------------------


def batch(directory: Path, number: int, name: str, rows: dict[str, list[int]]) -> str:
    """Writes one file of a batch; gives its line of the log."""
    path = directory / "day=2026-01-01" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path)
    entry = {
        "path": path.as_uri(),
        "size": path.stat().st_size,
        "isDir": False,
        "modificationTime": 1_000 + number,
        "blockReplication": 1,
        "blockSize": 1,
        "action": "add",
    }
    return json.dumps(entry)


@pytest.fixture
def table(project: Path) -> Path:
    """Two batches in a compact file, one behind it, and a file that no batch counts."""
    directory = project / "tables" / "numbers"
    log = directory / "_spark_metadata"
    log.mkdir(parents=True)
    first = batch(directory, 0, "a b.parquet", {"n": [1, 2]})
    second = batch(directory, 1, "b.parquet", {"n": [3]})
    third = batch(directory, 2, "c.parquet", {"n": [4, 5], "more": [7, 8]})
    batch(directory, 3, "stray.parquet", {"n": [666]})
    (log / "0").write_text(f"v1\n{first}")
    (log / "1.compact").write_text(f"v1\n{first}\n{second}")
    (log / "2").write_text(f"v1\n{third}")
    (log / ".2.crc").write_bytes(b"crc")
    return directory


def test_a_streaming_table_is_what_its_log_says(table: Path) -> None:
    assert [one.path.name for one in table_files(table)] == [
        "a b.parquet",
        "b.parquet",
        "c.parquet",
    ]
    assert read_table(table).column("n").to_pylist() == [1, 2, 3, 4, 5]
    assert read_table(table).column("more").to_pylist() == [None, None, None, 7, 8]


@pytest.mark.parametrize(("limit", "rows"), [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_last_rows(table: Path, limit: int, rows: list[int]) -> None:
    assert last_rows(table, limit).column("n").to_pylist() == rows


def test_a_log_of_another_version_is_refused(table: Path) -> None:
    (table / "_spark_metadata" / "2").write_text("v2\n")
    with pytest.raises(BrokenProject, match="version 'v2' of Spark's log is not known here"):
        table_files(table)


def test_show_and_table(project: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pipeline", "show", str(project), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["table"], row["rows"], row["files"]) == ("numbers", 5, 3)
    where = ["--project", str(project)]
    assert cli.main(["table", "Numbers", *where, "--limit", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"n": 4, "more": 7, "day": "2026-01-01"},
        {"n": 5, "more": 8, "day": "2026-01-01"},
    ]
    assert cli.main(["table", "numbers", *where, "--column", "n", "-n", "1"]) == 0
    assert capsys.readouterr().out == "N\n5\n"
    assert cli.main(["table", "numbers", *where, "--column", "m"]) == ExitCode.USAGE
    assert "--column m: the columns are n, day, more" in capsys.readouterr().err
    assert cli.main(["table", "letters", *where]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == "penstock: no table named letters; there are numbers\n"


def test_a_table_of_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["table", "numbers"]) == ExitCode.NOT_FOUND
    assert "has no spark-pipeline.yml" in capsys.readouterr().err


def test_the_project_below_that_has_the_table(
    project: Path, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(project.parent / "other")
    monkeypatch.chdir(project.parent)
    assert cli.main(["table", "numbers", "-n", "1", "--column", "n"]) == 0
    assert capsys.readouterr().out == "N\n5\n"
    assert cli.main(["table", "letters"]) == ExitCode.FAILED
    assert "other and shop have a table letters; name one with --project" in capsys.readouterr().err
    monkeypatch.chdir(project / "transformations")
    assert cli.main(["table", "numbers", "-n", "1", "--column", "n"]) == 0


def test_no_such_table(project: Path) -> None:
    with pytest.raises(NoTable, match="no table named t; there is none yet"):
        table_directory(load_project(project), "t")


# --- keep ------------------------------------------------------------------------------------------


def test_old_days_are_removed_from_log_and_disk(project: Path, table: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("keep.bronze: 30d", "keep.numbers: 10d"))
    fresh = table / "day=2026-01-05" / "d.parquet"
    fresh.parent.mkdir()
    pq.write_table(pa.table({"n": [6]}), fresh)
    entry = {"path": fresh.as_uri(), "size": 1, "modificationTime": 5, "action": "add"}
    (table / "_spark_metadata" / "3").write_text(f"v1\n{json.dumps(entry)}")
    found = load_project(project)
    assert remove_old_days(found, date(2026, 1, 11)) == {}
    assert read_table(table).num_rows == 6
    assert remove_old_days(found, date(2026, 1, 12)) == {"numbers": ["2026-01-01"]}
    assert read_table(table).column("n").to_pylist() == [6]
    left = [path.name for path in (table / "day=2026-01-01").iterdir()]
    assert left == ["stray.parquet"]
    # Spark would refuse a file whose checksum is that of another content.
    assert not (table / "_spark_metadata" / ".2.crc").exists()
    assert (table / "_spark_metadata" / "2").read_text() == "v1"
    assert remove_old_days(found, date(2026, 1, 12)) == {}


def test_a_keep_that_is_no_number_of_days(project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("keep.bronze: 30d", "keep.bronze: a month"))
    with pytest.raises(BrokenProject, match=r"keep\.bronze 'a month': expected days, as 30d"):
        keep_days(load_project(project))


# --- the page --------------------------------------------------------------------------------------


def silver_calls(text: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.dump(one) for one in calls if getattr(one.func, "id", "") == "silver"]


def test_the_snippet_of_the_page_is_that_of_a_new_project() -> None:
    """Which test_updates.py runs."""
    (snippet,) = Document(ROOT / "docs" / "pipeline.md").of("py")
    project = (TEMPLATE / "transformations" / "orders.py").read_text()
    assert silver_calls(snippet.text) == silver_calls(project) != []


def test_an_expectation_says_what_becomes_of_a_row() -> None:
    with pytest.raises(WrongExpectation, match="there are dead-letter, drop and fail"):
        expect("x", "a > 0", otherwise="keep")  # type: ignore[arg-type]  # that is the point
