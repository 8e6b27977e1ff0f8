"""The child beside the broker: started again when it dies, told to stop, and never in the way."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.running_server import make_server

from penstock.server.pipeline_host import PipelineChild, PipelineHost

STOPS = """
import signal, sys, json
def stop(number, frame):
    open(sys.argv[1], "a").write("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print(json.dumps({"update": 1, "notes": ["a note"]}), flush=True)
signal.pause()
"""
STUBBORN = """
import signal, json, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(json.dumps({"update": 1, "pid": child.pid}), flush=True)
signal.pause()
"""
DIES = """
import sys
open(sys.argv[1], "a").write("x")
print("a line of somebody else", file=sys.stderr)
print("penstock: no such thing", file=sys.stderr)
print("y" * (2 << 20))
sys.exit(1)
"""


def host(script: str, place: Path) -> PipelineHost:
    return PipelineHost([sys.executable, "-c", script, str(place)], first_backoff_s=0.001)


def run(work: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), HANG_S))


async def until(fits: Callable[[], object]) -> None:
    """Child processes give no event for what they write into files."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HANG_S
    while not fits():
        assert loop.time() < deadline
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02)


def test_a_stop_lets_it_end(tmp_path: Path) -> None:
    async def work() -> None:
        child = host(STOPS, tmp_path / "said")
        child.start()
        await until(lambda: child.last_update)
        assert child.last_update == {"update": 1, "notes": ["a note"]}
        await child.stop(HANG_S)
        assert child.pid is None and child.restarts == 0

    run(work)
    assert (tmp_path / "said").read_text() == "stopped"


def test_one_that_does_not_end_is_cut_off_with_all_it_started(tmp_path: Path) -> None:
    async def work() -> None:
        child = host(STUBBORN, tmp_path)
        child.start()
        await until(lambda: child.last_update)
        await child.stop(0.01)
        grandchild = Path(f"/proc/{child.last_update['pid']}")
        await until(lambda: not grandchild.exists() or " Z " in (grandchild / "stat").read_text())

    run(work)


def test_one_that_dies_is_started_again_and_its_last_error_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts = tmp_path / "starts"

    async def work() -> None:
        child = host(DIES, starts)
        child.start()
        await until(lambda: child.restarts >= 3)
        await child.stop(HANG_S)

    with caplog.at_level(logging.ERROR):
        run(work)
    assert len(starts.read_text()) >= 3
    assert "the pipeline ended: no such thing; it starts again in" in caplog.text


def test_a_program_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        child = PipelineHost([str(tmp_path / "none")], first_backoff_s=0.001)
        child.start()
        await until(lambda: child.restarts >= 1)
        await child.stop(HANG_S)

    with caplog.at_level(logging.ERROR):
        run(work)
    assert "No such file or directory" in caplog.text


def test_a_server_with_a_pipeline(tmp_path: Path) -> None:
    """The child gets the address of Flight, ends before the broker, and is named in the banner."""
    said: list[str] = []

    async def work() -> None:
        child = PipelineChild(
            lambda flight: [sys.executable, "-c", STOPS, str(tmp_path / f"said-{flight}")],
            "x/tables",
        )
        server = make_server(tmp_path / "data", listeners__flight="127.0.0.1:0")
        server._pipeline_child = child
        server._say = said.append
        await server.start()
        try:
            assert server.pipeline is not None
            running = server.pipeline
            await until(lambda: running.last_update)
        finally:
            await server.stop()
        port = server.listeners["flight"].address.port
        assert (tmp_path / f"said-127.0.0.1:{port}").read_text() == "stopped"

    run(work)
    assert "  tables  x/tables" in said[0]


def test_without_flight_the_broker_runs_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        server = make_server(tmp_path / "data", listeners__flight="off")
        server._pipeline_child = PipelineChild(lambda flight: ["false"], "x/tables")
        await server.start()
        assert server.pipeline is None
        await server.stop()

    with caplog.at_level(logging.ERROR):
        run(work)
    assert "no pipeline: it reads over Flight, and listeners.flight is off" in caplog.text


def test_without_java_one_line_and_the_broker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.pipeline_child import pipeline_child

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert pipeline_child(tmp_path / "project") is None
    text = capsys.readouterr().err
    assert text.startswith("penstock: the broker runs without a pipeline: Spark needs Java 17")
    assert text.count("\n") == 1 and not os.listdir(tmp_path)
