"""Tables made anew from the log of a real broker, with the Spark session of the run; test_updates.py has
the command beside a running pipeline."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.engines import embedded
from kit.live_server import LiveServer
from spark.conftest import KEY_VARIABLE, Make, address, numbers
from spark.pipeline.made_tables import (
    BRONZE,
    LETTERS,
    bronze_rows,
    letter_rows,
    project_of,
    write_checkpoint,
    write_table,
)
from spark.test_reading import SEGMENT_BYTES, VALUE_BYTES

from penstock.cli import main as cli
from penstock.client.flight import FlightClient
from penstock.errors import ExitCode
from penstock.log.settings import TopicSettings
from penstock.spark.pipeline.blocks.bronze import bronze
from penstock.spark.pipeline.blocks.source import as_ranges, stream
from penstock.spark.pipeline.connecting import broker_of
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.repeating.backfill import (
    BackfillRuns,
    CannotBackfill,
    backfill,
    flows_into,
    plan,
    swap_all,
    together,
    write_aside,
)
from penstock.spark.pipeline.tables.files import read_table
from penstock.spark.pipeline.tables.positions import TableChanged

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.sql import SparkSession


@pytest.fixture
def project(tmp_path: Path, server: LiveServer) -> Project:
    return load_project(project_of(tmp_path / "shop", server))


@pytest.fixture
def session(spark: "SparkSession", server: LiveServer) -> Iterator["SparkSession"]:
    """Which knows the broker as that of a pipeline does."""
    given = {"spark.penstock.server": address(server), "spark.penstock.keyEnv": KEY_VARIABLE}
    for name, value in given.items():
        spark.conf.set(name, value)
    yield spark
    for name in given:
        spark.conf.unset(name)


def landing(pattern: str) -> "list[Flow]":
    """The flow that bronze() makes."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    found: list[Flow] = []
    with graph_element_registration_context(flows_into(found)):
        bronze(pattern=pattern, maxOffsetsPerTrigger="3")
    return found


