"""Starts and stops the servers that the suites measure: ours, the controls, NATS.

Each is a process of its own on a free port of the loopback interface, with its data in a directory that
the caller gives. Every `with` ends its process, also when the run fails.
"""

import mmap
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.server.config.schema import AllListenersConfig

FREE_PORT = "127.0.0.1:0"
START_TIME_S = 30.0
STOP_TIME_S = 15.0
NATS = Path(sys.executable).with_name("nats-server")
NATS_LISTENS = re.compile(r"Listening for client connections on 127\.0\.0\.1:(\d+)")


def end_when_told() -> None:
    """SIGTERM ends a benchmark as Ctrl-C does: servers are stopped and files removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@dataclass(frozen=True, slots=True)
class Process:
    """A running server: where it listens, by the names that it gives its listeners."""

    pid: int
    ports: dict[str, int]

    def resident_bytes(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None, "Linux tells this of every process"
        return int(found.group(1)) * 1024

    def schedule(self) -> tuple[float, float]:
        """Seconds that all its threads together have run, and have waited for a CPU to run on."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        pairs = [(task / "schedstat").read_text().split() for task in tasks]
        return sum(int(pair[0]) for pair in pairs) / 1e9, sum(int(pair[1]) for pair in pairs) / 1e9


@contextmanager
def _running(command: Sequence[str], pattern: re.Pattern[str], last: str) -> Iterator[Process]:
    """Reads what the process says until a line has `last` in it; gives the ports found by then."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line)
            if last in line:
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        if not ready.wait(START_TIME_S) or child.poll() is not None:
            sys.exit(f"benchmarks: {command[0]} did not start: {''.join(said).strip()}")
        groups = [found.groups() for found in map(pattern.search, said) if found]
        yield Process(child.pid, {group[0]: int(group[-1]) for group in groups})
        if child.poll() is not None:
            sys.exit(f"benchmarks: {command[0]} ended by itself: {''.join(said[-5:]).strip()}")
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_TIME_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def listening(**addresses: str) -> list[str]:
    """Flags of `penstock serve` for these listeners, by name; all others of the configuration are off."""
    names: tuple[str, ...] = AllListenersConfig.__struct_fields__
    return [f"--set=listeners.{name}={addresses.get(name, 'off')}" for name in names]


@contextmanager
def penstock(
    data: Path, *settings: str, flight: str = "off", udp: str = "off"
) -> Iterator[Process]:
    """`penstock serve` with free ports; `settings` are section.key=value."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(data)]
    command += listening(tcp=FREE_PORT, http=FREE_PORT, flight=flight, udp=udp)
    for setting in settings:
        command += ["--set", setting]
    pattern = re.compile(r"^\s+(tcp|http|flight|udp)\s+\S*127\.0\.0\.1:(\d+)")
    with _running(command, pattern, "Read it again") as process:
        yield process


@contextmanager
def control(file: Path) -> Iterator[Process]:
    command = [sys.executable, "-m", "benchmarks.broker_control", str(file)]
    with _running(command, re.compile(r"^(control) (\d+)"), "control") as process:
        yield process


@contextmanager
def echo() -> Iterator[Process]:
    command = [sys.executable, "-m", "benchmarks.request_echo"]
    with _running(command, re.compile(r"^(echo) (\d+)"), "echo") as process:
        yield process


@contextmanager
def bare(
    durability: str, file: Path, request_bytes: int, stored_bytes: int, answer: bytes
) -> Iterator[Process]:
    command = [sys.executable, "-m", "benchmarks.request_bare", durability, str(file)]
    command += [str(request_bytes), str(stored_bytes), answer.hex()]
    with _running(command, re.compile(r"^(bare) (\d+)"), "bare") as process:
        yield Process(process.pid, {"tcp": process.ports["bare"]})


@contextmanager
def nats(data: Path, sync_interval: str | None) -> Iterator[Process]:
    """JetStream with file storage; None leaves the interval at its default of two minutes."""
    data.mkdir(parents=True)
    sync = f"sync_interval: {sync_interval}" if sync_interval else ""
    config = data / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{data}/store"\n {sync} }}\n'
    )
    with _running([str(NATS), "-c", str(config)], NATS_LISTENS, "Server is ready") as process:
        yield Process(process.pid, {"nats": next(iter(process.ports.values()))})


@dataclass(frozen=True, slots=True)
class Work:
    """CPU seconds of one run, how long the server waited for a CPU, and how long all took."""

    generator_s: float
    server_s: float
    waited_s: float
    took_s: float


class Watch:
    """Who is at work while something is measured."""

    def __init__(self, server: Process) -> None:
        self._server = server
        self._began = time.perf_counter()
        self._generator_s = time.process_time()
        self._ran_s, self._waited_s = server.schedule()

    def work(self) -> Work:
        ran_s, waited_s = self._server.schedule()
        return Work(
            time.process_time() - self._generator_s,
            ran_s - self._ran_s,
            waited_s - self._waited_s,
            time.perf_counter() - self._began,
        )


def touch_memory(size: int) -> None:
    """Uses memory once and gives it back, at most half of what is free.

    A virtual machine gets its memory from its host at first use, which costs more than writing to it.
    Without this the rows that come first pay for all, and every ratio is drawn towards 1.
    """
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(found.group(1)) * 1024 if found else 0
    with mmap.mmap(-1, min(size, free // 2)) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
