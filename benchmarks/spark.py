"""Spark: read against a control source that yields the same record batches from memory, write, how both
grow with rows and partitions, what they hold in memory, and what a micro-batch costs. local[2].

The control source is a Python data source too; what it does not do is fetch. So the ratio is what the
broker, Flight and reading cost, and Spark's own work is in both rows. Broker and Spark share the machine.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
LEAST_WRITE_ROWS = 800_000
LEAST_WIDE_MB = 400.0
MOST_OVERHEAD_MS = 50.0
# What counts as flat: no more than the same row differs between two runs on a shared machine.
FLAT = 1.2


def tables(quick: bool) -> Iterator[Table]:
    rows = 400_000 if quick else 10_000_000
    rounds = 1 if quick else 3
    with scratch((1 if quick else 24) * GIB) as path, running(path) as bench:
        yield speed(bench, rows, 1 if quick else SPEED_ROUNDS)
        yield wide(bench, 50_000 if quick else 2_000_000, rounds)
        yield by_partitions(bench, rows, rounds)
        yield micro_batches(bench)
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
            "write": lambda: rows / seconds(lambda: bench.write(control, "out")),
        },
        rounds,
    )
    table = Table(f"Spark, {rows:,} rows of {VALUE_BYTES} bytes, local[2]")
    table.add("control: record batches from memory", found["control"], "rows/s")
    table.compare("read a topic", found["read"], "rows/s", found["control"], LEAST_READ)
    table.at_least("write a topic, exactly once", found["write"], "rows/s", LEAST_WRITE_ROWS)
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
            "write": lambda: megabytes / seconds(lambda: bench.write(control, "wide-out")),
        },
        rounds,
    )
    table = Table(f"Spark, {rows:,} rows of {WIDE_BYTES} bytes")
    table.add("control: record batches from memory", found["control"], "MB/s")
    table.compare("read a topic", found["read"], "MB/s", found["control"], 0)
    table.at_least("of which values", found["read"], "MB/s", LEAST_WIDE_MB)
    table.compare("write a topic", found["write"], "MB/s", found["control"], 0)
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


def micro_batches(bench: Bench) -> Table:
    control = bench.spark.readStream.format("control").load()
    reading = bench.spark.readStream.format("penstock").options(**bench.given, subscribe="bench")
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
    return table


def micro_batch_ms(frame: "DataFrame", checkpoint: Path) -> float:
    """The median of a whole trigger."""
    done: dict[int, float] = {}
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        while len(done) < MICRO_BATCHES and not query.awaitTermination(1):
            for one in query.recentProgress:
                if one.numInputRows:
                    done[one.batchId] = one.durationMs["triggerExecution"]
    finally:
        query.stop()
    return statistics.median(list(done.values())[WARM_BATCHES:])
