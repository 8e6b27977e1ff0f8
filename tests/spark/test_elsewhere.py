"""The same tests over Spark Connect and on a standalone cluster: here a few of them, all in `make soak`.

In a process of their own: a Python process has either a classic session or one of Spark Connect.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.live_server import SOURCES

HERE = Path(__file__).parent
ALL = ["test_batch.py", "test_stream.py", "test_write.py", "test_docs.py"]
FEW = "which_topics or limited_size or order or named_transaction"


def run(kind: str, words: list[str], timeout_s: float) -> None:
    files = [str(HERE / name) for name in ALL]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "120", *files, *words]
    environment = {
        **os.environ,
        "SPARK_KIND": kind,
        "PYTHONPATH": f"{SOURCES}:{HERE.parent}",
    }
    done = subprocess.run(
        command,
        check=False,
        cwd=HERE.parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(180)
def test_connect_basics() -> None:
    run("connect", ["-k", FEW], 170)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["connect", "cluster"])
def test_everything(kind: str) -> None:
    run(kind, [], 880)
