"""How long a message takes from its publisher to its row in silver, with `penstock pipeline run
--continuous` beside the broker.

Messages come at a steady rate and carry the time at which they were sent. A row is visible when the log of
the table names its file: a thread looks for new ones. The floor is a message that comes alone, in the same
run: the wait for the next trigger, and a batch that has next to nothing to do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.broker_servers import penstock
from benchmarks.spark_bench import KEY, ROOT
from benchmarks.table import Row, Table, median

RATE_PER_S: Final = 10_000
# Messages leave in so many writes a second.
WRITES_PER_S: Final = 50
# Messages that come alone, before and after the load; their median is the floor.
LONE_MESSAGES: Final = 10
# With flows as streams, a trigger of one second and two cores.
MOST_P99_MS: Final = 5_000.0
# Batches of the first seconds still compile what the others run.
WARM_S: Final = 15
LOOK_S: Final = 0.02
LONGEST_S: Final = 300.0

SILVER: Final = """\
from penstock.spark.pipeline import silver

silver("ticks", schema="tick", key="number", event_time="sent", watermark="1 hour")
"""
SCHEMA: Final = {
    "type": "object",
    "required": ["number", "sent"],
    "properties": {
        "number": {"type": "integer"},
        "sent_us": {"type": "integer"},
        "sent": {"type": "string", "format": "date-time"},
        "text": {"type": "string"},
    },
}


def table(directory: Path, quick: bool) -> Table:
    load_s = 5 if quick else 60
    lone = 1 if quick else LONE_MESSAGES
    with penstock(directory / "data", flight="127.0.0.1:0") as server:
        _prepare(server.ports["http"])
        project = _project(directory / "project")
        flight = f"127.0.0.1:{server.ports['flight']}"
        with (
            _running(project, flight),
            Watcher(project) as watcher,
            Sender(server.ports["tcp"]) as sender,
        ):
            sender.send(1)
            watcher.wait_for(sender.sent)
            sender.steadily(1 if quick else WARM_S)
            watcher.wait_for(sender.sent)
            floors = [_lone_ms(sender, watcher) for _ in range(lone)]
            first = sender.sent
            sender.steadily(load_s)
            watcher.wait_for(sender.sent)
            floors += [_lone_ms(sender, watcher) for _ in range(lone)]
            taken_ms = watcher.latencies_ms(first, first + load_s * RATE_PER_S)
    floor_ms = median(floors)
    p50, p99 = np.percentile(taken_ms, [50, 99])
    shown = Table(f"Pipeline, publish to row in silver, {RATE_PER_S:,} messages/s for {load_s} s")
    shown.add("floor: a message that comes alone", floor_ms, "ms")
    shown.compare("p50", float(p50), "ms", floor_ms, 0)
    target = f"<= {MOST_P99_MS:g}"
    shown.rows.append(
        Row("p99", float(p99), "ms", float(p99) / floor_ms, target, p99 <= MOST_P99_MS)
    )
    return shown


def _prepare(http_port: int) -> None:
    import urllib.request

    calls: dict[str, dict[str, Any]] = {
        "schemas": {"name": "tick", "type": "json", "definition": json.dumps(SCHEMA)},
        "topics": {"name": "ticks", "partitions": 1},
    }
    for path, body in calls.items():
        request = urllib.request.Request(
            f"http://127.0.0.1:{http_port}/api/v1/{path}",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request):
            continue


def _project(directory: Path) -> Path:
    from penstock.spark.pipeline.starter import write_project

    write_project(directory, only_bronze=True)
    (directory / "transformations" / "traffic.sql").unlink(missing_ok=True)
    (directory / "transformations" / "ticks.py").write_text(SILVER)
    return directory


@contextmanager
def _running(project: Path, flight: str) -> Iterator[None]:
    words = ["pipeline", "run", str(project), "--continuous", "--json", "--flight", flight]
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *words, "--master", "local[2]"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PENSTOCK_KEY": KEY},
    )
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


class Sender:
    """Messages with a number and the time, over one BlipMQ connection."""

    def __init__(self, port: int) -> None:
        from penstock.client.blipmq import connect_blipmq

        self._client = connect_blipmq(f"127.0.0.1:{port}")
        self.sent = 0

    def __enter__(self) -> "Sender":
        self._client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._client.__exit__(None, None, None)

    def send(self, count: int) -> None:
        now_us = time.time_ns() // 1000
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_us // 1_000_000))
        when = f"{text}.{now_us % 1_000_000:06d}Z"
        values = [
            f'{{"number":{number},"sent_us":{now_us},"sent":"{when}","text":"{number:040x}"}}'.encode()
            for number in range(self.sent, self.sent + count)
        ]
        self._client.publish_many("ticks", values)
        self._client.flush()
        self.sent += count

    def steadily(self, seconds: int) -> None:
        began_s = time.monotonic()
        for turn in range(seconds * WRITES_PER_S):
            wait_s = began_s + turn / WRITES_PER_S - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            self.send(RATE_PER_S // WRITES_PER_S)


class Watcher:
    """When the rows of ticks_silver became visible."""

    def __init__(self, project: Path) -> None:
        from penstock.spark.pipeline.project import load_project

        self._project = load_project(project)
        self._rows: list[tuple[Any, Any, int]] = []
        self._count = 0
        self._grown = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        import pyarrow.parquet as pq

        from penstock.spark.pipeline.project import local_path
        from penstock.spark.pipeline.tables.files import LOG_DIRECTORY, log_entries

        log = self._project.tables_directory / "ticks_silver" / LOG_DIRECTORY
        seen: set[str] = set()
        batch = 0
        while not self._over.wait(LOOK_S):
            path = next(
                (p for p in (log / str(batch), log / f"{batch}.compact") if p.is_file()), None
            )
            if path is None:
                continue
            now_us = time.time_ns() // 1000
            batch += 1
            for entry in log_entries(path):
                if entry["path"] in seen:
                    continue
                seen.add(entry["path"])
                found = pq.read_table(local_path(entry["path"]), columns=["number", "sent_us"])
                self._rows.append((found["number"].to_numpy(), found["sent_us"].to_numpy(), now_us))
                with self._grown:
                    self._count += found.num_rows
                    self._grown.notify_all()

    def wait_for(self, rows: int) -> None:
        with self._grown:
            if not self._grown.wait_for(lambda: self._count >= rows, LONGEST_S):
                sys.exit(f"benchmarks: {self._count} rows of {rows} after {LONGEST_S:.0f} s")

    def latencies_ms(self, first: int, end: int) -> Any:
        parts = []
        for numbers, sent_us, now_us in self._rows:
            wanted = (numbers >= first) & (numbers < end)
            parts.append((now_us - sent_us[wanted]) / 1000)
        found = np.concatenate(parts)
        assert len(found) == end - first, f"{len(found)} rows of {end - first}"
        return found


def _lone_ms(sender: Sender, watcher: Watcher) -> float:
    """From the publisher to the row, with nothing else on the way."""
    number = sender.sent
    sender.send(1)
    watcher.wait_for(sender.sent)
    return float(watcher.latencies_ms(number, number + 1)[0])
