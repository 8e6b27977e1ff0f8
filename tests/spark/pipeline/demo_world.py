"""The demonstration as a world of processes for tests: a broker that can be killed, a Spark cluster, the
pipeline, which is started again when it has ended, and all events that were sent so far.

`whole_way.py` compares what the tables hold with them.
"""

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.limits import HANG_S
from kit.live_server import ServerProcess
from spark.cluster import Cluster
from spark.conftest import KEY, QUICK_JVM, free_port, spark_environment
from spark.pipeline.running_pipeline import RunningPipeline, make_quick

from penstock.client.felix import QuicTrust
from penstock.client.flight import FlightClient, connect
from penstock.demo.events import Amounts, Event, make_load
from penstock.demo.reference import PREFIXES, Expected
from penstock.demo.running import write_demo_project
from penstock.demo.sending import Place, connected, prepare
from penstock.server.net.quic.certificates import CERTIFICATE_FILE

LISTENERS = ("tcp", "udp", "flight", "http")
# Starts of the pipeline that may fail after one kill before it counts as a defect.
RESTARTS = 4
# How often files are looked at where nothing gives an event.
LOOK_S = 0.005

SETTINGS = f"""
spark.executor.memory 512m
spark.executor.extraJavaOptions {QUICK_JVM}
spark.task.maxFailures 8
"""


class Broker:
    """Always on the same ports and the same data."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in LISTENERS}
        self.flight = self._addresses["flight"]
        self.http = f"http://{self._addresses['http']}"
        trust = QuicTrust(ca=str(data / CERTIFICATE_FILE))
        self.place = Place(self._addresses["tcp"], self._addresses["udp"], trust)
        self.start()

    def start(self) -> None:
        settings = {f"listeners.{name}": address for name, address in self._addresses.items()}
        # Readers of alerts wait for long, without a login on their streams.
        more = {"limits.login_time": "3600 s", "audit.enabled": "false"}
        self._process = ServerProcess(self.data, {**settings, **more}).__enter__()
        self._printing = threading.Thread(target=self._print, daemon=True)
        self._printing.start()

    def _print(self) -> None:
        """What it says goes to a file, for whoever looks into a failure: a full pipe would stop it."""
        assert self._process.process.stdout is not None
        with self.data.with_name("broker.log").open("a") as file:
            for line in self._process.process.stdout:
                file.write(line)
                file.flush()

    def kill(self) -> None:
        self._process.kill()
        self._printing.join(HANG_S)
        self._process.__exit__(None, None, None)

    def client(self) -> FlightClient:
        return connect(self.flight, KEY)

    def staged(self) -> dict[Path, int]:
        """The files of transactions that are not committed, with their sizes: what sinks are writing, and
        what was left by those that were killed."""
        found = {}
        for path in self.data.glob("transactions/*/*.stage"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_size
        return found


class Keeper:
    """The pipeline on the cluster, kept running as `penstock serve` would."""

    def __init__(self, project: Path, flight: str, master: str) -> None:
        self._project = project
        self._flight = flight
        self._master = master
        self._running = self._start()
        self._revived = 0
        self.starts = 1

    def _start(self) -> RunningPipeline:
        variables = spark_environment()
        return RunningPipeline(self._project, self._flight, "--master", self._master, **variables)

    def wait(self, fits: Callable[[dict[str, Any]], bool]) -> None:
        """Until an update fits. It may end and start again on the way, a few times."""
        for _ in range(RESTARTS):
            try:
                self._running.wait(fits)
                return
            except AssertionError:  # it has ended
                self._again()
        raise AssertionError(f"the pipeline does not stay: {self._running.complaints()}")

    def revive(self) -> None:
        """Starts it again where it has ended by itself, so many times between two kills."""
        if self._running.process.poll() is not None:
            assert self._revived < RESTARTS, f"it does not stay: {self._running.complaints()}"
            self._revived += 1
            self._again()

    def kill(self) -> None:
        """The driver, its JVM, and the Python processes of both."""
        self._revived = 0
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._running.process.pid, signal.SIGKILL)
        self._again()

    def _again(self) -> None:
        self.close()
        self._running = self._start()
        self.starts += 1

    def stop(self) -> int:
        return self._running.stop()

    def close(self) -> None:
        self._running.__exit__(None, None, None)


class World:
    """One broker, one cluster, one project; waves of events are sent one after the other."""

    def __init__(self, directory: Path, cluster: Cluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.project = directory / "pipeline"
        write_demo_project(self.project)
        make_quick(self.project)
        with (self.project / "conf" / "spark-defaults.conf").open("a") as file:
            file.write(SETTINGS)
        self.broker = Broker(directory / "data")
        asyncio.run(prepare(self.broker.place))
        self.keeper: Keeper | None = None
        self.events: list[Event] = []
        self.more_columns: dict[str, Sequence[str]] = {}
        self._waves = 0

    def wave(self, amounts: Amounts) -> list[Event]:
        """Events that are not sent yet."""
        self._waves += 1
        return make_load(self.chance, datetime.now(UTC), amounts, self._waves)

    async def send(self, events: Sequence[Event]) -> None:
        async with connected(self.broker.place) as sender:
            await sender.send(events)
        self.events += events

    def start_pipeline(self) -> Keeper:
        if self.keeper is None:
            self.keeper = Keeper(self.project, self.broker.flight, self.cluster.url)
        return self.keeper

    @property
    def expected(self) -> Expected:
        return Expected(self.events, self.more_columns)

    def wait_until_complete(self) -> None:
        """Until every table has as many rows as it must have, or more."""
        expected = self.expected
        counts = expected.counts()
        letters = sum(len(expected.dead_letters(topic)) for topic in PREFIXES)
        counts["bronze"] = len(self.events) + letters + len(expected.alerts())

        def fits(told: dict[str, Any]) -> bool:
            tables = told.get("tables", {})
            return all(tables.get(name, {}).get("rows", 0) >= counts[name] for name in counts)

        self.start_pipeline().wait(fits)

    def wait_for_staging(self, before: dict[Path, int]) -> None:
        """Until a sink into a topic has written something since then."""
        keeper = self.start_pipeline()

        def has_written() -> bool:
            keeper.revive()
            return any(size > before.get(path, 0) for path, size in self.broker.staged().items())

        until(has_written)

    def kill_executor(self) -> bool:
        """False where there is none, or it has ended by itself."""
        found = self.cluster.executors()
        try:
            if found:
                os.kill(self.chance.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return bool(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.keeper is not None:
            self.keeper.close()
        self.broker.kill()


def until(fits: Callable[[], bool]) -> None:
    """Files and other processes give no event."""
    hung = threading.Event()
    timer = threading.Timer(HANG_S, hung.set)
    timer.start()
    pause = threading.Event()
    try:
        while not fits():
            assert not hung.is_set(), "it did not come"
            pause.wait(LOOK_S)
    finally:
        timer.cancel()


@contextmanager
def demo_world(directory: Path, seed: int) -> Iterator[World]:
    with Cluster(directory / "cluster") as cluster, World(directory, cluster, seed) as world:
        yield world
