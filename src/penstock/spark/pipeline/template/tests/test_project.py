"""Whether Spark can run the project: `pytest` in its directory, with a broker running."""

import subprocess
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_the_project_can_run() -> None:
    done = subprocess.run(
        ["penstock", "pipeline", "run", str(PROJECT), "--dry-run"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
