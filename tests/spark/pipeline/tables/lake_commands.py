"""Commands of `penstock` in an environment that has another PySpark than the tests."""

import json
from pathlib import Path
from typing import Any

from kit.environments import Environment, run
from kit.limits import HANG_S
from kit.live_server import MAIN, SOURCES
from spark.conftest import KEY


def command(environment: Environment, *words: str) -> str:
    return run(
        [environment.python, "-c", MAIN, *words],
        environment.variables(PYTHONPATH=SOURCES, PENSTOCK_KEY=KEY, SPARK_LOCAL_IP="127.0.0.1"),
        HANG_S,
    )


def rows(environment: Environment, project: Path, table: str) -> list[dict[str, Any]]:
    """All of a small table, read without Spark."""
    words = ["table", table, "--project", str(project), "--json", "-n", "9999"]
    return [json.loads(line) for line in command(environment, *words).splitlines()]
