"""Broker, driver and executors die by SIGKILL in the middle of the work; the copies are right all the same.

A topic with two partitions is copied to another topic and to a Parquet table, on Spark's own standalone
cluster, with real processes for everything. New records come in all the time.
"""

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from kit.live_server import ServerProcess
from spark.cluster import Cluster, environment
from spark.conftest import KEY, QUICK_JVM, free_port, spark_settings

from penstock.client.flight import connect

SCRIPT = Path(__file__).with_name("copy_job.py")
PARTITIONS = 2
# Of each partition before each kill; and of one batch of both.
CHUNK = 1000
BATCH = 800
# Attempts that may fail after one kill before it counts as a defect.
RESTARTS = 4


class Broker:
    """Always on the same port and the same data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._settings = {"listeners.flight": f"127.0.0.1:{free_port()}"}
        self.address = self._settings["listeners.flight"]
        self._process = self._start()
        self._next = 0

    def _start(self) -> ServerProcess:
        return ServerProcess(self._data, self._settings).__enter__()

    def restart(self) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)
        self._process = self._start()

    def close(self) -> None:
        self._process.__exit__(None, None, None)

    def create(self, *topics: str) -> None:
        for name in topics:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self._process.ports['http']}/api/v1/topics",
                json.dumps({"name": name, "partitions": PARTITIONS}).encode(),
                {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 201

    def append(self) -> None:
        values = [b"%d" % number for number in range(self._next, self._next + CHUNK)]
        self._next += CHUNK
        with connect(self.address, KEY) as client:
            for partition in range(PARTITIONS):
                client.write("from", pa.table({"value": values}), partition=partition)

    def copied(self) -> list[list[bytes]]:
        with connect(self.address, KEY) as client:
            return [
                client.read("to", partition=partition).read_all()["value"].to_pylist()
                for partition in range(PARTITIONS)
            ]

    def expected(self) -> list[bytes]:
        return [b"%d" % number for number in range(self._next)]


class Driver:
    """The job as a process group of its own; started again whenever it has ended too early."""

    def __init__(self, job: dict[str, object], directory: Path) -> None:
        self._job = job
        self._directory = directory
        self.starts = 0
        self._start()

    def _start(self) -> None:
        self.starts += 1
        # For whoever looks into a failure.
        self._log = (self._directory / f"driver-{self.starts}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(self._job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        process, lines = self._process, self._lines

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        self._listener = threading.Thread(target=listen, daemon=True)
        self._listener.start()

    def wait_for(self, words: tuple[str, ...]) -> None:
        """Until the job has said each of these once; it may fail and start again on the way."""
        left = set(words)
        failures = 0
        said: list[str] = []
        while left:
            line = self._lines.get(timeout=HANG_S)
            if line is None:
                failures += 1
                assert failures <= RESTARTS, said[-5:]
                self._end()
                self._start()
                continue
            said.append(line)
            left -= {word for word in left if line.startswith(word)}

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._end()
        self._start()

    def finish(self) -> None:
        """The job must get through; failures that are left over from the last kill count as above."""
        for _ in range(RESTARTS):
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has failed by itself
                self._process.stdin.write("end\n")
                self._process.stdin.flush()
            if self._process.wait(HANG_S) == 0:
                return
            self._end()
            self._start()
        raise AssertionError("the job does not come to its end")

    def _end(self) -> None:
        self._process.wait(HANG_S)
        self._listener.join(HANG_S)
        self._log.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end()


def kill_executor(cluster: Cluster, chance: random.Random) -> bool:
    found = cluster.executors()
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)
    return bool(found)


def test_one_kill_of_each(tmp_path: Path) -> None:
    run(tmp_path, ["executor", "broker", "driver"], random.Random(1))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_kills_of_each(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kills = ["executor", "broker", "driver"] * 10
    chance.shuffle(kills)
    run(tmp_path, kills, chance)


def run(tmp_path: Path, kills: list[str], chance: random.Random) -> None:
    broker = Broker(tmp_path / "data")
    try:
        with Cluster(tmp_path / "cluster") as cluster:
            copy(tmp_path, broker, cluster, kills, chance)
    finally:
        broker.close()


def copy(
    tmp_path: Path, broker: Broker, cluster: Cluster, kills: list[str], chance: random.Random
) -> None:
    broker.create("from", "to")
    settings = {
        **spark_settings(tmp_path),
        "spark.master": cluster.url,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.task.maxFailures": "4",
    }
    job = {
        "server": broker.address,
        "directory": str(tmp_path),
        "batch": BATCH,
        "settings": settings,
    }
    driver = Driver(job, tmp_path)
    done: list[str] = []
    try:
        for kill in kills:
            broker.append()
            driver.wait_for(("batch topic", "batch parquet"))
            # Anywhere within a batch.
            threading.Event().wait(chance.random())
            if kill == "executor":
                assert kill_executor(cluster, chance)
            elif kill == "broker":
                broker.restart()
            else:
                driver.kill()
            done.append(kill)
        broker.append()
        driver.finish()
    finally:
        driver.close()
    assert done == kills
    expected = broker.expected()
    for partition, found in enumerate(broker.copied()):
        assert found == expected, f"partition {partition}: {compare(found, expected)}"
    table = json.loads((tmp_path / "table.json").read_text())
    assert [tuple(row) for row in table] == [
        (partition, offset, value.decode())
        for partition in range(PARTITIONS)
        for offset, value in enumerate(expected)
    ]


def compare(found: list[bytes], expected: list[bytes]) -> str:
    missing = len(set(expected) - set(found))
    return f"{missing} lost, {len(found) - len(set(found))} doubled, of {len(expected)}"
