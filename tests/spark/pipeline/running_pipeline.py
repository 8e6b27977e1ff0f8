"""`penstock pipeline run --continuous --json` as a process: one JVM for all tests of a module."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.limits import HANG_S
from kit.live_server import MAIN, SOURCES
from spark.conftest import KEY, QUICK_JVM

# Small and quiet, and patient with a slow machine; see tests/spark/conftest.py.
QUICK = f"""
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions {QUICK_JVM}
spark.network.timeout 600s
spark.python.authenticate.socketTimeout 300s
"""


def environment() -> dict[str, str]:
    given = {**os.environ, "PYTHONPATH": SOURCES, "PENSTOCK_KEY": KEY}
    return {**given, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1"}


def command(*words: str, python: str = sys.executable) -> list[str]:
    return [python, "-c", MAIN, *words]


def make_quick(project: Path) -> None:
    with (project / "conf" / "spark-defaults.conf").open("a") as file:
        file.write(QUICK)


class RunningPipeline:
    """Updates follow each other; `wait` gives the first one that fits."""

    def __init__(
        self,
        project: Path,
        flight: str,
        *words: str,
        python: str = sys.executable,
        **variables: str,
    ) -> None:
        self.project = project
        given = ["pipeline", "run", str(project), "--continuous", "--json", "--flight", flight]
        self.process = subprocess.Popen(
            command(*given, *words, python=python),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), **variables},
            process_group=0,
        )
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(json.loads(line))
        self._told.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def wait(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            told = self._told.get(timeout=HANG_S)
            assert told is not None, f"the pipeline ended: {''.join(self._errors)}"
            if fits(told):
                return told

    def wait_rows(self, **rows: int) -> dict[str, Any]:
        """Until these tables have so many rows."""

        def fits(told: dict[str, Any]) -> bool:
            tables = told.get("tables", {})
            return all(tables.get(name, {}).get("rows") == rows[name] for name in rows)

        return self.wait(fits)

    def until(self, holds: Callable[[], bool]) -> None:
        """Until something holds, which is looked at now and after each update."""
        if not holds():
            self.wait(lambda told: holds())

    def complaints(self) -> str:
        return "".join(self._errors)

    def __enter__(self) -> Self:
        return self

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)
        for thread in self._threads:
            thread.join(HANG_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
