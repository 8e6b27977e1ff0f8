"""Spark's own servers from the pip package, as processes: a master with two workers, and Spark Connect."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
from kit.limits import HANG_S
from spark.conftest import QUICK_JVM, free_port, spark_environment

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def environment() -> dict[str, str]:
    return {**os.environ, **spark_environment(), "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}


@dataclass(frozen=True, slots=True)
class Started:
    process: "subprocess.Popen[str]"
    drain: threading.Thread

    def end(self) -> None:
        self.process.kill()
        self.process.wait(HANG_S)
        self.drain.join(HANG_S)


def start(ready: str, *arguments: str) -> Started:
    """Waits for the line that says it is ready."""
    process = subprocess.Popen(
        [SPARK_CLASS, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    timer = threading.Timer(HANG_S, process.kill)
    timer.start()
    output = process.stderr
    assert output is not None
    started = any(ready in line for line in output)
    timer.cancel()

    def drain() -> None:
        """Somebody has to take what it goes on to say."""
        with output:
            for _ in output:
                continue

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    found = Started(process, thread)
    if not started:
        found.end()
        raise AssertionError(f"{arguments[0]} did not start")
    return found


class Cluster:
    """`url` is for `spark.master`. One core and one executor per worker; `hosts` names the loopback
    addresses of the workers."""

    def __init__(self, scratch: Path, hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1")) -> None:
        self._scratch = scratch
        self._hosts = hosts
        self._started: list[Started] = []
        self._workers: list[int] = []
        self.url = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        package = "org.apache.spark.deploy"
        host, port = self.url.removeprefix("spark://").split(":")
        where = ["--host", host, "--webui-port", "0"]
        self._start("New state: ALIVE", f"{package}.master.Master", *where, "--port", port)
        for number, host in enumerate(self._hosts):
            where = ["--host", host, "--webui-port", "0"]
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
            self._workers.append(worker.process.pid)
        return self

    def _start(self, ready: str, *arguments: str) -> Started:
        started = start(ready, *arguments)
        self._started.append(started)
        return started

    def executors(self) -> list[int]:
        """The executors of both workers."""
        parents = set(self._workers)
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
            with suppress(ProcessLookupError):  # it ends with its driver
                os.kill(pid, signal.SIGKILL)
        for started in self._started:
            started.end()


@contextmanager
def connect_server(settings: Mapping[str, str]) -> Iterator[str]:
    """Gives the address for `remote`."""
    port = free_port()
    bound = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    given = [f"--conf={name}={value}" for name, value in {**settings, **bound}.items()]
    started = start(
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
        started.end()
