"""A real `penstock serve` process on free ports, for tests of whole programs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.listeners import FREE_PORT, OFF, all_listeners, as_flags

SOURCE = str(Path(__file__).parents[2] / "src")
# Starting, stopping and single commands take about a second; this long is a defect.
TIMEOUT_S = HANG_S

Done = subprocess.CompletedProcess[bytes]


@dataclass
class RunningServer:
    """`tcp`, `http`, `flight` and `udp` (if asked for) are the bound addresses, `environment` what a
    command needs to find them."""

    process: subprocess.Popen[bytes]
    data: Path
    tcp: str
    http: str
    environment: dict[str, str]
    flight: str = ""
    udp: str = ""

    def penstock(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Done:
        """Run one command against this server."""
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**self.environment, **variables},
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on; the test ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


def start_server(data: Path, home: Path, *options: str) -> RunningServer:
    """Start `penstock serve` there and wait for its banner, which tells the ports."""
    unset = [name for name in os.environ if name.startswith("PENSTOCK_") and "PURE" not in name]
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": SOURCE, "XDG_CONFIG_HOME": str(home)}
    settings = as_flags(all_listeners(OFF, tcp=FREE_PORT, http=FREE_PORT))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "serve",
            "--data",
            str(data),
            *settings,
            *options,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    assert process.stdout is not None
    banner = ""
    while "penstock pub" not in banner:
        line = process.stdout.readline()
        assert line, f"the server ended: {banner}"
        banner += line.decode()
    tcp = re.search(r"^ +tcp +(\S+)", banner, re.MULTILINE)
    http = re.search(r"^ +http +(\S+)", banner, re.MULTILINE)
    flight = re.search(r"^ +flight +(?:grpc\S*://)?(\S+)", banner, re.MULTILINE)
    assert tcp is not None and http is not None, banner
    udp = re.search(r"^ +udp +(\S+)", banner, re.MULTILINE)
    environment |= {"PENSTOCK_SERVER": tcp[1], "PENSTOCK_HTTP": http[1]}
    if udp is not None:
        environment["PENSTOCK_QUIC"] = udp[1]
    found = [one[1] if one is not None else "" for one in (flight, udp)]
    return RunningServer(process, data, tcp[1], http[1], environment, *found)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers on one data directory, one after another; ends what is left."""
    started: list[RunningServer] = []

    def start(*options: str) -> RunningServer:
        started.append(start_server(tmp_path / "data", tmp_path / "home", *options))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()
        elif server.process.stdout is not None:
            server.process.stdout.close()


@pytest.fixture
def running_server(serve: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    """One server that must also end well."""
    server = serve()
    yield server
    assert server.stop() == 0
