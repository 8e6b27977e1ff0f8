"""Arrow Flight: get and put alone, and what a scan at full speed does to the event loop.

Values of 100 random bytes, 65,536 rows to a record batch, one stream. Server, Flight process and client
are three processes; the server's is this one, so that its event loop can be watched from inside. The
control row is a bare Flight server that gives and takes the same columns from memory.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.log import GIB, scratch
from benchmarks.table import Row, Table, interleaved
from penstock.server.config.loading import load_config
from penstock.server.config.schema import AllListenersConfig
from penstock.server.server import Server

TOPIC = "bench"
LOAD_TOPIC = "load"
# The lag of the loop is sampled this often; a scan of some seconds gives thousands of samples.
PROBE_INTERVAL_S = 0.002
MOST_LAG_MS = 5.0
LEAST_SPEED = 0.7
WAIT_S = 600.0

Call = Callable[[], float]


class Watched:
    """The server on an event loop of a thread of its own, with a timer that measures its lateness."""

    def __init__(self, data: Path) -> None:
        names: tuple[str, ...] = AllListenersConfig.__struct_fields__
        settings = {
            "server.data_directory": str(data),
            **dict.fromkeys((f"listeners.{name}" for name in names), "off"),
            "listeners.tcp": "127.0.0.1:0",
            "listeners.flight": "127.0.0.1:0",
            "rustlog.topics": f"{LOAD_TOPIC},{TOPIC}",
        }
        self.server = Server(load_config(None, {}, settings), environment={})
        self.lags: list[float] = []
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Watched":
        self._thread.start()
        self._run(self.server.start())
        self._loop.call_soon_threadsafe(self._probe)
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def _probe(self) -> None:
        due = time.perf_counter() + PROBE_INTERVAL_S

        def measure() -> None:
            self.lags.append(max(time.perf_counter() - due, 0.0))
            self._probe()

        self._loop.call_later(PROBE_INTERVAL_S, measure)

    def port(self, name: str) -> str:
        return str(self.server.listeners[name].address.port)

    def p99_ms(self, work: Callable[[], object]) -> float:
        """The lag that 99 of 100 samples stayed below while `work` ran."""
        self.lags = []
        work()
        found = sorted(self.lags)
        return 1000 * found[len(found) * 99 // 100]


def _new_loop() -> asyncio.AbstractEventLoop:
    """As `penstock serve` has it."""
    try:
        from uvloop import Loop
    except ImportError:
        return asyncio.new_event_loop()
    return Loop()


def peer(*arguments: str) -> dict[str, float]:
    """Runs one of flight_peers.py to its end; gives what it measured."""
    command = [sys.executable, "-m", "benchmarks.flight_peers", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


@contextmanager
def running(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, float]]]:
    """A peer that goes on until the end of the block; its numbers are there after it."""
    command = [sys.executable, "-m", "benchmarks.flight_peers", *arguments]
    numbers: dict[str, float] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, numbers
        finally:
            said, _ = process.communicate(timeout=WAIT_S)
        numbers.update(json.loads(said) if said.strip() else {})


def tables(quick: bool) -> Iterator[Table]:
    batches = 8 if quick else 40
    rounds = 1 if quick else 3
    with (
        scratch(4 * GIB) as directory,
        Watched(directory / "data") as watched,
        running("control") as (control, _),
    ):
        assert control.stdout is not None
        control_port = control.stdout.readline().strip()
        port = watched.port("flight")
        peer("put", port, TOPIC, str(batches))
        calls: dict[str, Call] = {
            "control get": lambda: peer("get", control_port, TOPIC, "2")["rows_s"],
            "get": lambda: peer("get", port, TOPIC, "2")["rows_s"],
            "control put": lambda: peer("put", control_port, TOPIC, str(batches))["rows_s"],
            "put": lambda: peer("put", port, "put", str(batches))["rows_s"],
        }
        found = interleaved(calls, rounds)
        table = Table("Flight alone, 100-byte values")
        table.add("control: get from memory", found["control get"], "rows/s")
        table.compare("get", found["get"], "rows/s", found["control get"], 0)
        table.add("control: put into nothing", found["control put"], "rows/s")
        table.compare("put, durable", found["put"], "rows/s", found["control put"], 0)
        yield table
        yield beside_others(watched, port, quick, found["get"])


def beside_others(watched: Watched, port: str, quick: bool, alone: float) -> Table:
    """A scan at full speed while a service produces over the loop."""
    scan_rounds = "2" if quick else "12"
    scan: dict[str, float] = {}
    arguments = ("load", watched.port("tcp"), LOAD_TOPIC)
    with running(*arguments) as (_, calm):
        idle_ms = watched.p99_ms(lambda: time.sleep(1.0 if quick else 5.0))
    with running(*arguments) as (_, busy):
        busy_ms = watched.p99_ms(lambda: scan.update(peer("get", port, TOPIC, scan_rounds)))
    table = Table("A Flight scan beside 10,000 RustLog records/s")
    table.add("event loop lag p99 without a scan", idle_ms, "ms")
    table.rows.append(
        Row("event loop lag p99 with a scan", busy_ms, "ms", None, "<= 5", busy_ms <= MOST_LAG_MS)
    )
    table.add("produce p99 without a scan", calm["p99_ms"], "ms")
    table.add("produce p99 with a scan", busy["p99_ms"], "ms")
    table.compare("scan", scan["rows_s"], "rows/s", alone, LEAST_SPEED)
    return table
