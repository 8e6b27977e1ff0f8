"""Spark: read against a control source that yields the same record batches from memory, write, how both
grow with rows and partitions, what they hold in memory, and what a micro-batch costs. local[2].

The control source is a Python data source too; what it does not do is fetch. So the ratio is what the
broker, Flight and reading cost, and Spark's own work is in both rows. Broker and Spark share the machine.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import spark_kafka, spark_typed
from benchmarks.broker_servers import touch_memory
from benchmarks.log import GIB, scratch
from benchmarks.spark_bench import Bench, Memory, consume, running, seconds
from benchmarks.table import Row, Table, interleaved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUE_BYTES = 100
WIDE_BYTES = 1024
TASKS = 4
# Control and read differ by a tenth from one round to the next, and their ratio is what is judged.
SPEED_ROUNDS = 5
PARTITIONS = (1, 4, 16, 64)
MICRO_BATCHES = 25
# The first batches of a query compile what the others run.
WARM_BATCHES = 5
LEAST_READ = 0.7
# Of the writer that drops its batches, in the same run.
LEAST_WRITE = 0.6
LEAST_WRITE_ROWS = 1_500_000
LEAST_WIDE_MB = 400.0
LEAST_WIDE_WRITE_MB = 300.0
MOST_OVERHEAD_MS = 50.0
# What counts as flat: no more than the same row differs between two runs on a shared machine.
FLAT = 1.2
PARTS = ("speed", "partitions", "typed", "batches", "rows", "kafka")


def tables(quick: bool, wanted: Sequence[str] = PARTS) -> Iterator[Table]:
    rows = 400_000 if quick else 10_000_000
    rounds = 1 if quick else 3
    ours = [part for part in PARTS if part in wanted and part != "kafka"]
    with scratch((1 if quick else 24) * GIB) as path:
        if ours:
            with running(path) as bench:
                # Else the first rows that write pay for the memory of the page cache, and the control does
                # not.
                touch_memory((1 if quick else 10) * GIB)
                yield from _of_ours(bench, ours, rows, rounds, quick)
        if "kafka" in wanted:
            yield spark_kafka.table(path, 200_000 if quick else 5_000_000, 1 if quick else 4)


def _of_ours(
    bench: Bench, wanted: Sequence[str], rows: int, rounds: int, quick: bool
) -> Iterator[Table]:
    if "speed" in wanted:
        yield speed(bench, rows, 1 if quick else SPEED_ROUNDS)
        yield wide(bench, 50_000 if quick else 2_000_000, rounds)
    if "typed" in wanted:
        yield spark_typed.table(bench, 50_000 if quick else 2_000_000, rounds)
    if "partitions" in wanted:
        yield by_partitions(bench, rows, rounds)
    if "batches" in wanted:
        yield micro_batches(bench, 25 * MICRO_BATCHES)
    if "rows" in wanted:
        yield from by_rows(bench, rows // 10, rows * 5)


def speed(bench: Bench, rows: int, rounds: int) -> Table:
    bench.topic("bench", rows, VALUE_BYTES)
    # As many tasks in both: each costs Spark the same.
    control = bench.control(rows, VALUE_BYTES, TASKS)
    reading = bench.reading("bench", minPartitions=TASKS)
    found = interleaved(
        {
            "warm": lambda: seconds(lambda: consume(reading)),
            "control": lambda: rows / seconds(lambda: consume(control)),
            "read": lambda: rows / seconds(lambda: consume(reading)),
            "drop": lambda: rows / seconds(lambda: bench.drop(control)),
            "write": lambda: rows / seconds(lambda: bench.write(control, "out")),
        },
        rounds,
    )
    table = Table(f"Spark, {rows:,} rows of {VALUE_BYTES} bytes, local[2]")
    table.add("control: record batches from memory", found["control"], "rows/s")
    table.compare("read a topic", found["read"], "rows/s", found["control"], LEAST_READ)
    table.add("control: a writer that drops its batches", found["drop"], "rows/s")
    table.compare(
        "write a topic, exactly once", found["write"], "rows/s", found["drop"], LEAST_WRITE
    )
    table.at_least("of which rows", found["write"], "rows/s", LEAST_WRITE_ROWS)
    return table


def wide(bench: Bench, rows: int, rounds: int) -> Table:
    bench.topic("wide", rows, WIDE_BYTES)
    megabytes = rows * WIDE_BYTES / 1e6
    control = bench.control(rows, WIDE_BYTES, TASKS)
    reading = bench.reading("wide", minPartitions=TASKS)
    found = interleaved(
        {
            "control": lambda: megabytes / seconds(lambda: consume(control)),
            "read": lambda: megabytes / seconds(lambda: consume(reading)),
            "drop": lambda: megabytes / seconds(lambda: bench.drop(control)),
            "write": lambda: megabytes / seconds(lambda: bench.write(control, "wide-out")),
        },
        rounds,
    )
    table = Table(f"Spark, {rows:,} rows of {WIDE_BYTES} bytes")
    table.add("control: record batches from memory", found["control"], "MB/s")
    table.compare("read a topic", found["read"], "MB/s", found["control"], 0)
    table.at_least("of which values", found["read"], "MB/s", LEAST_WIDE_MB)
    table.add("control: a writer that drops its batches", found["drop"], "MB/s")
    table.compare("write a topic, exactly once", found["write"], "MB/s", found["drop"], LEAST_WRITE)
    table.at_least("of which values", found["write"], "MB/s", LEAST_WIDE_WRITE_MB)
    return table


def by_partitions(bench: Bench, rows: int, rounds: int) -> Table:
    """As many rows in more partitions. The control has as many tasks as the reading makes of them."""
    calls: dict[str, Callable[[], float]] = {}
    tasks: dict[int, int] = {}
    for count in PARTITIONS:
        bench.topic(f"split-{count}", rows, VALUE_BYTES, count)
        frame = bench.reading(f"split-{count}")
        tasks[count] = frame.rdd.getNumPartitions()
        control = bench.control(rows, VALUE_BYTES, tasks[count])
        calls[f"control {count}"] = lambda frame=control: seconds(lambda: consume(frame))  # type: ignore[misc]  # bound now
        calls[f"read {count}"] = lambda frame=frame: seconds(lambda: consume(frame))  # type: ignore[misc]  # bound now
    found = {name: took_s / rows * 1e9 for name, took_s in interleaved(calls, rounds).items()}
    table = Table(f"Spark, cost of a row by partitions, {rows:,} rows")
    for count in PARTITIONS:
        table.add(f"control, {tasks[count]} tasks", found[f"control {count}"], "ns")
        table.compare(f"read {count} partitions", found[f"read {count}"], "ns", found["read 1"], 0)
    most = max(found[f"read {count}"] for count in PARTITIONS)
    table.at_most("dearest against one partition", most, "ns", found["read 1"], FLAT)
    return table


def by_rows(bench: Bench, few: int, many: int) -> Iterator[Table]:
    """One run each, the small one after a warm one of its kind; the JVM is at its full size by then."""
    names = {count: f"{count / 1e6:g} M rows" for count in (few, many)}
    cost = Table(f"Spark, cost of a row, {names[few]} and {names[many]}")
    memory = Table(f"Spark, memory of its processes, {names[few]} and {names[many]}")
    found: dict[tuple[str, int], tuple[float, Memory]] = {}
    for count in (few, many):
        bench.topic(f"rows-{count}", count, VALUE_BYTES)
    for count in (few, few, many):
        frame = bench.control(count, VALUE_BYTES, max(TASKS, count // 1_000_000))
        works: dict[str, Callable[[], None]] = {
            "read": lambda count=count: consume(bench.reading(f"rows-{count}")),  # type: ignore[misc]  # bound now
            "write": lambda frame=frame: bench.write(frame, "rows-out"),  # type: ignore[misc]  # bound now
        }
        for name, work in works.items():
            with Memory(bench.spark) as used:
                found[name, count] = (seconds(work) / count * 1e9, used)
    for name in ("read", "write"):
        (few_ns, small), (many_ns, large) = found[name, few], found[name, many]
        cost.add(f"{name} {names[few]}", few_ns, "ns")
        cost.at_most(f"{name} {names[many]}", many_ns, "ns", few_ns, FLAT)
        for whose, before, after in (
            ("Python workers", small.worker_bytes, large.worker_bytes),
            ("JVM", small.jvm_bytes, large.jvm_bytes),
        ):
            memory.add(f"{whose}, {name} {names[few]}", before / 2**20, "MiB")
            mebibytes = after / 2**20
            memory.at_most(f"{whose}, {name} {names[many]}", mebibytes, "MiB", before / 2**20, FLAT)
    yield cost
    yield memory


def micro_batches(bench: Bench, rows: int) -> Table:
    """`rows`: as many as the batches of both measurements take, and more."""
    bench.topic("batches", rows, VALUE_BYTES)
    control = bench.spark.readStream.format("control").load()
    reading = bench.spark.readStream.format("penstock").options(**bench.given, subscribe="batches")
    reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=1)
    empty_ms = micro_batch_ms(control, bench.directory / "control")
    ours_ms = micro_batch_ms(reading.load(), bench.directory / "ours")
    table = Table("Spark, a micro-batch of one row to a noop sink")
    table.add("control: a row from memory", empty_ms, "ms")
    over_ms = ours_ms - empty_ms
    reached = over_ms <= MOST_OVERHEAD_MS
    table.add("a row of a topic", ours_ms, "ms")
    target = f"<= {MOST_OVERHEAD_MS:g}"
    table.rows.append(Row("more than the control", over_ms, "ms", None, target, reached))
    two = [
        bench.directory / f"{name}-{number}" for name in ("control", "ours") for number in (1, 2)
    ]
    side_by_side = micro_batch_ms(control, *two[:2])
    table.add("two queries side by side, control", side_by_side, "ms")
    ours_ms = micro_batch_ms(reading.load(), *two[2:])
    table.compare("two queries side by side", ours_ms, "ms", side_by_side, 0)
    return table


def micro_batch_ms(frame: "DataFrame", *checkpoints: Path) -> float:
    """The median of a whole trigger; of several queries at the same time with several checkpoints."""
    done: dict[tuple[int, int], float] = {}
    writers = [frame.writeStream.format("noop") for _ in checkpoints]
    queries = [
        writer.option("checkpointLocation", str(place)).start()
        for writer, place in zip(writers, checkpoints, strict=True)
    ]
    try:
        while len(done) < MICRO_BATCHES * len(queries) and not queries[0].awaitTermination(1):
            for number, query in enumerate(queries):
                for one in query.recentProgress:
                    if one.numInputRows:
                        done[number, one.batchId] = one.durationMs["triggerExecution"]
    finally:
        for query in queries:
            query.stop()
    return statistics.median(took for (_, batch), took in done.items() if batch >= WARM_BATCHES)
