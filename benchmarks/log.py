"""The log: append, group commit, sequential read to Arrow, growth, start-up, compiled against pure.

Values have random bytes and random lengths of 50 to 150 bytes, 1,000 to a batch. The control row of the
appends is a bare loop that joins, checksums and writes the same bytes with one writev per batch. All
files lie in a directory beside the project, so on its disk; it is removed at the end.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from struct import pack

from crc32c import crc32c

from benchmarks.broker_servers import touch_memory
from benchmarks.log_callers import asyncio_callers, thread_callers
from benchmarks.log_encryption import encryption_table
from benchmarks.table import Row, Table, interleaved
from penstock import build_info
from penstock.log.batch.arrow import SCHEMA, join_views
from penstock.log.batch.format import HEADER_SIZE, encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.settings import TopicSettings
from penstock.log.storage.reader import read
from penstock.server.memory import settle_allocator

ROOT = Path(__file__).resolve().parent.parent
RECORDS = 1000
MIB = 1024 * 1024
GIB = 1024 * MIB
TOPIC = "bench"
# Appends that wait for the disk at the same time: 7 MiB, more than one group of the flusher.
WINDOW = 64
READ_BYTES = 4 * MIB
# Kept free beside what a run writes: the machine is not ours alone.
SPARE_BYTES = 2 * GIB


def make_values(batches: int) -> list[list[bytes]]:
    chance = random.Random(7)
    return [
        [chance.randbytes(chance.randint(50, 150)) for _ in range(RECORDS)] for _ in range(batches)
    ]


@contextmanager
def scratch(needed_bytes: int) -> Iterator[Path]:
    """A directory beside the project, removed afterwards. Ends the run when space is short."""
    free = shutil.disk_usage(ROOT).free
    if free < needed_bytes + SPARE_BYTES:
        sys.exit(f"benchmarks: {needed_bytes >> 20} MiB needed beside {ROOT}, {free >> 20} free")
    with tempfile.TemporaryDirectory(prefix=".penstock-bench-", dir=ROOT.parent) as path:
        yield Path(path)


@contextmanager
def engine_on(
    path: Path,
    durability: str = "none",
    cache_bytes: int = 64 * MIB,
    segment_bytes: int = 256 * MIB,
) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(str(path), EngineOptions(cache_bytes=cache_bytes))
    try:
        if engine.topic(TOPIC) is None:
            settings = TopicSettings(durability=durability, segment_bytes=segment_bytes)
            engine.create_topic(TOPIC, 1, settings)
            engine.append(TOPIC, 0, encode_values([b"first"], 0)).result()
        yield engine
    finally:
        engine.close()


def append_all(engine: EmbeddedEngine, batches: list[list[bytes]]) -> float:
    """Seconds to append them all, encoding included, with a bounded number of them waiting."""
    waiting: deque[Callable[[], int]] = deque()
    begin = time.perf_counter()
    for values in batches:
        if len(waiting) >= WINDOW:
            waiting.popleft()()
        token = engine.append(TOPIC, 0, encode_values(values, time.time_ns() // 1000))
        waiting.append(token.result)
    while waiting:
        waiting.popleft()()
    return time.perf_counter() - begin


# --- append -----------------------------------------------------------------------------------------


def bare_append(path: Path, batches: list[list[bytes]], sync_bytes: int) -> float:
    """Seconds of the control loop; with `sync_bytes` it also flushes after so many bytes."""
    columns = [pack(f"<{RECORDS + 1}i4x", *accumulate(map(len, v), initial=0)) for v in batches]
    header = bytes(HEADER_SIZE)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        unsynced = 0
        begin = time.perf_counter()
        for column, values in zip(columns, batches, strict=True):
            body = b"".join([column, *values])
            crc32c(body, crc32c(header))
            unsynced += os.writev(descriptor, [header, body])
            if sync_bytes and unsynced >= sync_bytes:
                os.fdatasync(descriptor)
                unsynced = 0
        if sync_bytes:
            os.fdatasync(descriptor)
        took = time.perf_counter() - begin
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()
    return took


def append_table(quick: bool) -> Table:
    settle_allocator()
    # We keep batches until they are written and a while longer; the control uses one buffer again and
    # again. Without this the row would tell what the first use of memory costs on a virtual machine.
    touch_memory((1 if quick else 8) * GIB)
    distinct = make_values(20)
    batches = distinct * (10 if quick else 100)
    records = len(batches) * RECORDS
    size = sum(map(len, (value for values in batches for value in values)))
    with scratch(3 * size) as directory:

        def control(sync_bytes: int) -> Callable[[], float]:
            return lambda: records / bare_append(directory / "control", batches, sync_bytes)

        def ours(durability: str) -> Callable[[], float]:
            def run() -> float:
                path = directory / durability
                with engine_on(path, durability) as engine:
                    took = append_all(engine, batches)
                shutil.rmtree(path)
                return records / took

            return run

        found = interleaved(
            {
                "control": control(0),
                "none": ours("none"),
                "ack": ours("ack"),
                "synced": control(4 * MIB),
            },
            3 if quick else 7,
        )
    table = Table(f"Append, batches of {RECORDS}, values of 50 to 150 bytes")
    bare, unit = found["control"] / 1e6, "M records/s"
    table.add("control: join, checksum, writev", bare, unit)
    table.compare("durability none", found["none"] / 1e6, unit, bare, 0.6)
    table.compare("durability ack, appends kept coming", found["ack"] / 1e6, unit, bare, 0.5)
    table.compare("control with fdatasync per 4 MiB", found["synced"] / 1e6, unit, bare, 0)
    table.add("bytes written per row", size / MIB, "MiB")
    return table


# --- callers that wait --------------------------------------------------------------------------------


def bare_syncs(path: Path, count: int) -> float:
    """How many times per second one record can be written and flushed."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        begin = time.perf_counter()
        for _ in range(count):
            os.writev(descriptor, [bytes(HEADER_SIZE), bytes(112)])
            os.fdatasync(descriptor)
        return count / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def callers_table(quick: bool) -> Table:
    each = 50 if quick else 500
    table = Table("Batches of one record, 64 callers, each waits for its token")
    with scratch(GIB) as directory:
        control = bare_syncs(directory / "control", each)
        table.add("control: write and fdatasync, one caller", control, "records/s")
        for name, run in (("threads", thread_callers), ("asyncio tasks", asyncio_callers)):
            found = run(directory / name, each)
            speed = found.records / found.seconds
            table.compare(f"64 {name}", speed, "records/s", control, 0)
            table.at_least(
                f"64 {name}, per fdatasync", found.records / found.flushes, "records", 30
            )
    return table


