"""Pipelines: landing topics in Parquet against Spark writing the same batches from memory, how landing
grows with rows and what it holds in memory, and how long a message takes to its row in silver. local[2].

The control source is a Python data source that yields record batches of the same shape and fetches
nothing; it runs in the same session, and writes the same columns with the same codec. Broker and Spark
share the machine.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pipeline_latency
from benchmarks.broker_servers import Process, penstock
from benchmarks.log import GIB, scratch
from benchmarks.spark_bench import KEY, ROOT, Bench, Memory, seconds
from benchmarks.spark_control import ControlSource
from benchmarks.table import Table, median

if TYPE_CHECKING:
    from penstock.spark.pipeline.project import Project
    from penstock.spark.pipeline.session import PipelineSession

VALUE_BYTES = 100
PARTITIONS = 4
LEAST_LANDED = 0.8
# As in the other suites: no more than the same row differs between two runs on a shared machine.
FLAT = 1.2
# As large as that of the other suites of Spark, so that its memory says something.
DRIVER_MEMORY = "1g"
EMPTY_UPDATES = 5


PARTS = ("landing", "rows", "latency")


def tables(quick: bool, wanted: Sequence[str] = PARTS) -> Iterator[Table]:
    rows = 200_000 if quick else 5_000_000
    with scratch((1 if quick else 30) * GIB) as path:
        if "landing" in wanted or "rows" in wanted:
            with landing(path / "landing") as place:
                yield speed(place, rows, 1 if quick else 3)
                if "rows" in wanted:
                    yield from by_rows(place, rows, rows * 10)
        if "latency" in wanted:
            yield pipeline_latency.table(path / "latency", quick)


@dataclass(frozen=True, slots=True)
class Landing:
    """A broker, a project that lands its topics, and the session that runs it."""

    bench: Bench
    server: Process
    project: "Project"
    session: "PipelineSession"

    def update_s(self) -> float:
        from penstock.spark.pipeline.running.updates import run_update

        return seconds(lambda: run_update(self.session.spark, self.project))

    def control_s(self, rows: int) -> float:
        from pyspark.sql import functions as F

        frame = self.bench.control(rows, VALUE_BYTES, PARTITIONS).select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            F.expr("CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)").alias("headers"),
            F.lit("flight").alias("protocol"),
            F.to_date("timestamp").alias("day"),
        )
        out = frame.write.mode("overwrite").partitionBy("day")
        return seconds(lambda: out.parquet(str(self.bench.directory / "control")))

    def landed(self) -> int:
        from penstock.spark.pipeline.tables.files import facts, table_directory

        return facts("bronze", table_directory(self.project, "bronze")).rows


@contextmanager
def landing(directory: Path) -> Iterator[Landing]:
    from penstock.client.flight import connect
    from penstock.spark.pipeline.project import load_project
    from penstock.spark.pipeline.running.run import Settings, configuration
    from penstock.spark.pipeline.session import open_session
    from penstock.spark.pipeline.starter import write_project

    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PENSTOCK_KEY"] = KEY
    place = directory / "project"
    write_project(place, only_bronze=True)
    (place / "transformations" / "traffic.sql").unlink(missing_ok=True)
    project = load_project(place)
    with penstock(directory / "data", flight="127.0.0.1:0") as server:
        address = f"127.0.0.1:{server.ports['flight']}"
        chosen = configuration(project, Settings(server=address, key_variable="PENSTOCK_KEY"))
        ours = {"spark.driver.memory": DRIVER_MEMORY, "spark.local.dir": str(directory / "local")}
        session = open_session(project, {**chosen, **ours}, master="local[2]")
        try:
            session.spark.dataSource.register(ControlSource)
            given = {"server": address, "accessKey": KEY}
            with connect(address, KEY) as client:
                bench = Bench(session.spark, client, server.ports["http"], given, directory)
                yield Landing(bench, server, project, session)
        finally:
            session.stop()


def speed(place: Landing, rows: int, rounds: int) -> Table:
    """Each round has a topic of its own: a flow reads what is new."""
    bench = place.bench
    bench.topic("warm", rows // 10, VALUE_BYTES, PARTITIONS)
    place.update_s()
    place.control_s(rows // 10)
    done = place.landed()
    control: list[float] = []
    landed: list[float] = []
    for number in range(rounds):
        bench.topic(f"round-{number}", rows, VALUE_BYTES, PARTITIONS)
        control.append(rows / place.control_s(rows))
        landed.append(rows / place.update_s())
        now = place.landed()
        assert now - done == rows, f"{now - done} rows of {rows}"
        done = now
    empty_s = median([place.update_s() for _ in range(EMPTY_UPDATES)])
    table = Table(f"Pipeline, {rows:,} rows of {VALUE_BYTES} bytes to Parquet, local[2]")
    table.add("control: record batches from memory to Parquet", median(control), "rows/s")
    found = median(landed)
    table.compare("one update of bronze", found, "rows/s", median(control), LEAST_LANDED)
    table.add("an update that finds nothing", empty_s * 1e3, "ms")
    without = rows / (rows / found - empty_s)
    table.compare("one update of bronze, without that time", without, "rows/s", median(control), 0)
    return table


def by_rows(place: Landing, few: int, many: int) -> Iterator[Table]:
    names = {count: f"{count / 1e6:g} M rows" for count in (few, many)}
    cost = Table(f"Pipeline, cost of a row landed, {names[few]} and {names[many]}")
    memory = Table(f"Pipeline, memory while landing, {names[few]} and {names[many]}")
    found: dict[int, tuple[float, Memory, int]] = {}
    driver: Any = place.session._driver
    for count in (few, many):
        place.bench.topic(f"many-{count}", count, VALUE_BYTES, PARTITIONS)
        with Memory(driver) as used:
            took_s = place.update_s()
        found[count] = (took_s / count * 1e9, used, place.server.resident_bytes())
    (few_ns, small, before), (many_ns, large, after) = found[few], found[many]
    cost.add(f"landed {names[few]}", few_ns, "ns")
    cost.at_most(f"landed {names[many]}", many_ns, "ns", few_ns, FLAT)
    for whose, least, most in (
        ("broker", before, after),
        ("Python workers", small.worker_bytes, large.worker_bytes),
        # How many there are at once goes by how quickly the machine ends them; how large one is does not.
        ("the largest of them", small.largest_worker_bytes, large.largest_worker_bytes),
        ("JVM", small.jvm_bytes, large.jvm_bytes),
    ):
        memory.add(f"{whose}, {names[few]}", least / 2**20, "MiB")
        memory.at_most(f"{whose}, {names[many]}", most / 2**20, "MiB", least / 2**20, FLAT)
    yield cost
    yield memory
