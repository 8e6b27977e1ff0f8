"""Small files of a Parquet table become large ones: without a JVM, and whatever stops it on the way."""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import main as cli
from penstock.errors import ExitCode
from penstock.spark.pipeline.checkpoints.downstream import readers
from penstock.spark.pipeline.errors import BrokenProject
from penstock.spark.pipeline.lock import DoesNotGiveWay, only_one
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables.files import read_table, table_files
from penstock.spark.pipeline.tables.merging import days_of, kind_of, rewrite
from penstock.spark.pipeline.upkeep import replacing
from penstock.spark.pipeline.upkeep.between_updates import (
    has_too_many_files,
    look_after,
    optimize_between_updates,
)
from penstock.spark.pipeline.upkeep.keep import remove_old_days
from penstock.spark.pipeline.upkeep.optimize import (
    is_automatic,
    optimize_files,
    target_bytes,
)
from penstock.spark.pipeline.upkeep.optimizing import optimize_tables
from penstock.spark.pipeline.upkeep.replacing import GRACE_S, settle

FIRST = date(2026, 1, 1)
MIB = 1 << 20


@pytest.fixture
def project(tmp_path: Path) -> Project:
    write_project(tmp_path / "shop")
    return load_project(tmp_path / "shop")


class Table:
    """Written as Spark's file sink does: a file for each batch, and a compact log every third one."""

    def __init__(self, project: Project, name: str = "bronze") -> None:
        self.directory = project.tables_directory / name
        self.log = self.directory / "_spark_metadata"
        self.log.mkdir(parents=True)
        self._entries: list[str] = []
        self._batch = 0
        self.numbers: list[int] = []

    def batch(self, *days: int, rows: int = 5, **more: list[object]) -> None:
        first = len(self.numbers)
        found = list(range(first, first + rows))
        self.numbers += found
        columns = {
            "number": pa.array(found),
            "day": [FIRST + timedelta(days=days[one % len(days)]) for one in range(rows)],
        }
        path = self.directory / f"part-{self._batch:05}.zstd.parquet"
        table = pa.table({**columns, **more}).replace_schema_metadata({"of": "spark"})
        pq.write_table(table, path, compression="zstd", store_schema=False)
        entry = {"path": path.as_uri(), "size": path.stat().st_size, "isDir": False}
        entry |= {"modificationTime": 1000 + self._batch, "action": "add"}
        self._entries.append(json.dumps(entry))
        compact = self._batch % 3 == 2
        lines = self._entries if compact else self._entries[-1:]
        name = f"{self._batch}.compact" if compact else str(self._batch)
        (self.log / name).write_text("\n".join(["v1", *lines]))
        (self.log / f".{name}.crc").write_bytes(b"crc")
        self._batch += 1

    def read(self) -> list[int]:
        """Through the log, as every reader does."""
        found: list[int] = read_table(self.directory)["number"].to_pylist()
        return found

    def files(self) -> list[str]:
        return [one.path.name for one in table_files(self.directory)]

    def on_disk(self) -> set[str]:
        return {one.name for one in self.directory.rglob("*.parquet")}


@pytest.fixture
def table(project: Project) -> Table:
    """Two days in a compact log, and a batch behind it."""
    made = Table(project)
    for day in (0, 0, 0, 1, 1, 1, 1):
        made.batch(day)
    return made


def test_the_files_of_a_day_become_one(project: Project, table: Table) -> None:
    done = optimize_files(project, "bronze", MIB)
    assert (done.files_before, done.files_after, done.note) == (7, 3, "")
    assert done.bytes_after < done.bytes_before
    assert sorted(table.read()) == table.numbers
    *merged, behind = table_files(table.directory)
    assert [days_of(one.path) for one in merged] == [
        (FIRST, FIRST),
        (FIRST + timedelta(days=1),) * 2,
    ]
    assert behind.path.name == "part-00006.zstd.parquet"
    assert [one.changed_ms for one in merged] == [1002, 1005]
    assert not (table.log / ".5.compact.crc").exists()
    table.batch(1)
    again = optimize_files(project, "bronze", MIB)
    assert again.files_after == again.files_before == 4
    assert again.note == "2 files of its last 2 batches wait"


def test_readers_that_began_before_find_their_files_for_an_hour(
    project: Project, table: Table
) -> None:
    before = table.files()
    optimize_files(project, "bronze", MIB)
    settle(project)
    assert {*before, *table.files()} == table.on_disk()
    settle(project, datetime.now(UTC).timestamp() + GRACE_S + 1)
    assert set(table.files()) == table.on_disk()
    assert not list((project.own_directory / "replaced").iterdir())
    assert sorted(table.read()) == table.numbers


