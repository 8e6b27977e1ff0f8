"""QUIC: bytes of one stream into our streams and sessions, an echo, and TCP on the same event loop
beside it.

The load is a client on qh3's core, or a quinn client where tests/peers/quinn was built
(benchmarks/README.md); the control is the library's own server, or a bare quinn server.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Table, interleaved

QUINN = Path(__file__).parent.parent / "build/peers/quinn-peer"
# A run may take this long; it is for a hang.
MOST_S = 120


def tables(quick: bool) -> Iterator[Table]:
    rounds, megabytes, turns = (1, 4, 200) if quick else (3, 200, 5_000)
    with _running("benchmarks.quic_server") as ours, _control() as control:
        yield from _against(ours, control, rounds, megabytes, turns)
        yield _beside_tcp(ours, megabytes * 4)


def _against(
    ours: list[int], control: int, rounds: int, megabytes: int, turns: int
) -> Iterator[Table]:
    name = "quinn" if QUINN.exists() else "qh3's own server"
    load = "a quinn client" if QUINN.exists() else "a client on qh3's core"
    found = interleaved(
        {
            "control": lambda: _load(control, "send", megabytes)[0],
            "ours": lambda: _load(ours[0], "send", megabytes)[0],
        },
        rounds,
    )
    table = Table(f"QUIC, one stream of {megabytes} MB in, {load}")
    table.add(f"control: {name}", found["control"], "MB/s")
    # quic.md: half of a quinn sink. The library's own server is many times slower than ours.
    least = 0.5 if QUINN.exists() else 1.0
    table.compare("sessions on streams", found["ours"], "MB/s", found["control"], least)
    yield table
    echoes = interleaved(
        {
            "control": lambda: _load(control, "latency", turns)[0],
            "ours": lambda: _load(ours[0], "latency", turns)[0],
        },
        rounds,
    )
    table = Table(f"QUIC, 64 bytes there and back, p50 of {turns}, {load}")
    table.add(f"control: {name}", echoes["control"], "us")
    table.at_most("sessions on streams", echoes["ours"], "us", echoes["control"], 1.3)
    yield table


def _beside_tcp(ours: list[int], megabytes: int) -> Table:
    """What QUIC at full speed does to a TCP connection of the same event loop."""
    table = Table("TCP echo of 64 bytes while QUIC is saturated on the same event loop")
    idle = _run("benchmarks.quic_control", "tcp", str(ours[1]), "1")
    table.add("control: QUIC idle, p50", idle[0], "us")
    table.add("control: QUIC idle, p99", idle[1], "us")
    sending = subprocess.Popen(_command(ours[0], "send", megabytes), stdout=subprocess.PIPE)
    try:
        busy = _run("benchmarks.quic_control", "tcp", str(ours[1]), "1")
        saturated = sending.poll() is None
    finally:
        sending.communicate(timeout=MOST_S)
    words = "" if saturated else " (the load ended early)"
    table.add(f"QUIC saturated, p50{words}", busy[0], "us")
    table.at_most(f"QUIC saturated, p99{words}", busy[1], "us", 20_000, 1.0)
    return table


# --- processes ------------------------------------------------------------------------------------


def _command(port: int, mode: str, number: int) -> list[str]:
    if QUINN.exists():
        return [str(QUINN), f"127.0.0.1:{port}", mode, str(number)]
    return [sys.executable, "-m", "benchmarks.quic_control", mode, str(port), str(number)]


def _load(port: int, mode: str, number: int) -> list[float]:
    done = subprocess.run(
        _command(port, mode, number), capture_output=True, text=True, timeout=MOST_S, check=True
    )
    return _numbers(done.stdout)


def _run(module: str, *arguments: str) -> list[float]:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=True)
    return _numbers(done.stdout)


def _numbers(line: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<![a-z\d])\d+(?:\.\d+)?", line)]


@contextmanager
def _running(*module: str) -> Iterator[list[int]]:
    """The ports that a process has printed."""
    with subprocess.Popen(
        [sys.executable, "-m", *module], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield [int(one) for one in process.stdout.readline().split()[1:]]
        finally:
            process.kill()


@contextmanager
def _control() -> Iterator[int]:
    if not QUINN.exists():
        with _running("benchmarks.quic_control", "serve") as ports:
            yield ports[0]
        return
    command = [str(QUINN), "127.0.0.1:0", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()
