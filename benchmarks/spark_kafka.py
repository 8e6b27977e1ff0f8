"""Spark's own Kafka source beside ours: the same rows in four partitions of each broker, the same session,
the order changing from round to round. `spark_kafka_job.py` runs in the PySpark that has that source.

Both brokers run all the time, with their defaults; one of them is idle while the other is used. Kafka
leaves what it takes to the page cache and its sink may write rows twice; ours is flushed, and written once.
"""

import json
import os
import subprocess
from pathlib import Path

from benchmarks.broker_servers import penstock
from benchmarks.kafka_server import PYSPARK, Missing, kafka, other_python, source_jars
from benchmarks.spark_bench import KEY, ROOT
from benchmarks.table import Table, median

VALUE_BYTES = 100
WORKS = {
    "batch": "a batch, to a sink that keeps nothing",
    "parquet": "a batch, to Parquet",
    "stream": "a stream of all there is, in batches of a tenth",
    "write": "write, the rows from memory",
}


def table(directory: Path, rows: int, rounds: int) -> Table:
    """Without the jars, or the PySpark for them, a table that says so."""
    try:
        found = _measured(directory, rows, rounds)
    except Missing as missing:
        return Table(f"Spark, Kafka's own source beside ours: left out, {missing}")
    title = f"Spark {PYSPARK}, {rows:,} rows of {VALUE_BYTES} bytes, Kafka's own source beside ours"
    made = Table(f"{title}, {rounds} rounds")
    for work, name in WORKS.items():
        theirs, ours = (rows / median(found[f"{work} {whose}"]) for whose in ("kafka", "penstock"))
        made.add(f"Kafka: {name}", theirs, "rows/s")
        made.compare(f"ours: {name}", ours, "rows/s", theirs, 0)
    return made


def _measured(directory: Path, rows: int, rounds: int) -> dict[str, list[float]]:
    jars, python = source_jars(), other_python()
    with (
        kafka(directory / "kafka") as broker,
        penstock(directory / "data", flight="127.0.0.1:0") as server,
    ):
        given = {
            "jars": ",".join(map(str, jars)),
            "kafka": f"127.0.0.1:{broker.ports['kafka']}",
            "flight": f"127.0.0.1:{server.ports['flight']}",
            "http": server.ports["http"],
            "key": KEY,
            "rows": rows,
            "rounds": rounds,
            "valueBytes": VALUE_BYTES,
            "directory": str(directory / "spark"),
        }
        done = subprocess.run(
            [python, "-m", "benchmarks.spark_kafka_job", json.dumps(given)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYSPARK_PYTHON": python},
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Missing(f"the job failed: {last}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found
