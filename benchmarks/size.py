"""The size suite: what lies still must cost nothing, and what grows must grow with a small constant.

Topics, partitions, groups, subscriptions and old segments by the thousands; start, stop, list, delete
and idle CPU at each size, and the longest callback on the event loop meanwhile. At most ten minutes.

    python -m benchmarks.size groups segments      these parts alone
"""

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from benchmarks.broker_servers import end_when_told
from benchmarks.log import GIB, engine_on, scratch
from benchmarks.size_load import (
    Http,
    Subscribers,
    commit_groups,
    create_topics,
    delete_topics,
    describe_over_rustlog,
    list_over_rustlog,
    write_one_each,
)
from benchmarks.size_segments import SEGMENT_BYTES, CountingFiles, make_segments
from benchmarks.size_server import CALLBACK_MS, SizedServer, longest_step_ms, sized_server
from benchmarks.table import Row, Table
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.partitions.ends import CLEAN_STOP_FILE
from penstock.log.storage.files import FileSystem

TOPICS_PER_S = 2_000
START_S = 10.0
# Python, its libraries and an empty server take about two of them.
STOP_S = 5.0
# An idle server has timers, a subscription or a topic that nobody uses has none. Percent of a core, x 10.
IDLE_MS_PER_S = 10.0
# A whole list, page after page, and a client that decodes it.
LIST_US = 200.0
DELETE_PER_S = 500
IDLE_S = 3.0
# Of CPU, for the control row of each table.
CONTROL_S = 2.0
# One topic in so many has a record.
WRITTEN = 10
DELETED = 500
# Subscriptions that are there to be polled.
SUBSCRIBED_TOPICS = 100
RAISED = (
    "limits.connections=2000",
    "limits.topics=1000000",
    "limits.partitions=1000000",
    "limits.groups=1000000",
    "limits.subscriptions=1000000",
)


PARTS = ("topics", "partitions", "groups", "subscriptions", "segments")


def tables(quick: bool, parts: tuple[str, ...] = PARTS) -> Iterator[Table]:
    sizes = (100, 1_000) if quick else (1_000, 10_000, 100_000)
    with scratch(4 * GIB) as path:
        for name in parts:
            began = time.perf_counter()
            data = path / name
            if name == "topics":
                yield from _topics(data, sizes)
            elif name == "partitions":
                yield _partitions(data, 500 if quick else 10_000)
            elif name == "groups":
                yield _groups(data, 1_000 if quick else 100_000)
            elif name == "subscriptions":
                yield _subscriptions(data, 500 if quick else 10_000, 2 if quick else 10)
            else:
                yield _segments(data, 50 if quick else 4_000)
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


