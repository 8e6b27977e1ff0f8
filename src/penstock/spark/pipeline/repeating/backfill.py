"""`penstock pipeline backfill`: makes tables of a project anew from the log, in parallel, beside the
pipeline.

    1. how far the table is (its checkpoint), and where the log begins: these records are rebuilt
    2. Spark reads them in ranges, by the same function of the project that lands them, and writes files
       aside; meanwhile the pipeline lands later records as always
    3. for a moment the pipeline gives way (lock.py), and the files take the place of those before
       (swapping.py). Checkpoints stay as they are: what came since 1 is in the table already

Rows of records that the log has no more stay. Of silver the dead letters are made anew too, so that no
record is in both. What duplicates are goes by the times at which the broker stored records, as in the
stream; the stream itself does not know of an event that only new rules let in.
"""

import contextlib
import fcntl
import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.spark.connection import Connection
from penstock.spark.jvm.reasons import reason_of
from penstock.spark.pipeline.blocks.silver import DEAD_LETTER_TABLE, SILVER_TABLE
from penstock.spark.pipeline.blocks.source import Spans, as_ranges
from penstock.spark.pipeline.checking.log_offsets import topic_of
from penstock.spark.pipeline.checkpoints.downstream import who_lags
from penstock.spark.pipeline.checkpoints.reading import Landed, landed
from penstock.spark.pipeline.checkpoints.resuming import asked_for
from penstock.spark.pipeline.errors import PipelineError, UpdateFailed
from penstock.spark.pipeline.lock import tables_to_oneself
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.repeating.swapping import Rebuilt, Step, aside_of, clean_up, swap
from penstock.spark.pipeline.selection import Selection
from penstock.spark.pipeline.session import open_session
from penstock.spark.pipeline.tables.files import (
    last_batch,
    table_directory,
    table_files,
    table_names,
)
from penstock.spark.pipeline.tables.positions import (
    Layout,
    TableChanged,
    layout_of,
    read_positions,
)

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry
    from pyspark.sql import DataFrame, SparkSession

# For the running update, which may be a large one.
MAX_WAIT_S: Final = 1800.0
# For flows that read the table as a stream: an update or two bring them up to date.
READERS_WAIT_S: Final = 300.0
# A batch may be landed while files are listed: then they are looked up again.
MAX_LOOKS: Final = 5
# Before it is asked again whether a reader has caught up: an update takes longer.
LOOK_S: Final = 2.0
_PARTITION: Final = re.compile(r"([^/=]+)=")


class CannotBackfill(PipelineError):
    table: str
    reason: str

    line = "{table} cannot be made anew from the log: {reason}"


class BackfillRuns(PipelineError):
    table: str

    line = "another backfill of {table} is running; wait for it"


@dataclass(frozen=True, slots=True)
class Plan:
    """`query`: whose rows these are. `spans`: what of the log is read. `old`: files of which rows stay,
    because the log has them no more. `columns`: those by which the files are in directories."""

    table: str
    query: str
    layout: Layout
    spans: Spans
    files: Sequence[Path]
    rows: int
    old: Sequence[Path]
    columns: Sequence[str]

    @property
    def records(self) -> int:
        return sum(end - first for first, end in self.spans.values())


@dataclass(frozen=True, slots=True)
class Done:
    table: str
    rows_before: int
    rows: int
    files: int
    waited_s: float
    swap_s: float


def backfill(
    project: Project,
    tables: Sequence[str],
    connection: Connection,
    configuration: Mapping[str, str],
    say: Callable[[str], None],
    *,
    master: str | None = None,
    step: Step = lambda name: None,
) -> list[Done]:
    """Raises CannotBackfill, BackfillRuns, NoTable, NoJava, NoSpark, UpdateFailed, TableChanged,
    DoesNotGiveWay."""
    with contextlib.ExitStack() as stack:
        names = list(dict.fromkeys(name for one in tables for name in together(project, one)))
        for name in names:
            stack.enter_context(_only_one(project, name))
            if aside_of(project, name).exists():  # of one that was killed
                with tables_to_oneself(project, MAX_WAIT_S):
                    clean_up(project, name)
        plans = [plan(project, connection, name) for name in names]
        told = ", ".join(f"{one.table} of {one.records} records" for one in plans)
        say(f"making anew: {told}; Spark starts first, which takes 10 to 20 s")
        _build(project, plans, configuration, master)
        return swap_all(project, plans, step)


