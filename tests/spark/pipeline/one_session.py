"""One Spark session in a process of its own, which runs updates and questions one after the other: a
project between two updates is as still as with one process for each, and there is one JVM.

Runs with any Python that has what a pipeline needs; `session_program.py` is what it starts.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.limits import HANG_S
from kit.live_server import SOURCES
from spark.conftest import KEY
from spark.pipeline.running_pipeline import make_quick

from penstock.spark.pipeline.starter import write_project

PROGRAM = Path(__file__).with_name("session_program.py")


def bronze_project(
    directory: Path, flight: str, table_format: str = "parquet", *, views: bool = False
) -> Path:
    """One that lands topics and, without `views`, does nothing else."""
    write_project(directory, only_bronze=True, table_format=table_format)
    if not views:
        (directory / "transformations" / "traffic.sql").unlink()
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("127.0.0.1:8815", flight))
    make_quick(directory)
    return directory


class Refused(AssertionError):
    """What the update failed with, as a user would read it."""


class OneSession:
    def __init__(
        self,
        project: Path,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        given = dict(os.environ if variables is None else variables)
        given |= {"PYTHONPATH": SOURCES, "PENSTOCK_KEY": KEY, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._log = project.parent / f"{project.name}.session.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [python, str(PROGRAM), str(project)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**given, "PYTHONDONTWRITEBYTECODE": "1"},
                process_group=0,
            )

    def _ask(self, **what: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        watch = threading.Timer(HANG_S, self.process.kill)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        assert line, f"the session ended: {self._log.read_text()[-4000:]}"
        told = json.loads(line)
        if "error" in told:
            raise Refused(told["error"])
        return told["answer"]

    def update(self, **selection: Any) -> list[str]:
        """Gives its notes. Raises Refused."""
        notes: list[str] = self._ask(do="update", selection=selection)
        return notes

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._ask(do="sql", text=sql)]

    def keep(self, today: str) -> list[str]:
        """As after an update of that day; gives what it told."""
        told: list[str] = self._ask(do="keep", today=today)
        return told

    def version(self) -> str:
        return str(self._ask(do="version"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)
        self.process.stdout.close()