class _Rows:
    """Rows of one table about one server."""

    def __init__(self, title: str) -> None:
        self.table = Table(title)
        self.table.add(
            "control: longest step of an empty loop", longest_step_ms(CONTROL_S), "ms CPU"
        )

    def most(self, what: str, value: float, unit: str, most: float) -> None:
        self.table.rows.append(Row(what, value, unit, None, f"<= {most:g}", value <= most))

    def loop(self, what: str, server: SizedServer) -> None:
        """The longest callback since the last reset, and resets."""
        worst = server.worst()
        longest = max(worst.callback_ms, worst.collection_ms)
        self.most(f"{what}: longest callback", longest, "ms CPU", CALLBACK_MS)
        if longest > CALLBACK_MS:
            print(f"  {what}: {worst.long} of {worst.callbacks} callbacks over {CALLBACK_MS:g} ms, the "
                  f"longest {worst.callback_ms:.1f} ms {worst.callback}, of it collection of garbage "
                  f"{worst.collecting_ms:.1f} ms, {worst.faults} new pages; longest collection in any "
                  f"thread {worst.collection_ms:.1f} ms", flush=True)  # fmt: skip
        server.reset()

    def timed(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def idle(self, server: SizedServer) -> None:
        self.most("idle", server.cpu_ms_per_s(IDLE_S), "ms CPU/s", IDLE_MS_PER_S)
        self.loop("idle", server)

    def metrics(self, server: SizedServer) -> None:
        api = Http(server.process.ports["http"])
        for page in ("/metrics", "/metrics/partitions"):
            took = self.timed(lambda page=page: api.ask("GET", page))  # type: ignore[misc]  # bound now
            self.table.add(page, took * 1000, "ms")
            self.loop(page, server)
        api.close()

    def restart(self, data: Path, server: SizedServer) -> None:
        server.stop()
        self.most("stop", server.stop_s, "s", STOP_S)
        with sized_server(data, *RAISED) as again:
            self.most("start", again.start_s, "s", START_S)
            self.table.add("resident after start", again.process.resident_bytes() / 2**20, "MiB")
            again.stop()
            self.most("stop when nothing was used", again.stop_s, "s", STOP_S)


# --- topics -----------------------------------------------------------------------------------------


def _topics(data: Path, sizes: tuple[int, ...]) -> Iterator[Table]:
    made = 0
    for size in sizes:
        rows = _Rows(f"{size:,} topics, one in {WRITTEN} with a record")
        with sized_server(data, *RAISED) as server:
            names = [f"topic-{number:06}" for number in range(made, size)]
            tcp, http = server.process.ports["tcp"], server.process.ports["http"]
            server.reset()
            took = create_topics(tcp, names)
            rows.table.at_least("create", len(names) / took, "topics/s", TOPICS_PER_S)
            rows.loop("create", server)
            written = names[::WRITTEN]
            took = write_one_each(tcp, written)
            rows.table.add("first record", len(written) / took, "topics/s")
            rows.loop("first record", server)
            made = size
            _list(rows, server, "topics", size, sum(range_end(n) for n in _parts(sizes, size)))
            took = rows.timed(lambda tcp=tcp: list_over_rustlog(tcp))  # type: ignore[misc]  # bound now
            rows.table.add("list over RustLog", took * 1000, "ms")
            rows.loop("list over RustLog", server)
            rows.metrics(server)
            rows.idle(server)
            some = [f"{'x' * 8}-{number:06}" for number in range(DELETED)]
            create_topics(tcp, some)
            write_one_each(tcp, some)
            server.reset()
            took = delete_topics(http, some)
            rows.table.at_least("delete", len(some) / took, "topics/s", DELETE_PER_S)
            rows.loop("delete", server)
            rows.restart(data, server)
        yield rows.table


def _parts(sizes: tuple[int, ...], upto: int) -> list[int]:
    """How many topics each step up to this size has made."""
    steps = [size for size in sizes if size <= upto]
    return [size - before for before, size in zip([0, *steps], steps, strict=False)]


def range_end(count: int) -> int:
    """How many of `count` topics were written to."""
    return -(-count // WRITTEN)


def _list(rows: _Rows, server: SizedServer, what: str, count: int, records: int | None) -> None:
    api = Http(server.process.ports["http"])
    began = time.perf_counter()
    found = api.list_all(what)
    took = time.perf_counter() - began
    api.close()
    if len(found) != count:
        raise AssertionError(f"{len(found)} of {count} {what} listed")
    if records is not None and sum(one["records"] for one in found) != records:
        raise AssertionError(f"the list tells of {sum(one['records'] for one in found)} records")
    rows.most(f"list of all {what}", took * 1e6 / count, "us each", LIST_US)
    rows.loop("list", server)


# --- partitions of one topic ------------------------------------------------------------------------


def _partitions(data: Path, count: int) -> Table:
    rows = _Rows(f"{count:,} partitions in one topic")
    with sized_server(data, *RAISED) as server:
        tcp, http = server.process.ports["tcp"], server.process.ports["http"]
        server.reset()
        took = create_topics(tcp, ["wide"], count)
        rows.table.add("create", took * 1000, "ms")
        rows.loop("create", server)
        api = Http(http)
        took = rows.timed(lambda: api.ask("GET", "/api/v1/topics/wide"))
        rows.table.add("describe", took * 1000, "ms")
        rows.loop("describe", server)
        took = rows.timed(lambda: describe_over_rustlog(tcp, "wide"))
        rows.table.add("describe over RustLog", took * 1000, "ms")
        rows.loop("describe over RustLog", server)
        took = rows.timed(lambda: api.list_all("topics"))
        rows.table.add("list", took * 1000, "ms")
        rows.loop("list", server)
        api.close()
        rows.metrics(server)
        rows.idle(server)
        rows.restart(data, server)
    with sized_server(data, *RAISED) as server:
        server.reset()
        took = delete_topics(server.process.ports["http"], ["wide"])
        rows.table.add("delete", took * 1000, "ms")
        rows.loop("delete", server)
    return rows.table


# --- groups -----------------------------------------------------------------------------------------


def _groups(data: Path, count: int) -> Table:
    rows = _Rows(f"{count:,} groups")
    with sized_server(data, *RAISED) as server:
        tcp = server.process.ports["tcp"]
        create_topics(tcp, ["busy", "other"])
        write_one_each(tcp, ["busy", "other"])
        server.reset()
        took = commit_groups(tcp, "busy", (f"group-{number:06}" for number in range(count)))
        rows.table.add("first commit", count / took, "groups/s")
        rows.loop("first commit", server)
        _list(rows, server, "groups", count, None)
        rows.metrics(server)
        rows.idle(server)
        took = delete_topics(server.process.ports["http"], ["other"])
        rows.table.add("delete a topic without groups", took * 1000, "ms")
        rows.loop("delete a topic without groups", server)
        rows.restart(data, server)
    with sized_server(data, *RAISED) as server:
        server.reset()
        took = delete_topics(server.process.ports["http"], ["busy"])
        rows.table.add("delete the topic of all groups", took * 1000, "ms")
        rows.loop("delete the topic of all groups", server)
    return rows.table


# --- subscriptions ----------------------------------------------------------------------------------


def _subscriptions(data: Path, count: int, seconds: int) -> Table:
    rows = _Rows(f"{count:,} subscriptions of {SUBSCRIBED_TOPICS} topics")
    with sized_server(data, *RAISED, "blipmq.orphan_time=1 h") as server:
        tcp = server.process.ports["tcp"]
        topics = [f"topic-{number:03}" for number in range(SUBSCRIBED_TOPICS)]
        create_topics(tcp, topics)
        server.reset()
        began = time.perf_counter()
        subscribers = Subscribers(tcp, topics, count)
        rows.table.add("subscribe", count / (time.perf_counter() - began), "1/s")
        rows.loop("subscribe", server)
        rows.idle(server)
        before, _ = server.process.schedule()
        began = time.perf_counter()
        subscribers.poll_all(seconds)
        took = time.perf_counter() - began
        cpu_us = (server.process.schedule()[0] - before) * 1e6 / (count * seconds)
        rows.table.add("busy: one POLL a second each", count * seconds / took, "POLL/s")
        rows.most("busy: CPU of one POLL", cpu_us, "us", 20.0)
        rows.loop("busy", server)
        subscribers.close()
        time.sleep(IDLE_S)
        rows.loop("connection lost", server)
        rows.idle(server)
        rows.restart(data, server)
    return rows.table


# --- segments ---------------------------------------------------------------------------------------


def _segments(data: Path, count: int) -> Table:
    size = count * SEGMENT_BYTES / 2**40
    rows = _Rows(f"{count:,} sealed segments, {size:.2f} TiB by length")
    with engine_on(data) as engine:
        directory = Path(engine.directory) / "topics" / "bench" / "0"
    make_segments(directory, count, int(time.time() * 1e6))
    (data / CLEAN_STOP_FILE).unlink()  # what it says is not true any more
    files = CountingFiles()
    for run in ("first start", "second start"):
        files.reset()
        began = time.perf_counter()
        engine = EmbeddedEngine(
            str(data), EngineOptions(maintenance_interval_s=3600.0), files=cast(FileSystem, files)
        )
        if engine.offsets("bench", 0)[1] < count:
            raise AssertionError("the segments are not there")
        rows.most(f"{run}", time.perf_counter() - began, "s", START_S)
        rows.most(f"{run}: read of segments", files.segment_bytes, "bytes", 0)
        for number in ("first", "idle"):
            files.reset()
            began = time.process_time()
            engine.maintain()
            took = time.process_time() - began
            rows.table.add(f"{run}: {number} round", took * 1000, "ms CPU")
            if number == "idle" or run == "second start":
                rows.most(f"{run}: {number} round: read", files.segment_bytes, "bytes", 0)
        took = rows.timed(lambda engine=engine: engine.partition_info("bench", 0))  # type: ignore[misc]
        rows.most(f"{run}: list", took * 1e6, "us", LIST_US)
        cpu_s = time.process_time()
        time.sleep(IDLE_S)
        idle = (time.process_time() - cpu_s) * 1000 / IDLE_S
        rows.most(f"{run}: idle", idle, "ms CPU/s", IDLE_MS_PER_S)
        if run == "second start":
            # The engine's own callback comes first: then the removal of the files has begun.
            answered = threading.Event()
            engine.delete_topic("bench").on_done(lambda _, told=answered: told.set())  # type: ignore[misc]
            took = rows.timed(answered.wait)
            rows.table.add("delete: the answer", took * 1000, "ms")
            took = rows.timed(engine.catalogue.wait_for_removals)
            rows.table.add("delete: the files, in a thread", took * 1000, "ms")
        rows.most(f"{run}: stop", rows.timed(engine.close), "s", STOP_S)
    return rows.table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small sizes, no numbers to quote")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    end_when_told()
    for table in tables(options.quick, tuple(options.parts) or PARTS):
        print(f"\n{table.text()}", flush=True)


if __name__ == "__main__":
    main()
