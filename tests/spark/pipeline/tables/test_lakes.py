"""Delta Lake and Iceberg for real: bronze, its upkeep, and what is shown of it without Spark."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.environments import Environment
from kit.live_server import LiveServer
from spark.conftest import append
from spark.pipeline.checkpoints.test_resuming import in_log, make
from spark.pipeline.one_session import OneSession, Refused, bronze_project
from spark.pipeline.tables.conftest import WANTED
from spark.pipeline.tables.lake_commands import command

from penstock.client.flight import FlightClient
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.tables.formats import FORMATS

POSITIONS = "SELECT topic, partition, offset FROM bronze ORDER BY topic, partition, offset"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def project(
    table_format: str, broker: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    flight = f"127.0.0.1:{broker.port('flight')}"
    directory = tmp_path_factory.mktemp(table_format) / "land"
    return bronze_project(directory, flight, table_format, views=True)


@pytest.fixture(scope="module")
def session(table_format: str, project: Path, environment: Environment) -> Iterator[OneSession]:
    with OneSession(project, environment.python, environment.variables()) as running:
        try:
            assert running.version() == WANTED[table_format]
        except Refused as error:
            packages = FORMATS[table_format].packages[WANTED[table_format].rpartition(".")[0]]
            if "unresolved dependency" in str(error) or "download failed" in str(error):
                pytest.skip(f"{packages} cannot be had: {error}")
            raise
        yield running


def shown(environment: Environment, project: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(command(environment, "pipeline", "show", str(project), "--json"))
    return {row["table"]: row for row in rows}


def test_it_lands_and_goes_on_behind_its_rows(
    broker: LiveServer, sender: FlightClient, project: Path, session: OneSession
) -> None:
    make(broker, "fruit", 2)
    for number in range(2):
        append(sender, "fruit", number, [b"%d" % number] * 3)
        assert session.update() == []
        assert session.rows(POSITIONS) == in_log(sender)
    for number in range(2):
        shutil.rmtree(project / "storage" / "_checkpoints")
        append(sender, "fruit", number, [b"more"] * 2)
        make(broker, f"new-{number}", 1)
        append(sender, f"new-{number}", 0, [b"new"])
        (note,) = session.update()
        assert note.startswith("bronze: its checkpoint was gone; goes on behind its last rows")
        assert session.rows(POSITIONS) == in_log(sender)
        append(sender, "fruit", 1, [b"after"])
        assert session.update() == []
        assert session.rows(POSITIONS) == in_log(sender)
    assert session.rows("SELECT sum(records) FROM traffic_by_minute") == [(len(in_log(sender)),)]


def test_all_tables_have_the_format(table_format: str, project: Path, session: OneSession) -> None:
    for table in ("bronze", "traffic_by_minute"):
        told = dict(row[:2] for row in session.rows(f"DESCRIBE EXTENDED {table}"))
        assert str(told["Provider"]).lower() == table_format
    days = [row[0] for row in session.rows("SELECT DISTINCT day FROM bronze")]
    assert days == [datetime.now(UTC).date().isoformat()]
    directory = load_project(project).tables_directory / "bronze"
    assert list(directory.rglob(f"day={days[0]}")), "it is not partitioned by day"


def test_tables_are_shown_without_spark(
    sender: FlightClient, project: Path, session: OneSession, environment: Environment
) -> None:
    found = shown(environment, project)
    assert found["bronze"]["rows"] == len(in_log(sender)) and found["bronze"]["files"] > 2
    assert found["traffic_by_minute"]["rows"] > 0
    words = ["table", "bronze", "--project", str(project), "--json", "-n", "99"]
    rows = [json.loads(line) for line in command(environment, *words).splitlines()]
    positions = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert sorted(positions) == in_log(sender)
    assert {row["day"] for row in rows} == {datetime.now(UTC).date().isoformat()}


def test_small_files_become_one(
    sender: FlightClient, project: Path, session: OneSession, environment: Environment
) -> None:
    """By the command, in a session of its own; then the stream goes on."""
    before = shown(environment, project)["bronze"]["files"]
    told = command(environment, "pipeline", "optimize", str(project), "bronze", "--json")
    (row,) = json.loads(told[told.index("[") :])
    assert (row["files_before"], row["files_after"]) == (before, 1)
    assert session.rows(POSITIONS) == in_log(sender)
    append(sender, "fruit", 0, [b"later"])
    assert session.update() == []
    assert session.rows(POSITIONS) == in_log(sender)


def test_a_full_refresh(sender: FlightClient, session: OneSession) -> None:
    session.update(full_refresh=["bronze"])
    assert session.rows(POSITIONS) == in_log(sender)


def test_old_days_are_removed(session: OneSession) -> None:
    today = datetime.now(UTC).date()
    assert session.keep((today + timedelta(days=29)).isoformat()) == []
    far = (today + timedelta(days=31)).isoformat()
    assert session.keep(far) == [f"bronze: removed {today.isoformat()}"]
    assert session.rows("SELECT count(*) FROM bronze") == [(0,)]
    assert session.keep(far) == []