def together(project: Project, table: str) -> list[str]:
    """A silver table and its dead letters are one thing."""
    name = table_directory(project, table).name
    there = table_names(project)
    for ending, other in ((SILVER_TABLE, DEAD_LETTER_TABLE), (DEAD_LETTER_TABLE, SILVER_TABLE)):
        if name.endswith(ending) and name.removesuffix(ending) + other in there:
            return sorted([name, name.removesuffix(ending) + other], reverse=True)
    return [name]


def plan(project: Project, connection: Connection, table: str) -> Plan:
    """Raises CannotBackfill."""
    directory = table_directory(project, table)
    files, reached = _now(project, table, directory)
    spans = {}
    for topic, progress in reached.progress.topics.items():
        there = topic_of(connection, topic)
        if there is None:
            continue  # its rows stay
        if there.created_us != progress.created_us:
            text = f"topic {topic} was deleted and made anew; --full-refresh starts over with it"
            raise CannotBackfill(table, text)
        for partition, end in progress.partitions.items():
            earliest = there.bounds[partition][0]
            spans[topic, partition] = min(earliest, end), end
    if not spans:
        raise CannotBackfill(table, "the log has none of its topics")
    layout = layout_of(files)
    if layout is None:
        raise CannotBackfill(table, "its rows do not say which record they come from")
    found = read_positions(files, layout)
    old = [
        place
        for place, offsets in found.positions.items()
        if next(iter(offsets.arrays()))[0] < spans.get(place, (offsets.last + 1, 0))[0]
    ]
    parts = files[0].relative_to(directory).parts[:-1]
    columns = [name[1] for part in parts if (name := _PARTITION.match(part)) is not None]
    return Plan(
        table, reached.query, layout, spans, files, found.rows, files if old else (), columns
    )


def _now(project: Project, table: str, directory: Path) -> tuple[list[Path], Landed]:
    """The files of one moment, and how far the flow was when it had written them."""
    for _ in range(MAX_LOOKS):
        batch = last_batch(directory)
        if batch is None:
            text = (
                "it is no Parquet table that a stream fills; penstock pipeline run "
                f"{project.directory} --full-refresh {table} empties it and fills it anew"
            )
            raise CannotBackfill(table, text)
        files = [one.path for one in table_files(directory)]
        reached = landed(project, table, batch)
        if last_batch(directory) != batch:
            continue
        if reached is None:
            raise CannotBackfill(table, "it has no checkpoint of a flow that reads topics")
        return files, reached
    raise TableChanged(table)


