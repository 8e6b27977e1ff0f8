"""The programs and processes of the quic suite: loads on one CPU and servers on another.

The load is a quinn client (tests/peers/quinn), the controls are sinks on quinn and quic-go. Where they
cannot be built, the load is a client on qh3's core and the control qh3's own server (quic_control.py).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# One run of a load; it is for a hang.
MOST_S = 180
FUJIN = "fujin"


@dataclass(frozen=True, slots=True)
class Peers:
    """None where a program cannot be built; `missing` says why."""

    quinn: str | None
    quic_go: str | None
    missing: tuple[str, ...]


def find_peers() -> Peers:
    found: dict[str, str] = {}
    missing: list[str] = []
    for name in ("quinn", "quic_go"):
        command = [sys.executable, str(ROOT / "tests/peers/build.py"), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[name] = done.stdout.strip()
        else:
            missing.append(done.stderr.strip().removeprefix("build.py: "))
    return Peers(found.get("quinn"), found.get("quic_go"), tuple(missing))


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, and the ports that it has printed."""

    pid: int
    ports: list[int]

    def cpu_s(self) -> float:
        """Seconds that all its threads together have run."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def pin(pid: int, number: int) -> None:
    """Loads are on one CPU and servers on another, so that a server has one core, as the targets say."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) > 1:
        os.sched_setaffinity(pid, {available[number % len(available)]})


def unpin(pid: int) -> None:
    """For lone requests, where the load is idle most of the time: no thread waits for another's core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))


@contextmanager
def running(command: Sequence[str]) -> Iterator[Served]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            pin(process.pid, 1)
            assert process.stdout is not None
            line = process.stdout.readline()
            yield Served(
                process.pid, [int(one) for one in re.findall(r"(?<![\d.])\d{3,5}\b", line)]
            )
        finally:
            process.kill()


def ours() -> Sequence[str]:
    return [sys.executable, "-m", "benchmarks.quic_server"]


def qh3_server() -> Sequence[str]:
    return [sys.executable, "-m", "benchmarks.quic_control", "serve"]


def load(command: Sequence[str]) -> list[float]:
    """The numbers in the line that it prints."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        pin(process.pid, 0)
        try:
            said, complaint = process.communicate(timeout=MOST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        sys.exit(f"benchmarks: {' '.join(command)}: {complaint.strip() or process.returncode}")
    return numbers(said)


def begin(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A load that the caller ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pin(process.pid, 0)
    return process


def numbers(line: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<![a-z\d])\d+(?:\.\d+)?", line)]


def quinn_load(program: str, port: int, *words: object) -> list[float]:
    return load([program, f"127.0.0.1:{port}", *map(str, words)])


def quic_go_load(program: str, port: int, *words: object) -> list[float]:
    return load([program, f"127.0.0.1:{port}", FUJIN, *map(str, words)])


def python_load(*words: object) -> list[float]:
    return load([sys.executable, "-m", "benchmarks.quic_control", *map(str, words)])