# --- read ---------------------------------------------------------------------------------------------


def read_to_arrow(engine: EmbeddedEngine, from_offset: int) -> tuple[int, int, float]:
    """Records, bytes and seconds of one pass from an offset to the end."""
    partition = engine.catalogue.partition(TOPIC, 0)
    end = partition.visible_offset
    offset, records, size = from_offset, 0, 0
    begin = time.perf_counter()
    while offset < end:
        result = read(partition, offset, READ_BYTES)
        for view in result.views:
            batch = join_views([view], TOPIC, 0, SCHEMA)
            records += batch.num_rows
            size += view.header.length
        offset = result.next_offset
    return records, size, time.perf_counter() - begin


def bare_read(directory: Path) -> tuple[int, float]:
    """Bytes and seconds of a pass that reads and checksums the same files."""
    size = 0
    begin = time.perf_counter()
    for path in sorted(directory.rglob("*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        position = 0
        while part := os.pread(descriptor, READ_BYTES, position):
            crc32c(part)
            position += len(part)
        size += position
        os.close(descriptor)
    return size, time.perf_counter() - begin


def read_table(quick: bool) -> Table:
    batches = make_values(20) * (10 if quick else 50)
    table = Table("Sequential read to Arrow from the page cache")
    with scratch(GIB) as directory, engine_on(directory / "log", cache_bytes=0) as engine:
        append_all(engine, batches)

        def control() -> float:
            size, took = bare_read(directory / "log")
            return size / took / 1e9

        def ours() -> float:
            _, size, took = read_to_arrow(engine, 0)
            return size / took / 1e9

        found = interleaved({"control": control, "read": ours}, 3 if quick else 7)
        records, size, _ = read_to_arrow(engine, 0)
        per_record = size / records
    table.add("control: pread and checksum", found["control"], "GB/s")
    table.compare("read to Arrow", found["read"], "GB/s", found["control"], 0)
    speed = found["read"] * 1e9 / per_record / 1e6
    reached = speed >= 10 or found["read"] >= 1
    target = ">= 10, or 1 GB/s"
    table.rows.append(Row("read to Arrow", speed, "M records/s", None, target, reached))
    return table


# --- growth -------------------------------------------------------------------------------------------


def growth_table(quick: bool) -> Table:
    sizes = (64 * MIB, 256 * MIB) if quick else (GIB, 10 * GIB)
    segment_bytes = 16 * MIB if quick else 256 * MIB
    probe = make_values(20) * (4 if quick else 30)
    filler = make_values(20)
    costs: list[dict[str, float]] = []
    with scratch(sizes[-1] + GIB) as directory:
        path = directory / "log"
        for size in sizes:
            with engine_on(path, cache_bytes=0, segment_bytes=segment_bytes) as engine:
                partition = engine.catalogue.partition(TOPIC, 0)
                while partition.size_bytes() < size:
                    append_all(engine, filler)
                # Else the rows would tell how fast the disk takes the gigabytes before them.
                os.sync()
                before = partition.next_offset
                appended = append_all(engine, probe)
                records, _, took = read_to_arrow(engine, before)
            costs.append({"append": appended / records * 1e9, "read": took / records * 1e9})
            costs[-1].update(start_costs(path))
    table = Table("Cost by the size of the log, durability none")
    small, large = (f"{size / GIB:g} GiB" for size in sizes)
    for name, unit in (("append", "ns/record"), ("read", "ns/record"), ("start", "ms")):
        # Flat means that a factor of ten in size stays within the noise of the machine.
        table.add(f"control: {name} at {small}", costs[0][name], unit)
        most = 1.5 if name == "start" else 1.25
        table.at_most(f"{name} at {large}", costs[1][name], unit, costs[0][name], most)
    for shown, cost in zip((small, large), costs, strict=True):
        table.add(f"listing of the files at {shown}", cost["listing"], "ms")
    return table


def start_costs(path: Path) -> dict[str, float]:
    def listing() -> float:
        begin = time.perf_counter()
        for file in path.rglob("*"):
            file.stat()
        return (time.perf_counter() - begin) * 1e3

    def start() -> float:
        begin = time.perf_counter()
        engine = EmbeddedEngine(str(path), EngineOptions(cache_bytes=0))
        took = time.perf_counter() - begin
        engine.close()
        return took * 1e3

    return interleaved({"listing": listing, "start": start}, 5)


# --- compiled against pure ------------------------------------------------------------------------------


def hot_rates(quick: bool) -> dict[str, float]:
    """What depends on the hot modules, in this process, in M records/s."""
    batches = make_values(20) * (5 if quick else 50)
    records = len(batches) * RECORDS
    begin = time.perf_counter()
    for values in batches:
        encode_values(values, 0)
    encode = time.perf_counter() - begin
    with scratch(GIB) as directory, engine_on(directory / "log", cache_bytes=0) as engine:
        append = append_all(engine, batches)
        read_records, _, read_took = read_to_arrow(engine, 0)
    return {
        "encode a batch": records / encode / 1e6,
        "append, durability none": records / append / 1e6,
        "read to Arrow": read_records / read_took / 1e6,
    }


def child_rates(quick: bool, pure: str) -> dict[str, float]:
    code = (
        f"import json; from benchmarks.log import hot_rates; print(json.dumps(hot_rates({quick})))"
    )
    environment = {**os.environ, "PENSTOCK_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def build_table(quick: bool) -> Table:
    table = Table(f"Compiled against pure (this build is {build_info().kind})")
    pure, compiled = child_rates(quick, "1"), child_rates(quick, "0")
    for name, speed in pure.items():
        table.add(f"control: {name}, pure", speed, "M records/s")
        table.compare(f"{name}, {build_info().kind}", compiled[name], "M records/s", speed, 0)
    return table


def encrypted_table(quick: bool) -> Table:
    with scratch(4 * GIB) as directory:
        return encryption_table(quick, directory, read_to_arrow)


def tables(quick: bool) -> Iterator[Table]:
    for make in (
        append_table,
        callers_table,
        read_table,
        encrypted_table,
        growth_table,
        build_table,
    ):
        yield make(quick)
