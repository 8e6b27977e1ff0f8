"""Two attempts of a task at the same time: only the one that Spark chooses counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.restarting import RestartingServer
from spark.cluster import Cluster, environment
from spark.conftest import KEY, QUICK_JVM, spark_settings

from penstock.client.flight import connect

SCRIPT = Path(__file__).with_name("speculation_job.py")
TASKS = 4
# Of each task more than is staged at once: the attempt that hangs leaves something behind.
ROWS = TASKS * 200_000


@pytest.mark.soak
def test_a_speculative_attempt_wins(tmp_path: Path) -> None:
    # Spark starts no second attempt on a machine that has the first one.
    hosts = ("127.0.0.1", "127.0.0.2")
    os.mkfifo(tmp_path / "gate")
    with (
        RestartingServer(tmp_path / "data") as broker,
        Cluster(tmp_path / "cluster", hosts) as cluster,
    ):
        settings = {
            **spark_settings(tmp_path),
            "spark.master": cluster.url,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
        }
        job = {
            "server": broker.address,
            "directory": str(tmp_path),
            "rows": ROWS,
            "tasks": TASKS,
            "settings": settings,
        }
        done = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(job)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / "second").read_text() != "0", "there was no second attempt"
        with connect(broker.address, KEY) as client:
            found = client.read("to").read_all()["value"].to_pylist()
        assert found == [b"%d" % number for number in range(ROWS)]
        assert broker.staged_bytes() == 0
