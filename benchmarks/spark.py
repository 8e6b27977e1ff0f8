"""Spark: read against a control source that yields the same record batches from memory, write, and what
a micro-batch costs. local[2], 100-byte values.

The control source is a Python data source too; what it does not do is fetch. So the ratio is what the
broker, Flight and reading cost, and Spark's own work is in both rows. Broker and Spark share the machine.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.flight import Watched
from benchmarks.log import GIB, scratch
from benchmarks.spark_control import ControlSource, record_batch
from benchmarks.table import Row, Table, interleaved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.flight import FlightClient

ROOT = Path(__file__).resolve().parent.parent
KEY = "dev-key"
ROWS = 10_000_000
QUICK_ROWS = 400_000
BATCH_ROWS = 65_536
VALUE_BYTES = 100
TASKS = 4
MICRO_BATCHES = 25
# The first batches of a query compile what the others run.
WARM_BATCHES = 5
LEAST_READ = 0.7
LEAST_WRITE_ROWS = 800_000
MOST_OVERHEAD_MS = 50.0


@contextmanager
def session(directory: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ControlSource)
    try:
        yield spark
    finally:
        spark.stop()


def fill(client: "FlightClient", topic: str, rows: int) -> None:
    import pyarrow as pa

    batch = record_batch(BATCH_ROWS, VALUE_BYTES).select(["value"])
    left = rows
    while left > 0:
        client.write(topic, pa.Table.from_batches([batch.slice(0, left)]), create=True)
        left -= batch.num_rows


def rate(rows: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def consume(frame: "DataFrame") -> None:
    """Every column goes through; nothing is kept."""
    frame.write.format("noop").mode("overwrite").save()


def micro_batch_ms(frame: "DataFrame", checkpoint: Path) -> float:
    """The median of a whole trigger."""
    done: list[float] = []
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        seen: set[int] = set()
        while len(done) < MICRO_BATCHES and not query.awaitTermination(1):
            for one in query.recentProgress:
                if one.batchId not in seen and one.numInputRows:
                    seen.add(one.batchId)
                    done.append(one.durationMs["triggerExecution"])
    finally:
        query.stop()
    return statistics.median(done[WARM_BATCHES:])


def tables(quick: bool) -> Iterator[Table]:
    from penstock.client.flight import connect

    rows = QUICK_ROWS if quick else ROWS
    with scratch(GIB if quick else 8 * GIB) as path, Watched(path / "data") as running:
        address = f"127.0.0.1:{running.port('flight')}"
        with connect(address, KEY) as client, session(path) as spark:
            fill(client, "bench", rows)
            given = {"server": address, "key": KEY}
            reading = spark.read.format("penstock").options(**given, subscribe="bench")
            reading = reading.option("minPartitions", TASKS)
            control = spark.read.format("control").options(
                rows=rows, tasks=TASKS, valueBytes=VALUE_BYTES
            )

            def write() -> None:
                frame = control.load().select("value")
                out = frame.write.format("penstock").options(**given, topic="out")
                out.option("createTopics", "true").mode("append").save()

            calls: dict[str, Callable[[], float]] = {
                "control": lambda: rate(rows, lambda: consume(control.load())),
                "read": lambda: rate(rows, lambda: consume(reading.load())),
                "write": lambda: rate(rows, write),
            }
            for call in calls.values():
                call()
            found = interleaved(calls, 1 if quick else 3)
            table = Table(f"Spark, {rows:,} rows of {VALUE_BYTES} bytes, local[2], {TASKS} tasks")
            table.add("control: record batches from memory", found["control"], "rows/s")
            table.compare(
                "read a topic", found["read"], "rows/s", found["control"], LEAST_READ
            )  # fmt: skip
            table.at_least(
                "write a topic, exactly once", found["write"], "rows/s", LEAST_WRITE_ROWS
            )
            yield table
            yield micro_batches(spark, given, path)


def micro_batches(spark: "SparkSession", given: dict[str, str], path: Path) -> Table:
    control = spark.readStream.format("control").load()
    reading = spark.readStream.format("penstock").options(**given, subscribe="bench")
    reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=1)
    empty_ms = micro_batch_ms(control, path / "control")
    ours_ms = micro_batch_ms(reading.load(), path / "ours")
    table = Table("Spark, a micro-batch of one row to a noop sink")
    table.add("control: a row from memory", empty_ms, "ms")
    over_ms = ours_ms - empty_ms
    reached = over_ms <= MOST_OVERHEAD_MS
    table.add("a row of a topic", ours_ms, "ms")
    target = f"<= {MOST_OVERHEAD_MS:g}"
    table.rows.append(Row("more than the control", over_ms, "ms", None, target, reached))
    return table
