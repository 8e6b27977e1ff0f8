"""`penstock report` as a process, with a JVM of its own: a broker that was used, one command, one page."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from kit.live_server import MAIN, LiveServer
from spark.conftest import FLIGHT, KEY, address, spark_environment

from penstock.client.flight import connect


def penstock(
    directory: Path, server: LiveServer, *words: str
) -> "subprocess.CompletedProcess[str]":
    given = {**os.environ, **spark_environment(), "PENSTOCK_KEY": KEY, "TMPDIR": str(directory)}
    given["PENSTOCK_HTTP"] = f"http://127.0.0.1:{server.port('http')}"
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=directory,
        env=given,
    )


@pytest.mark.timeout(1800)
def test_a_page_of_what_was_sent(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with LiveServer(tmp_path / "data", FLIGHT) as server:
        with connect(address(server), KEY) as client:
            values = pa.table({"value": [b"x" * 100] * 1_000, "key": [b"hot"] * 1_000})
            client.write("orders", values, create=True)
            client.commit("billing", "orders", {0: 400})
        refused = penstock(work, server, "topic", "ls", "--key", "wrong")
        assert refused.returncode == 5
        failed = penstock(
            work, server, "report", "--flight", address(server), "--master", "nonsense"
        )
        done = penstock(
            work,
            server,
            "report",
            "--from",
            "earliest",
            "--flight",
            address(server),
            "-o",
            "r.html",
        )
    assert failed.returncode == 1
    (log,) = work.glob("penstock-report-*.log")
    said = failed.stderr.splitlines()[-1]
    assert said.startswith("penstock: ") and said.endswith(f"; all that Spark said is in {log}")
    log.unlink()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("starting Spark; ")
    assert last.startswith("r.html: 1,000 records of 1 topic, read in ")
    # No log, no half of a page, nothing of Spark.
    assert [path.name for path in work.iterdir()] == ["r.html"]
    page = (work / "r.html").read_text()
    for part in (">orders<", ">hot<", ">billing<", ">600<", ">flight<", ">auth.failure, "):
        assert part in page, part
