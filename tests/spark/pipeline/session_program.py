"""What one_session.py starts: reads one JSON object a line, does it in one Spark session, and answers
with one."""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.running.refresh import emptied
from penstock.spark.pipeline.running.run import Settings, configuration
from penstock.spark.pipeline.running.updates import run_update
from penstock.spark.pipeline.selection import Selection
from penstock.spark.pipeline.session import PipelineSession, open_session
from penstock.spark.pipeline.upkeep.between_updates import look_after


def main() -> None:
    """The answers go to the standard output of the beginning: Spark prints into the log of the project."""
    answers = sys.stdout
    project = load_project(Path(sys.argv[1]))
    session: PipelineSession | None = None

    def opened() -> PipelineSession:
        nonlocal session
        if session is None:
            session = open_session(project, configuration(project, Settings()))
        return session

    def update(selection: dict[str, Any]) -> list[str]:
        spark = opened().spark
        with emptied(project, Selection(**selection)) as wanted:
            return run_update(spark, project, wanted, log=str(project.log_path)).notes

    def sql(text: str) -> list[list[Any]]:
        return [[_plain(value) for value in row] for row in opened().spark.sql(text).collect()]

    def version() -> str:
        return str(opened().spark.version)

    def keep(today: str) -> list[str]:
        return look_after(project, date.fromisoformat(today), opened().spark)

    known: dict[str, Callable[..., Any]] = {
        "update": update,
        "sql": sql,
        "version": version,
        "keep": keep,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = {"answer": known[asked.pop("do")](**asked)}
        except Exception as error:  # whatever it is, the test is told
            told = {"error": str(error)}
            traceback.print_exc()
        answers.write(json.dumps(told) + "\n")
        answers.flush()
    if session is not None:
        session.stop()


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return (
        value.decode()
        if isinstance(value, bytes | bytearray)
        else (value.isoformat() if isinstance(value, date) else value)
    )


if __name__ == "__main__":
    main()