@contextmanager
def _only_one(project: Project, table: str) -> Iterator[None]:
    project.own_directory.mkdir(exist_ok=True)
    with (project.own_directory / f"backfill-{table}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackfillRuns(table) from None
        yield


# --- with Spark ------------------------------------------------------------------------------------


class _Beside(Project):
    """The same project, with a log and settings of its own for a second JVM."""

    __slots__ = ()

    @property
    def own_directory(self) -> Path:
        return super().own_directory / "backfill"


def _build(
    project: Project, plans: Sequence[Plan], configuration: Mapping[str, str], master: str | None
) -> None:
    beside = _Beside(**{name: getattr(project, name) for name in Project.__dataclass_fields__})
    beside.own_directory.mkdir(parents=True, exist_ok=True)
    # The catalog of a project is for one JVM at a time, and nothing is asked of it here.
    chosen = {**configuration, "spark.sql.catalogImplementation": "in-memory"}
    log = str(beside.log_path)
    try:
        session = open_session(beside, chosen, master=master)
        try:
            flows = _flows(session.spark, project)
            for one in plans:
                write_aside(session.spark, project, one, flows)
        finally:
            session.stop()
    except PenstockError:
        raise
    except Exception as error:  # whatever Spark raises, the user is told its reason
        raise UpdateFailed(reason_of([str(error)]), log) from None


def _flows(spark: "SparkSession", project: Project) -> "list[Flow]":
    """What the files of the project define."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    found: list[Flow] = []
    spec = load_pipeline_spec(project.spec_path)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
    with asked_for(Selection(dry=True)), contextlib.redirect_stdout(io.StringIO()):
        register_definitions(project.spec_path, flows_into(found), spec, spark, graph)
    return found


def flows_into(found: "list[Flow]") -> "GraphElementRegistry":
    """A registry that only wants flows."""
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry

    class Flows(GraphElementRegistry):
        def register_output(self, output: Any) -> None:
            """Where a flow leads to, the flow says itself."""

        def register_flow(self, flow: "Flow") -> None:
            found.append(flow)

        def register_auto_cdc_flow(self, flow: Any) -> None:
            """Reads tables, not topics."""

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            """Reads tables, or is refused later, because its flow is not found."""

    return Flows()


def write_aside(
    spark: "SparkSession", project: Project, wanted: Plan, flows: "Sequence[Flow]"
) -> None:
    """Raises CannotBackfill."""
    mine = [one for one in flows if one.target.rpartition(".")[2].lower() == wanted.table]
    if len(mine) != 1:
        raise CannotBackfill(wanted.table, "no flow of a Python file makes it, or several do")
    target = aside_of(project, wanted.table) / "new"
    before = {name: spark.conf.get(name, None) for name in mine[0].spark_conf}
    for name, value in mine[0].spark_conf.items():
        spark.conf.set(name, value)
    try:
        with as_ranges(wanted.spans):
            frame = mine[0].func()
        if frame.isStreaming:
            raise CannotBackfill(wanted.table, "it is not made with bronze() or silver()")
        writer = frame.write.mode("append")
        writer.partitionBy(*wanted.columns).parquet(target.as_uri())
        if wanted.old:
            writer = _older(spark, project, wanted).write.mode("append")
            writer.partitionBy(*wanted.columns).parquet(target.as_uri())
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _older(spark: "SparkSession", project: Project, wanted: Plan) -> "DataFrame":
    """Rows of records that the log has no more."""
    from pyspark.sql import functions as F

    layout = wanted.layout
    reader = spark.read.option("basePath", (project.tables_directory / wanted.table).as_uri())
    reader = reader.option("mergeSchema", "true")
    rows = reader.parquet(*(path.as_uri() for path in wanted.old))
    known = [(*place, first) for place, (first, _) in wanted.spans.items()]
    firsts = spark.createDataFrame(known, "_t string, _p int, _first long")
    same = (rows[layout.topic] == firsts["_t"]) & (rows[layout.partition] == firsts["_p"])
    found = rows.join(F.broadcast(firsts), same, "left")
    found = found.where(F.col("_first").isNull() | (F.col(layout.offset) < F.col("_first")))
    return found.drop("_t", "_p", "_first")


# --- in their place --------------------------------------------------------------------------------


def swap_all(project: Project, plans: Sequence[Plan], step: Step) -> list[Done]:
    """Raises DoesNotGiveWay, CannotBackfill, TableChanged."""
    began_s = time.monotonic()
    while True:
        with tables_to_oneself(project, MAX_WAIT_S):
            behind = [who_lags(project, project.tables_directory / one.table) for one in plans]
            if not any(behind):
                waited_s = time.monotonic() - began_s
                return [_swap(project, one, waited_s, step) for one in plans]
        if time.monotonic() - began_s > READERS_WAIT_S:
            flow = next(one for one in behind if one)
            text = (
                f"flow {flow} has not read all of it: penstock pipeline run brings it up to date; "
                "where the project has it no more, remove its checkpoint"
            )
            raise CannotBackfill(plans[0].table, text)
        threading.Event().wait(LOOK_S)


def _swap(project: Project, wanted: Plan, waited_s: float, step: Step) -> Done:
    import pyarrow.parquet as pq

    began_s = time.monotonic()
    reached = landed(project, wanted.table, last_batch(project.tables_directory / wanted.table))
    if reached is None or reached.query != wanted.query:  # refreshed meanwhile
        raise TableChanged(wanted.table)
    ends = {place: end for place, (_, end) in wanted.spans.items()}
    swap(project, Rebuilt(wanted.table, wanted.layout, frozenset(wanted.files), ends), step)
    swap_s = time.monotonic() - began_s
    files = table_files(project.tables_directory / wanted.table)
    rows = sum(pq.read_metadata(one.path).num_rows for one in files)
    return Done(wanted.table, wanted.rows, rows, len(files), waited_s, swap_s)
