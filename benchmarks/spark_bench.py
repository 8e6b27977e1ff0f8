"""What all parts of the Spark suite stand on: a session beside a broker, topics full of rows, and the
memory of Spark's processes. Prints nothing and judges nothing.
"""

import json
import os
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker_servers import penstock
from benchmarks.spark_control import ControlSource, random_values, rows_of_a_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.flight import FlightClient

ROOT = Path(__file__).resolve().parent.parent
KEY = "dev-key"
# Of the JVM. The larger it is, the later it collects, and the less its size says.
DRIVER_MEMORY = "1g"
SAMPLE_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Bench:
    """Spark and broker, both running, and how Spark finds the broker."""

    spark: "SparkSession"
    client: "FlightClient"
    http_port: int
    given: dict[str, str]
    directory: Path

    def topic(self, name: str, rows: int, value_bytes: int, partitions: int = 1) -> None:
        """Makes a topic with as many rows in every partition."""
        import pyarrow as pa

        create_topic(self.http_port, name, partitions)
        most = rows_of_a_batch(value_bytes)
        values = random_values(most, value_bytes)
        for partition in range(partitions):
            left = rows // partitions
            while left > 0:
                table = pa.table({"value": values.slice(0, min(left, most))})
                self.client.write(name, table, partition=partition)
                left -= most

    def reading(self, topic: str, **given: object) -> "DataFrame":
        reader = self.spark.read.format("penstock").options(**self.given, subscribe=topic)
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    def control(self, rows: int, value_bytes: int, tasks: int) -> "DataFrame":
        reader = self.spark.read.format("control")
        return reader.options(rows=rows, tasks=tasks, valueBytes=value_bytes).load()

    def write(self, frame: "DataFrame", topic: str) -> None:
        out = frame.select("value").write.format("penstock").options(**self.given, topic=topic)
        out.option("createTopics", "true").mode("append").save()

    def drop(self, frame: "DataFrame") -> None:
        """What `write` costs without a broker: the same rows to a writer that drops its batches."""
        frame.select("value").write.format("control").mode("append").save()


def create_topic(http_port: int, name: str, partitions: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/api/v1/topics",
        json.dumps({"name": name, "partitions": partitions}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request):
        return


@contextmanager
def running(directory: Path) -> Iterator[Bench]:
    from penstock.client.flight import connect

    with penstock(directory / "data", flight="127.0.0.1:0") as server:
        address = f"127.0.0.1:{server.ports['flight']}"
        given = {"server": address, "accessKey": KEY}
        with connect(address, KEY) as client, _session(directory) as spark:
            yield Bench(spark, client, server.ports["http"], given, directory)


@contextmanager
def _session(directory: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
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


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def consume(frame: "DataFrame") -> None:
    """Every column goes through; nothing is kept."""
    frame.write.format("noop").mode("overwrite").save()


class Memory:
    """The largest resident memory of Spark's processes while the block runs: the JVM, all Python workers
    together, and the largest one of them. In local mode the JVM is driver and executor in one."""

    def __init__(self, spark: "SparkSession") -> None:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._jvm: int = gateway.proc.pid
        self.jvm_bytes = 0
        self.worker_bytes = 0
        self.largest_worker_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_INTERVAL_S):
            found = {pid: _resident_bytes(pid) for pid in _with_descendants(self._jvm)}
            self.jvm_bytes = max(self.jvm_bytes, found.pop(self._jvm))
            self.worker_bytes = max(self.worker_bytes, sum(found.values()))
            largest = max(found.values(), default=0)
            self.largest_worker_bytes = max(self.largest_worker_bytes, largest)


def _with_descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # ended meanwhile
        return [pid]
    return [pid, *(one for child in children for one in _with_descendants(int(child)))]


def _resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else 0
