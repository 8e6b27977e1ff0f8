"""A bronze table whose checkpoint is gone: nothing is landed twice, and nothing is left out."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.live_server import LiveServer
from spark.conftest import FLIGHT, KEY, append
from spark.pipeline.one_session import OneSession, bronze_project

from penstock.client.flight import FlightClient, connect
from penstock.spark.pipeline.checkpoints.landed import landed_offsets
from penstock.spark.pipeline.checkpoints.resuming import (
    asked_for,
    checkpoint,
    require_checkpoint,
    write_checkpoint,
)
from penstock.spark.pipeline.errors import LostCheckpoint
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.selection import Selection
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables.files import last_batch, read_table, table_directory
from penstock.spark.pipeline.upkeep.optimize import optimize_files
from penstock.spark.progress import Progress

MADE = datetime(2026, 1, 2, 12, tzinfo=UTC)
MADE_US = int(MADE.timestamp()) * 1_000_000


# --- the statistics --------------------------------------------------------------------------------


def write(path: Path, rows: list[tuple[str, int, int, datetime]], **how: object) -> Path:
    columns = list(zip(*rows, strict=True))
    table = pa.table(
        {
            "topic": columns[0],
            "partition": pa.array(columns[1], pa.int32()),
            "offset": columns[2],
            "timestamp": pa.array(columns[3], pa.timestamp("us", "UTC")),
            "day": [when.date() for when in columns[3]],
        }
    )
    pq.write_table(table, path, **how)
    return path


@pytest.mark.parametrize("int96", [False, True])
def test_behind_the_last_row_of_each_partition(tmp_path: Path, int96: bool) -> None:
    """Also of row groups with several partitions, and of a topic that was deleted and made anew."""
    later = MADE + timedelta(days=3)
    before = MADE - timedelta(hours=1)
    how = {"use_deprecated_int96_timestamps": int96}
    files = [
        write(tmp_path / "one", [("a", 0, number, later) for number in range(10)], **how),
        write(tmp_path / "mixed", [("a", 1, 4, later), ("a", 0, 12, later), ("b", 0, 1, MADE)], **how),
        write(tmp_path / "old", [("a", 0, 99, before), ("a", 0, 98, before)], **how),
        write(tmp_path / "both", [("b", 0, 50, before), ("b", 0, 2, MADE)], **how),
        write(tmp_path / "other", [("c", 0, 7, later)], **how),
    ]  # fmt: skip
    found = landed_offsets(files, {"a": MADE_US, "b": MADE_US, "d": MADE_US})
    assert found == {"a": {0: 13, 1: 5}, "b": {0: 3}}


# --- tables that cannot go on ----------------------------------------------------------------------


def test_silver_without_its_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows do not tell what was left out. Unless it is filled anew."""
    write_project(tmp_path / "shop")
    loaded = load_project(tmp_path / "shop")
    monkeypatch.chdir(loaded.directory)
    require_checkpoint("orders_silver")
    log = loaded.tables_directory / "orders_silver" / "_spark_metadata"
    log.mkdir(parents=True)
    require_checkpoint("orders_silver")
    (log / "0").write_text("v1")
    with pytest.raises(LostCheckpoint, match="the checkpoint of orders_silver is gone"):
        require_checkpoint("orders_silver")
    for selection in (
        Selection(full_refresh=["default.orders_silver"]),
        Selection(full_refresh_all=True),
    ):
        with asked_for(selection):
            require_checkpoint("orders_silver")
    write_checkpoint(checkpoint(loaded, "orders_silver"), 0, Progress("q", {}))
    require_checkpoint("orders_silver")


