"""Spark's own servers from the pip package, as processes: a master with two workers, and Spark Connect."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
from kit.live_server import SOURCES
from spark.conftest import QUICK_JVM, free_port

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
# A JVM on a busy machine.
START_S = 60.0


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": SOURCES, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own, "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}


def start(ready: str, *arguments: str) -> "subprocess.Popen[str]":
    """Waits for the line that says it is ready."""
    process = subprocess.Popen(
        [SPARK_CLASS, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    assert process.stderr is not None
    started = any(ready in line for line in process.stderr)
    timer.cancel()
    assert started, f"{arguments[0]} did not start"
    # Somebody has to take what it goes on to say.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(START_S)


class Cluster:
    """`url` is for `spark.master`. One core and one executor per worker."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self.url = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        package = "org.apache.spark.deploy"
        host, port = self.url.removeprefix("spark://").split(":")
        where = ["--host", host, "--webui-port", "0"]
        self._start("New state: ALIVE", f"{package}.master.Master", *where, "--port", port)
        for number in range(2):
            room = [
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(self._scratch / f"w{number}"),
            ]
            worker = self._start(
                "Successfully registered", f"{package}.worker.Worker", *where, *room, self.url
            )
            self.workers.append(worker)
        return self

    def _start(self, ready: str, *arguments: str) -> "subprocess.Popen[str]":
        process = start(ready, *arguments)
        self._processes.append(process)
        return process

    def executors(self) -> list[int]:
        """The executors of both workers."""
        parents = {worker.pid for worker in self.workers}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if parent in parents and b"CoarseGrainedExecutorBackend" in words:
                found.append(int(entry.name))
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            end(process)


@contextmanager
def connect_server(settings: Mapping[str, str]) -> Iterator[str]:
    """Gives the address for `remote`."""
    port = free_port()
    bound = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    given = [f"--conf={name}={value}" for name, value in {**settings, **bound}.items()]
    process = start(
        "Spark Connect server started",
        "org.apache.spark.deploy.SparkSubmit",
        "--master=local[2]",
        "--class=org.apache.spark.sql.connect.service.SparkConnectServer",
        *given,
        "spark-internal",
    )
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(process)
