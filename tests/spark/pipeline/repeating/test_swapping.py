"""Rebuilt files take the place of others: a crash at any step leaves the old table or the new one."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark.pipeline.made_tables import BRONZE, bronze_rows, write_table

from penstock.spark.pipeline.checkpoints.downstream import mark_read, who_lags
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.repeating.swapping import (
    CannotExchange,
    Rebuilt,
    aside_of,
    clean_up,
    exchange,
    swap,
)
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables.files import read_table, table_files
from penstock.spark.pipeline.tables.positions import BRONZE as LAYOUT
from penstock.spark.pipeline.tables.positions import TableChanged

# Offset 1 is missing and 3 is there twice; 5 and 6 came while the others were rebuilt.
OLD = [0, 2, 3, 3, 4]
LATER = [5, 6]
NEW = [0, 1, 2, 3, 4]
REBUILT_TO = 5


class Killed(BaseException):
    """As a kill: nothing runs after it."""


class World:
    """A table of four batches, the first two of them in a compact file of its log."""

    def __init__(self, directory: Path) -> None:
        write_project(directory)
        self.project: Project = load_project(directory)
        batches = [bronze_rows("t", one) for one in (OLD[:2], OLD[2:4], OLD[4:], LATER)]
        self.table = write_table(directory, "bronze", BRONZE, batches)
        log = self.table / "_spark_metadata"
        first, second = ((log / name).read_text().splitlines()[1] for name in "01")
        (log / "1.compact").write_text(f"v1\n{first}\n{second}")
        (log / "1").unlink()
        (log / ".3.crc").write_bytes(b"that of another content")
        self.rebuild()

    def rebuild(self) -> None:
        """As Spark leaves it."""
        new = aside_of(self.project, "bronze") / "new"
        new.mkdir(parents=True)
        for number, offsets in enumerate((NEW[:2], NEW[2:])):
            rows = pa.Table.from_pylist(bronze_rows("t", offsets), schema=BRONZE)
            pq.write_table(rows, new / f"part-new-{number}.parquet")
        (new / "_SUCCESS").touch()
        (new / ".part-new-0.parquet.crc").touch()

    def rebuilt(self) -> Rebuilt:
        old = frozenset(self.table / f"part-{number}.parquet" for number in range(3))
        return Rebuilt("bronze", LAYOUT, old, {("t", 0): REBUILT_TO})

    def offsets(self) -> list[int]:
        return sorted(read_table(self.table).column("offset").to_pylist())

    def on_disk(self) -> set[Path]:
        return set(self.table.rglob("*.parquet"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "shop")


def steps_of(world: World) -> list[str]:
    found: list[str] = []
    swap(world.project, world.rebuilt(), found.append)
    return found


def test_the_new_files_count_and_the_old_ones_are_gone(world: World) -> None:
    assert world.offsets() == sorted(OLD + LATER)
    steps_of(world)
    assert world.offsets() == NEW + LATER
    assert world.on_disk() == {one.path for one in table_files(world.table)}
    assert not aside_of(world.project, "bronze").exists()
    # Spark counts its batches on, and gathers the same ones.
    names = {path.name for path in (world.table / "_spark_metadata").iterdir()}
    assert names == {"0", "1.compact", "2", "3"}


def test_a_log_without_a_compact_file(world: World) -> None:
    log = world.table / "_spark_metadata"
    second = (log / "1.compact").read_text().splitlines()[2]
    (log / "1").write_text(f"v1\n{second}")
    (log / "1.compact").unlink()
    steps_of(world)
    assert world.offsets() == NEW + LATER


def test_a_crash_at_any_step_leaves_the_old_table_or_the_new_one(tmp_path: Path) -> None:
    steps = steps_of(World(tmp_path / "whole"))
    assert len(steps) > 8 and steps.count("exchange") == 1
    for number, name in enumerate(steps):
        world = World(tmp_path / f"crash-{number}")
        passed: list[str] = []

        def crash(step: str, passed: list[str] = passed, number: int = number) -> None:
            if len(passed) == number:
                raise Killed(step)
            passed.append(step)

        with pytest.raises(Killed):
            swap(world.project, world.rebuilt(), crash)
        done = "exchange" in passed
        assert world.offsets() == (NEW + LATER if done else sorted(OLD + LATER)), name
        # The next backfill finds what is left, and does it all again.
        clean_up(world.project, "bronze")
        assert world.on_disk() == {one.path for one in table_files(world.table)}, name
        if not done:
            world.rebuild()
            swap(world.project, world.rebuilt())
        assert world.offsets() == NEW + LATER, name
        assert not aside_of(world.project, "bronze").exists()


def test_a_crash_while_it_is_cleaned_up(world: World) -> None:
    def crash(step: str) -> None:
        if step.startswith("remove"):
            raise Killed(step)

    with pytest.raises(Killed):
        swap(world.project, world.rebuilt(), crash)
    with pytest.raises(Killed):
        clean_up(world.project, "bronze", crash)
    clean_up(world.project, "bronze")
    clean_up(world.project, "bronze")
    assert world.offsets() == NEW + LATER
    assert world.on_disk() == {one.path for one in table_files(world.table)}


@pytest.mark.parametrize(
    ("offsets", "left"), [([0, 2, 3], NEW + LATER), ([5, 6, 7], [*NEW, 5, 6, 7]), ([4, 5], None)]
)
def test_files_that_were_put_together_meanwhile(
    world: World, offsets: list[int], left: list[int] | None
) -> None:
    """In place of those that were there: by which rows they have they are known."""
    name = "part-3.parquet" if offsets[0] == 5 else "part-1.parquet"
    path = world.table / name
    merged = path.with_name("part-merged.parquet")
    pq.write_table(pa.Table.from_pylist(bronze_rows("t", offsets), schema=BRONZE), merged)
    for log in (world.table / "_spark_metadata").glob("[0-9]*"):
        log.write_text(log.read_text().replace(path.as_uri(), merged.as_uri()))
    if left is None:
        before = world.offsets()
        with pytest.raises(TableChanged):
            swap(world.project, world.rebuilt())
        assert world.offsets() == before
    else:
        swap(world.project, world.rebuilt())
        assert world.offsets() == sorted(left)


def test_where_directories_cannot_be_exchanged(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(CannotExchange, match=r"two directories \(No such file or directory\)"):
        exchange(tmp_path / "one", tmp_path / "other")


# --- who reads the table as a stream ---------------------------------------------------------------


def reader(world: World, read: list[str], commits: int = 1) -> Path:
    """A flow that has read these files in two batches."""
    flow = world.project.checkpoints_directory / "out" / "out" / "0"
    for name, count in (("offsets", 2), ("commits", commits + 1)):
        (flow / name).mkdir(parents=True)
        for number in range(count):
            (flow / name / str(number)).touch()
    (flow / "metadata").write_text('{"id":"x"}')
    source = flow / "sources" / "0"
    source.mkdir(parents=True)
    for number, names in enumerate((read[:1], read[1:])):
        lines = [
            json.dumps({"path": (world.table / name).as_uri(), "timestamp": 1, "batchId": number})
            for name in names
        ]
        (source / str(number)).write_text("\n".join(["v1", *lines]))
    (source / ".0.crc").write_bytes(b"that of another content")
    return source


ALL = [f"part-{number}.parquet" for number in range(4)]


@pytest.mark.parametrize(
    ("read", "commits", "lags"), [(ALL, 1, None), (ALL[:3], 1, "out"), (ALL, 0, "out")]
)
def test_a_reader_that_lags(world: World, read: list[str], commits: int, lags: str | None) -> None:
    reader(world, read, commits)
    assert who_lags(world.project, world.table) == lags


def test_a_reader_that_was_refreshed_is_asked_by_its_last_checkpoint(world: World) -> None:
    source = reader(world, ALL[:1])
    assert who_lags(world.project, world.table) == "out"
    newer = source.parents[1].with_name("1")
    (newer / "offsets").mkdir(parents=True)
    (newer / "metadata").write_text('{"id":"y"}')
    assert who_lags(world.project, world.table) is None


def test_a_reader_has_had_the_rebuilt_rows(world: World) -> None:
    source = reader(world, ALL)
    swap(world.project, world.rebuilt())
    assert who_lags(world.project, world.table) is None
    assert not (source / ".0.crc").exists()
    lines = (source / "0").read_text().splitlines()
    assert lines[0] == "v1" and len(lines) == 4
    assert {json.loads(line)["batchId"] for line in lines[1:]} == {0}
    assert (source / "1").read_text().count("part-new") == 0


def test_readers_of_other_tables_are_left_alone(world: World, tmp_path: Path) -> None:
    source = reader(world, ALL)
    before = (source / "0").read_text()
    mark_read(world.project, tmp_path / "elsewhere", [{"path": "file:///x", "modificationTime": 1}])
    assert (source / "0").read_text() == before