# --- for real --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {**FLIGHT, "audit.enabled": "false"}
    with LiveServer(tmp_path_factory.mktemp("resuming-broker") / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def sender(broker: LiveServer) -> Iterator[FlightClient]:
    with connect(f"127.0.0.1:{broker.port('flight')}", KEY) as client:
        yield client


@pytest.fixture(scope="module")
def project(broker: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flight = f"127.0.0.1:{broker.port('flight')}"
    found = bronze_project(tmp_path_factory.mktemp("resuming") / "land", flight)
    # What ten batches do otherwise.
    with (found / "conf" / "spark-defaults.conf").open("a") as file:
        file.write("spark.sql.streaming.fileSink.log.compactInterval 2\n")
    return found


@pytest.fixture(scope="module")
def session(project: Path) -> Iterator[OneSession]:
    with OneSession(project) as running:
        yield running


def make(broker: LiveServer, topic: str, partitions: int) -> None:
    broker.call(lambda: broker.server.engine.create_topic(topic, partitions))


def in_table(project: Path) -> list[tuple[str, int, int]]:
    rows = read_table(table_directory(load_project(project), "bronze"))
    if not rows.num_rows:
        return []
    found = zip(*(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    return sorted(found)


def in_log(sender: FlightClient) -> list[tuple[str, int, int]]:
    return sorted(
        (topic, partition, offset)
        for topic, (_, ends) in sender.ends().items()
        for partition, end in enumerate(ends)
        for offset in range(end)
    )


def test_it_goes_on_behind_its_rows(
    broker: LiveServer, sender: FlightClient, project: Path, session: OneSession
) -> None:
    """With several batches in the log of the table: the first batches of a new count would be skipped."""
    make(broker, "fruit", 2)
    for number in range(2):
        append(sender, "fruit", 0, [b"%d" % number] * 3)
        assert session.update() == []
    checkpoints = project / "storage" / "_checkpoints"
    for number in range(2):
        shutil.rmtree(checkpoints)
        append(sender, "fruit", number, [b"more"] * 2)
        make(broker, f"new-{number}", 1)
        append(sender, f"new-{number}", 0, [b"new"])
        if number == 0:
            assert session.update(dry=True) == [] and not checkpoints.exists()
        (note,) = session.update()
        assert note.startswith("bronze: its checkpoint was gone; goes on behind its last rows")
        assert in_table(project) == in_log(sender)
        append(sender, "fruit", 1, [b"after"])
        assert session.update() == []
        assert in_table(project) == in_log(sender)
    assert last_batch(table_directory(load_project(project), "bronze")) == 5


def test_spark_reads_and_goes_on_after_an_optimize(
    sender: FlightClient, project: Path, session: OneSession
) -> None:
    loaded = load_project(project)
    columns = "topic, partition, offset, timestamp, key, value, headers, protocol, day"
    question = f"SELECT {columns} FROM bronze ORDER BY topic, partition, offset"
    before = session.rows(question)
    done = optimize_files(loaded, "bronze", 1 << 20)
    assert done.files_after < done.files_before
    assert session.rows(question) == before and len(before) == len(in_log(sender))
    append(sender, "fruit", 1, [b"later"])
    session.update()
    assert in_table(project) == in_log(sender)
    assert session.rows("SELECT count(*) FROM bronze") == [(len(before) + 1,)]


def test_a_table_without_rows_does_not_skip(
    sender: FlightClient, project: Path, session: OneSession
) -> None:
    """`keep` may have removed every day of a table. Its log still has the numbers of its batches."""
    today = datetime.now(UTC).date()
    told = session.keep((today + timedelta(days=99)).isoformat())
    assert len(told) == 1 and told[0].startswith("bronze: removed ")
    assert session.rows("SELECT count(*) FROM bronze") == [(0,)]
    shutil.rmtree(project / "storage" / "_checkpoints")
    assert in_table(project) == []
    session.update()
    assert in_table(project) == in_log(sender)


def test_a_topic_made_anew(
    broker: LiveServer, sender: FlightClient, project: Path, session: OneSession
) -> None:
    before = in_table(project)
    broker.delete_topic("new-1")
    make(broker, "new-1", 1)
    append(sender, "new-1", 0, [b"one", b"two"])
    shutil.rmtree(project / "storage" / "_checkpoints")
    session.update()
    assert in_table(project) == sorted([*before, ("new-1", 0, 0), ("new-1", 0, 1)])


def test_a_full_refresh_without_a_checkpoint(
    sender: FlightClient, project: Path, session: OneSession
) -> None:
    shutil.rmtree(project / "storage" / "_checkpoints")
    session.update(full_refresh=["bronze"])
    assert in_table(project) == in_log(sender)
