"""How the Flight process starts and ends: from which directory, when it dies as it starts, and with its
server."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.flight_client import FLIGHT, connect_to
from kit.live_server import SOURCES, WAIT_S, LiveServer, ServerProcess
from kit.watched_server import pids_of

from penstock.server.flight import host as flight_host
from penstock.server.flight.link import FromChild, Started

# Starts a Flight process, tells it where to listen, and is killed before it can answer.
KILLED_WHILE_STARTING = """
import os, signal
from penstock.server.flight.host import _spawn
from penstock.server.flight.link import FlightLimits, Start, send
child = _spawn()
send(child.link, Start("127.0.0.1", 0, None, None, None, 20, FlightLimits(1, 1, 1 << 20)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_module_in_the_working_directory_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tmp_path / "loaded"
    for name in ("pyarrow", "msgspec", "socket"):
        (tmp_path / f"{name}.py").write_text(f"open({str(loaded)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with LiveServer(tmp_path / "data", FLIGHT) as server, connect_to(server) as client:
        assert client.topics() == []
    assert not loaded.exists()


def test_a_process_that_dies_as_it_says_that_it_listens(tmp_path: Path) -> None:
    """Both are noticed in one turn of the loop, before whoever waits for the start has run."""
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        host = server.server.flight
        assert host is not None
        started: list[flight_host._Child] = []
        back = threading.Event()
        received, lost, first = host._received, host._lost, host._child
        assert first is not None

        def die_once(child: flight_host._Child, message: FromChild, body: bytes) -> None:
            received(child, message, body)
            if isinstance(message, Started):
                started.append(child)
                if len(started) == 1:
                    child.process.kill()
                    lost(child)
                else:
                    back.set()

        def lose_once(child: flight_host._Child) -> None:
            if child not in started[:1]:
                lost(child)

        host._received = die_once  # type: ignore[method-assign]  # to die at a moment that never comes twice
        host._lost = lose_once  # type: ignore[method-assign]  # each end is told once
        os.kill(first.process.pid, signal.SIGKILL)
        assert back.wait(WAIT_S)
        assert host.restarts == 2
        with connect_to(server) as client:
            assert client.topics() == []


def test_a_server_that_is_killed_while_starting_leaves_no_word() -> None:
    """stderr ends when everybody who can write to it is gone."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_STARTING],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCES},
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, b"")


def test_the_kernel_ends_the_process_with_the_server(tmp_path: Path) -> None:
    """Also one that does not run at all, and so sees no end of its link."""
    with ServerProcess(tmp_path / "data", FLIGHT) as server:
        (pid,) = pids_of(server)[1:]
        descriptor = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGSTOP)
            server.kill()
            assert select.select([descriptor], [], [], WAIT_S)[0], f"process {pid} did not end"
        finally:
            os.close(descriptor)
