"""`penstock serve` as a real process: banner, signals, draining, errors, systemd."""

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.listeners import FREE_PORT, OFF, all_listeners, as_variables

from penstock.server.config.checks import quic_listeners
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request

SOURCE = str(Path(__file__).parents[2] / "src")
# As variables, because the options of a test go before them. The tests talk to these three.
FREE_PORTS = as_variables(all_listeners(OFF, tcp=FREE_PORT, blipmq=FREE_PORT, http=FREE_PORT))
LAST_LINE = "Read it again"


class Served:
    """A running `penstock serve`, with its banner and its ports."""

    def __init__(self, process: subprocess.Popen[str], banner: str) -> None:
        self.process = process
        self.banner = banner
        self.ports = {
            name: int(port)
            for name, port in re.findall(r"^  (\w+) .*127\.0\.0\.1:(\d+)", banner, re.M)
        }

    def http(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=HANG_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def end(self) -> tuple[int, str]:
        """Exit code, and stderr without what the log tells of an ordinary run."""
        code, errors = self.end_with_log()
        lines = errors.splitlines(keepends=True)
        return code, "".join(line for line in lines if " INFO " not in line)

    def end_with_log(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, errors


def environment(**more: str) -> dict[str, str]:
    """Nothing of the one around, but whether compiled modules are used; free ports."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "XDG_"))}
    kept |= {k: v for k, v in os.environ.items() if k == "PENSTOCK_PURE"}
    return {**kept, **FREE_PORTS, "PYTHONPATH": SOURCE, **more}


@contextmanager
def serving(cwd: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", *arguments]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith(LAST_LINE):
                    break
            yield Served(process, "".join(lines))
        finally:
            if process.poll() is None:
                process.kill()


def serve(cwd: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """For a server that must not start."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "serve", *arguments],
        check=False,
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def ask(port: int, request: rustlog.Request) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client:
        client.sendall(encode_request(request))
        answer = client.makefile("rb")
        size = int.from_bytes(answer.read(4), "big")
        return answer.read(size)


def test_the_banner_says_all_one_needs(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        banner = served.banner
        assert banner.startswith("Penstock ")
        assert re.search(r"^  tcp +127\.0\.0\.1:\d+ +FlyMQ, RustLog and BlipMQ$", banner, re.M)
        assert re.search(r"^  blipmq +127\.0\.0\.1:\d+ +BlipMQ$", banner, re.M)
        assert re.search(
            r"^  http +http://127\.0\.0\.1:\d+ +/healthz /readyz /metrics", banner, re.M
        )
        assert "  data    ./penstock-data  (default; change it with --data)" in banner
        assert "  key     dev-key  (no API keys yet" in banner
        server = f"--server 127.0.0.1:{served.ports['tcp']}"
        assert re.search(rf"^Send a message:  \S*penstock pub {server} demo hello$", banner, re.M)
        url = f"--http http://127.0.0.1:{served.ports['http']}"
        assert re.search(rf"^Read it again:   \S*penstock cat {url} demo$", banner, re.M)
        assert (tmp_path / "penstock-data" / "metadata.db").exists()
        assert served.http("/readyz") == (200, b'{"status":"ready"}')


def test_the_data_goes_where_xdg_says(tmp_path: Path) -> None:
    with serving(tmp_path, XDG_DATA_HOME=str(tmp_path / "share")) as served:
        assert f"{tmp_path}/share/penstock  (default (XDG_DATA_HOME is set);" in served.banner
        assert (tmp_path / "share" / "penstock" / "metadata.db").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_flushes_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as served:
        ask(served.ports["tcp"], rustlog.CreateTopic("t", 1))
        ask(served.ports["tcp"], rustlog.Produce("t", 0, [b"kept"]))
        with socket.create_connection(("127.0.0.1", served.ports["blipmq"])) as idle:
            served.process.send_signal(number)
            assert idle.recv(1) == b""
        assert served.end() == (0, "")
    with serving(tmp_path) as served:
        assert b"kept" in ask(served.ports["tcp"], rustlog.Fetch("t", 0, 0, 100, None))
        _, metrics = served.http("/metrics")
        assert b"penstock_recovery_cut_bytes_total 0.0" in metrics


def test_signals_in_quick_succession_are_one_request(tmp_path: Path) -> None:
    """As Ctrl-C under make sends them: the answers that are due still go out."""
    with serving(tmp_path, "--set", "server.drain_time=1 h") as served:
        ask(served.ports["tcp"], rustlog.CreateTopic("t", 1))
        ask(served.ports["tcp"], rustlog.Produce("t", 0, [bytes(4_000_000)]))
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            slow.connect(("127.0.0.1", served.ports["tcp"]))
            slow.sendall(encode_request(rustlog.Fetch("t", 0, 0, 9_000_000, None)))
            received = len(slow.recv(100))
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                served.process.send_signal(number)
            while part := slow.recv(1 << 20):
                received += len(part)
        assert received > 4_000_000
        assert served.end() == (0, "")


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    """The first one waits for a peer that does not take its answer."""
    with serving(tmp_path, "--set", "server.drain_time=1 h") as served:
        ask(served.ports["tcp"], rustlog.CreateTopic("t", 1))
        for _ in range(2):
            ask(served.ports["tcp"], rustlog.Produce("t", 0, [bytes(4_000_000)]))
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            greedy.connect(("127.0.0.1", served.ports["tcp"]))
            greedy.sendall(encode_request(rustlog.Fetch("t", 0, 0, 9_000_000, None)))
            assert len(greedy.recv(100)) > 0
            served.process.send_signal(signal.SIGTERM)
            while served.http("/readyz")[0] == 200:
                continue
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", served.ports["tcp"])).close()
            assert served.process.poll() is None
            # Within a second of the first it is the same request.
            while served.process.poll() is None:
                served.process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    served.process.wait(0.05)
            assert served.end() == (
                128 + signal.SIGTERM,
                "penstock: second signal, stopped at once\n",
            )


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_and_stopping(tmp_path: Path, abstract: bool) -> None:
    name = f"penstock-test-{os.getpid()}"
    path = f"@{name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else path)
        systemd.settimeout(HANG_S)
        with serving(tmp_path, NOTIFY_SOCKET=path) as served:
            assert systemd.recv(100) == b"READY=1"
            assert served.http("/readyz")[0] == 200
            served.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert served.end() == (0, "")


def test_a_lost_notify_socket_stops_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, NOTIFY_SOCKET=str(tmp_path / "gone")) as served:
        assert served.http("/readyz")[0] == 200
        served.process.send_signal(signal.SIGTERM)
        code, errors = served.end()
        assert code == 0
        assert "NOTIFY_SOCKET" in errors


# --- what must not start -------------------------------------------------------------------------


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("listener", ["tcp", "blipmq", "http"])
def test_a_port_in_use(tmp_path: Path, listener: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = one_line(serve(tmp_path, f"--{listener}", address))
    assert f"cannot listen on {address} (listeners.{listener}): address already in use" in line


@pytest.mark.parametrize("listener", quic_listeners())
def test_a_port_on_udp_in_use(tmp_path: Path, listener: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = one_line(serve(tmp_path, f"--{listener}", address))
    assert f"cannot listen on {address} (listeners.{listener}): address already in use" in line
    assert f"choose another address with listeners.{listener}" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "limits.conections=5"], "did you mean limits.connections?"),
        (["--tcp", "nowhere"], "listeners.tcp"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--tcp", "0.0.0.0:0"], "give --insecure"),
        (["--set", "tls.certificate=c.pem", "--set", "tls.key=k.pem"], "c.pem"),
        (["--data", "file"], "file"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "file").write_text("in the way")
    assert words in one_line(serve(tmp_path, *arguments))


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        line = one_line(serve(tmp_path))
        assert f"in use by process {served.process.pid}" in line
        assert served.http("/readyz")[0] == 200


def test_metadata_of_a_newer_version(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == (0, "")
    database = sqlite3.connect(tmp_path / "penstock-data" / "metadata.db")
    database.execute("PRAGMA user_version = 999")
    database.close()
    assert "written by a newer Penstock" in one_line(serve(tmp_path))


def test_topics_without_their_metadata(tmp_path: Path) -> None:
    data = tmp_path / "penstock-data"
    (data / "topics" / "orders" / "0").mkdir(parents=True)
    line = one_line(serve(tmp_path))
    assert "metadata.db is missing beside 1 topic director" in line
    assert "penstock log rebuild-metadata" in line
    assert not (data / "metadata.db").exists()


def test_without_uvloop_the_loop_of_the_standard_library_serves(tmp_path: Path) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "uvloop.py").write_text("raise ImportError('not for this system')")
    path = os.pathsep.join([str(tmp_path / "blocked"), SOURCE])
    with serving(tmp_path, PYTHONPATH=path) as served:
        assert ask(served.ports["tcp"], rustlog.Ping())[0] == 0xFF
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == (0, "")


def test_settings_reach_the_server(tmp_path: Path) -> None:
    flags = ("--set", "limits.connections=123", "--log-level", "error")
    with serving(tmp_path, *flags, PENSTOCK__RUSTLOG__TOPICS="a:2") as served:
        _, metrics = served.http("/metrics")
        assert b"penstock_connections_limit 123.0" in metrics
        assert b"penstock_partitions 2.0" in metrics
        assert json.loads(served.http("/healthz")[1]) == {"status": "ok"}