def test_what_is_large_enough_stays(project: Project, table: Table) -> None:
    size = max(one.size_bytes for one in table_files(table.directory))
    done = optimize_files(project, "bronze", size)
    assert done.files_after == 7
    done = optimize_files(project, "bronze", size * 2)
    assert done.files_after == 5 and sorted(table.read()) == table.numbers


def test_files_with_other_columns_stay_apart(project: Project, table: Table) -> None:
    table.batch(0)
    table.batch(0, more=[1, 2, 3, 4, 5])
    table.batch(0)
    assert optimize_files(project, "bronze", MIB).files_after == 4
    rows = read_table(table.directory).to_pylist()
    assert [row["more"] for row in rows if row["number"] in table.numbers[40:45]] == [1, 2, 3, 4, 5]


class Stopped(Exception):
    """The process is gone."""


STEPS = ["note", "first file", "all files", "log", "noted"]


@pytest.mark.parametrize("step", STEPS)
def test_stopped_at_any_point(
    project: Project, table: Table, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are there once when it stops, after it is settled, and after the next try."""
    puts, writes = 0, 0
    really_put, really_write = replacing._put, rewrite

    def put(path: Path, text: str, before: Path | None = None) -> None:
        nonlocal puts
        puts += 1
        if (puts, step) in ((2, "all files"), (3, "log")):
            raise Stopped
        really_put(path, text, before)
        if (puts, step) in ((1, "note"), (3, "noted")):
            raise Stopped

    def write(sources: list[Path], target: Path) -> int:
        nonlocal writes
        writes += 1
        if (writes, step) == (2, "first file"):
            raise Stopped
        return really_write(sources, target)

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "_put", put)
        patch.setattr("penstock.spark.pipeline.upkeep.optimize.rewrite", write)
        with pytest.raises(Stopped):
            optimize_files(project, "bronze", MIB)
    assert sorted(table.read()) == table.numbers
    settle(project)
    assert sorted(table.read()) == table.numbers
    if step in ("note", "first file", "all files"):
        assert set(table.files()) == table.on_disk()
    assert optimize_files(project, "bronze", MIB).files_after == 3
    settle(project, datetime.now(UTC).timestamp() + GRACE_S + 1)
    assert sorted(table.read()) == table.numbers
    assert set(table.files()) == table.on_disk()


def test_who_reads_the_table_as_a_stream_has_read_the_new_files(
    project: Project, table: Table
) -> None:
    """To such a reader a file that it does not know holds new rows."""
    flow = project.checkpoints_directory / "spark_catalog" / "default" / "x" / "alerts" / "0"
    for name in ("sources/0/0", "offsets/0", "commits/0", "metadata"):
        (flow / name).parent.mkdir(parents=True, exist_ok=True)
        (flow / name).write_text("v1\n")
    read = [one.path for one in table_files(table.directory)]

    def note(paths: list[Path]) -> None:
        entries = [{"path": one.as_uri(), "timestamp": 1, "batchId": 0} for one in paths]
        (flow / "sources" / "0" / "0").write_text("\n".join(["v1", *map(json.dumps, entries)]))

    note(read[:-1])
    done = optimize_files(project, "bronze", MIB)
    assert (done.files_after, done.note) == (7, "is read as a stream by alerts, which is behind")
    note(read)
    assert optimize_files(project, "bronze", MIB).files_after == 3
    (reader,) = readers(project, table.directory)
    assert reader.read >= {one.path for one in table_files(table.directory)}


def test_between_updates_only_many_files_are_worth_it(project: Project) -> None:
    table = Table(project)
    for _ in range(63):
        table.batch(0)
    assert is_automatic(project)
    assert optimize_between_updates(project) == []
    for _ in range(3):
        table.batch(0)
    (done,) = optimize_between_updates(project)
    assert (done.files_before, done.files_after) == (66, 1)
    assert sorted(table.read()) == table.numbers


def test_streams_are_stopped_for_very_many_files_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.pipeline.upkeep.between_updates.TOO_MANY_FILES", 66)
    table = Table(project)
    for _ in range(65):
        table.batch(0)
    assert not has_too_many_files(project)
    table.batch(0)
    assert has_too_many_files(project)
    assert look_after(project, FIRST) == ["bronze: 66 files became 1"]
    assert not has_too_many_files(project)


# --- keep ------------------------------------------------------------------------------------------


def test_old_days_of_a_file_with_several(project: Project) -> None:
    spec = project.spec_path
    spec.write_text(spec.read_text().replace("keep.bronze: 30d", "keep.bronze: 2d"))
    project = load_project(project.directory)
    table = Table(project)
    for days in ((0,), (0, 5), (5,), (4, 5), (1,)):
        table.batch(*days)
    numbers = [*table.numbers[6:10:2], *table.numbers[10:20]]
    for _ in range(2):
        gone = remove_old_days(project, FIRST + timedelta(days=6))
        assert sorted(table.read()) == numbers
        assert set(table.files()) == table.on_disk()
        assert gone in ({"bronze": ["2026-01-01", "2026-01-02"]}, {})
    assert gone == {}


# --- what Spark has written stays what it is -------------------------------------------------------


def test_types_survive(tmp_path: Path) -> None:
    """Moments of 96 bits, in lists and structs too, stay moments; times without a zone stay that."""
    when = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    plain = when.replace(tzinfo=None)
    moment = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            "at": pa.array([when, None], moment),
            "many": pa.array([[when], []], pa.list_(moment)),
            "deep": pa.array([{"at": when}, None], pa.struct([("at", moment)])),
            "by": pa.array([[("k", when)], None], pa.map_(pa.string(), moment)),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
            "headers": pa.array(
                [[{"key": "a", "value": b"1"}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    ).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": "{}"})
    source, target = tmp_path / "a.parquet", tmp_path / "b.parquet"
    with pq.ParquetWriter(
        source, table.schema, use_deprecated_int96_timestamps=True, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata)
    assert rewrite([source, source], target) == 4
    found = pq.read_table(target)
    assert found.schema.metadata == table.schema.metadata
    assert found.slice(2).to_pylist() == table.to_pylist()
    assert [str(one) for one in found.schema.types[:2]] == [
        "timestamp[us, tz=UTC]",
        "list<element: timestamp[us, tz=UTC]>",
    ]
    ntz = pa.table({"at": pa.array([plain], pa.timestamp("us"))})
    pq.write_table(ntz, source, store_schema=False)
    rewrite([source], target)
    assert pq.read_schema(target).types == [pa.timestamp("us")]


def test_a_table_is_read_of_files_of_both_kinds(tmp_path: Path) -> None:
    """Those that Spark wrote with moments of 96 bits, and those that were made of such files."""
    when = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    table = pa.table({"at": pa.array([when], pa.timestamp("us", "UTC"))})
    directory = tmp_path / "table" / "day=2026-01-01"
    directory.mkdir(parents=True)
    source = directory / "a.parquet"
    pq.write_table(table, source, use_deprecated_int96_timestamps=True, store_schema=False)
    rewrite([source], directory / "b.parquet")
    assert read_table(tmp_path / "table").to_pylist() == [{"at": when, "day": "2026-01-01"}] * 2


def test_files_of_another_calendar_are_left_to_spark(tmp_path: Path) -> None:
    table = pa.table({"n": [1]}).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    pq.write_table(table, tmp_path / "a.parquet")
    assert kind_of(tmp_path / "a.parquet") is None


# --- settings and the command ----------------------------------------------------------------------


def changed(project: Project, name: str, value: str) -> Project:
    spec = project.spec_path
    setting = re.compile(rf"^  spark\.penstock\.{name}: .*$", re.MULTILINE)
    text, count = setting.subn(f"  spark.penstock.{name}: {value}", spec.read_text())
    assert count == 1
    spec.write_text(text)
    return load_project(project.directory)


@pytest.mark.parametrize(
    ("text", "size"), [("128MiB", 128 * MIB), ("64m", 64 * MIB), ("1GB", 1024 * MIB)]
)
def test_a_target(project: Project, text: str, size: int) -> None:
    assert target_bytes(project) == 128 * MIB
    assert target_bytes(changed(project, "targetFileSize", text)) == size


@pytest.mark.parametrize(
    ("name", "value", "read", "problem"),
    [
        ("targetFileSize", "large", target_bytes, "'large': expected a size, as 128MiB"),
        ("optimize", "maybe", is_automatic, "'maybe': expected auto or manual"),
    ],
)
def test_settings_that_are_wrong(
    project: Project, name: str, value: str, read: Callable[[Project], object], problem: str
) -> None:
    with pytest.raises(BrokenProject, match=problem):
        read(changed(project, name, value))


def test_the_command(project: Project, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "optimize", str(project.directory)]
    assert cli.main([*words, "bronce"]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == "penstock: no table named bronce; there are bronze\n"
    with only_one(project), pytest.raises(DoesNotGiveWay, match="has not come to its end"):
        optimize_tables(project, ["bronze"], print, wait_s=0.0)
    assert cli.main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["table"], row["files_before"], row["files_after"]) == ("bronze", 7, 3)
    assert sorted(table.read()) == table.numbers
    assert cli.main([*words, "bronze"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["TABLE", "FILES", "BEFORE"]
