"""The same tests over Spark Connect and on a standalone cluster: here some of them, all in `make soak`.

In a process of their own for each kind: a Python process has either a classic session or one of Spark
Connect. Nothing in these files is local by nature, so nothing is left out.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.live_server import SOURCES

HERE = Path(__file__).parent
KINDS = ["connect", "cluster"]
ALL = (
    "test_batch.py",
    "test_stream.py",
    "test_write.py",
    "test_docs.py",
    "test_keys.py",
    "test_bad_input.py",
    "test_properties.py",
    "test_typed.py",
    "test_each_batch.py",
)
# Reading, streaming, writing, errors. All takes two to three minutes for each kind.
SOME = (
    "test_batch.py::test_columns",
    "test_batch.py::test_which_topics",
    "test_stream.py::test_batches_of_a_limited_size",
    "test_write.py::test_a_copy_keeps_partitions_and_order",
    "test_write.py::test_a_named_transaction_is_written_once",
    "test_write.py::test_nothing_of_a_failed_job_is_seen",
    "test_typed.py::test_a_running_query_keeps_its_columns",
    "test_each_batch.py::test_results_in_update_mode_are_written_once",
    "test_keys.py::test_a_key_is_nowhere_to_be_seen[accessKey]",
    "test_bad_input.py::test_nobody_is_there",
    "test_bad_input.py::test_the_server_goes_away_during_a_query",
)
# All tests of one kind together. Each of them has the limit of pyproject.toml besides.
RUN_S = 12 * HANG_S


def run(kind: str, tests: Iterable[str]) -> None:
    names = [str(HERE / name) for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", *names]
    environment = {
        **os.environ,
        "SPARK_KIND": kind,
        "PYTHONPATH": f"{SOURCES}:{HERE.parent}",
    }
    with subprocess.Popen(
        command,
        cwd=HERE.parent.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            # Not killed: it has servers to end.
            child.send_signal(signal.SIGINT)
            output, _ = child.communicate(timeout=HANG_S)
    assert child.returncode == 0, output[-4000:]


@pytest.mark.timeout(RUN_S + HANG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_some(kind: str) -> None:
    run(kind, SOME)


@pytest.mark.soak
@pytest.mark.timeout(RUN_S + HANG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_everything(kind: str) -> None:
    run(kind, ALL)