def places(project: Project) -> list[tuple[Any, ...]]:
    found = read_table(project.tables_directory / "bronze")
    rows = found.select(["topic", "partition", "offset"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_ranges_are_read_by_the_building_blocks(
    session: "SparkSession", make: Make, topic: str
) -> None:
    """Whatever options the stream has; several tasks, and an empty range."""
    make(topic, numbers(0, 10), numbers(0, 4))
    with as_ranges({(topic, 0): (2, 9), (topic, 1): (4, 4)}):
        frame = stream(subscribe=topic, maxOffsetsPerTrigger="1", startingOffsets="latest")
    found = frame.select("partition", "offset").collect()
    assert sorted(map(tuple, found)) == [(0, one) for one in range(2, 9)]


def test_gaps_and_doubles_are_gone_and_later_rows_stay(
    session: "SparkSession",
    project: Project,
    client: FlightClient,
    server: LiveServer,
    make: Make,
    topic: str,
) -> None:
    """The log has lost its first records, and a topic: their rows stay. Two records come while the table
    is made anew."""
    settings = TopicSettings(segment_bytes=SEGMENT_BYTES, retention_ms=0)
    server.call(lambda: server.server.engine.create_topic(topic, 1, settings))
    big = b"x" * VALUE_BYTES
    for _ in range(30):
        client.write(topic, pa_table(big))
    partition = embedded(server.server.engine).catalogue.partition(topic, 0)
    server.call(lambda: partition.trim(15))
    ((earliest, latest),) = client.offsets(topic)
    assert 0 < earliest < latest == 30
    gone = f"{topic}-gone"
    make(gone, numbers(0, 2))
    broken = [one for one in range(25) if one != 20]
    first = bronze_rows(topic, [*broken, 18]) + bronze_rows(gone, [0, 1])
    directory = project.directory
    table = write_table(directory, "bronze", BRONZE, [first, bronze_rows(topic, [25, 26])])
    (table / "_spark_metadata" / "1").rename(directory / "later")
    write_checkpoint(directory, "bronze", client, {topic: [25], gone: [2]})
    server.delete_topic(gone)
    wanted = plan(project, broker_of(project), "bronze")
    assert wanted.records == 25 - earliest and wanted.old
    write_aside(session, project, wanted, landing(topic))
    # Meanwhile a batch was landed.
    (directory / "later").rename(table / "_spark_metadata" / "1")
    write_checkpoint(directory, "bronze", client, {topic: [27]}, batch=1)
    (done,) = swap_all(project, [wanted], lambda name: None)
    assert (done.rows_before, done.rows) == (27, 29)
    every = [(topic, 0, one) for one in range(27)] + [(gone, 0, 0), (gone, 0, 1)]
    assert places(project) == sorted(every)


def test_a_table_that_was_refreshed_meanwhile(
    project: Project, client: FlightClient, make: Make, topic: str
) -> None:
    """Its new checkpoint has not come as far as what was rebuilt."""
    make(topic, numbers(0, 2))
    write_table(project.directory, "bronze", BRONZE, [bronze_rows(topic, [0])])
    flow = write_checkpoint(project.directory, "bronze", client, {topic: [2]})
    wanted = plan(project, broker_of(project), "bronze")
    (flow / "metadata").write_text('{"id":"another"}')
    with pytest.raises(TableChanged):
        swap_all(project, [wanted], lambda name: None)
    assert places(project) == [(topic, 0, 0)]


def pa_table(value: bytes) -> Any:
    import pyarrow as pa

    return pa.table({"value": pa.array([value], pa.binary())})


def test_a_flow_that_is_not_made_of_building_blocks(
    session: "SparkSession", project: Project, client: FlightClient, make: Make, topic: str
) -> None:
    from pyspark import pipelines as dp
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    make(topic, numbers(0, 2))
    write_table(project.directory, "bronze", BRONZE, [bronze_rows(topic, [0, 1])])
    write_checkpoint(project.directory, "bronze", client, {topic: [2]})
    wanted = plan(project, broker_of(project), "bronze")
    found: list[Flow] = []
    with graph_element_registration_context(flows_into(found)):

        @dp.table(name="bronze")
        def own() -> Any:
            return session.readStream.format("rate").load()

    with pytest.raises(CannotBackfill, match=r"is not made with bronze\(\) or silver\(\)"):
        write_aside(session, project, wanted, found)
    with pytest.raises(CannotBackfill, match="no flow of a Python file makes it"):
        write_aside(session, project, wanted, [])


# --- without Spark ---------------------------------------------------------------------------------


def test_silver_and_its_dead_letters_belong_together(project: Project) -> None:
    for name in ("a_silver", "a_dead_letters", "b_silver", "bronze"):
        write_table(project.directory, name, BRONZE, [[]])
    assert together(project, "A_silver") == together(project, "a_dead_letters")
    assert together(project, "a_silver") == ["a_silver", "a_dead_letters"]
    assert together(project, "b_silver") == ["b_silver"]
    assert together(project, "bronze") == ["bronze"]


Spoil = Callable[[Project, LiveServer, str], object]


def no_checkpoint(project: Project, server: LiveServer, topic: str) -> None:
    (found,) = project.checkpoints_directory.rglob("offsets/0")
    found.unlink()


def no_log(project: Project, server: LiveServer, topic: str) -> None:
    log = project.tables_directory / "bronze" / "_spark_metadata"
    log.rename(log.with_name(".gone"))


def deleted(project: Project, server: LiveServer, topic: str) -> None:
    server.delete_topic(topic)


def made_anew(project: Project, server: LiveServer, topic: str) -> None:
    deleted(project, server, topic)
    server.call(lambda: server.server.engine.create_topic(topic, 1, TopicSettings()))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_checkpoint, "it has no checkpoint of a flow that reads topics"),
        (no_log, "it is no Parquet table that a stream fills"),
        (deleted, "the log has none of its topics"),
        (made_anew, "was deleted and made anew; --full-refresh starts over with it"),
    ],
)
def test_what_cannot_be_made_anew(
    project: Project,
    client: FlightClient,
    server: LiveServer,
    make: Make,
    topic: str,
    spoil: Spoil,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(topic, numbers(0, 2))
    write_table(project.directory, "bronze", BRONZE, [bronze_rows(topic, [0, 1])])
    write_checkpoint(project.directory, "bronze", client, {topic: [2]})
    spoil(project, server, topic)
    assert cli.main(["pipeline", "backfill", str(project.directory), "bronze"]) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert said.startswith("penstock: bronze cannot be made anew") and reason in said
    assert said.count("\n") == 1


def test_newcomers(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "backfill", str(project.directory)]
    assert cli.main([*words, "bronce"]) == ExitCode.NOT_FOUND
    assert "no table named bronce; there is none yet" in capsys.readouterr().err
    assert cli.main(words) == ExitCode.USAGE


def test_one_backfill_of_a_table_at_a_time(
    project: Project, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 2))
    write_table(project.directory, "a_dead_letters", LETTERS, [letter_rows(topic, [0, 1])])
    write_checkpoint(project.directory, "a_dead_letters", client, {topic: [2]})
    connection = broker_of(project)

    def again(text: str) -> None:
        """Called when the first one has its locks, and before it starts Spark."""
        with pytest.raises(BackfillRuns, match="another backfill of a_dead_letters is running"):
            backfill(project, ["a_dead_letters"], connection, {}, print)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill(project, ["a_dead_letters"], connection, {}, again)
