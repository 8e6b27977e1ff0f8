"""Results in update mode by foreachBatch, exactly once; the lag that listeners are told; tables of SQL."""

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.limits import HANG_S
from kit.live_server import LiveServer
from spark.conftest import KEY_VARIABLE, Load, Make, append, numbers, options, run_now
from spark.test_write import forget_last_commit, stored

from penstock.client.errors import Refused
from penstock.client.flight import FlightClient
from penstock.spark.each_batch import TopicWriter
from penstock.spark.listener import LagListener, QueryLag, lags
from penstock.spark.options import OptionError
from penstock.spark.versions import LIMITS_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EARLIEST = {"startingOffsets": "earliest"}


def run_each(frame: "DataFrame", check: Path, writer: TopicWriter) -> str:
    """Gives the id of this start of the query."""
    query = (
        frame.writeStream.outputMode("update")
        .foreachBatch(writer)
        .option("checkpointLocation", str(check))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(int(HANG_S)), "the query did not end"
        return str(query.runId)
    finally:
        query.stop()


def test_results_in_update_mode_are_written_once(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, topic: str, tmp_path: Path
) -> None:
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, [b"a", b"b", b"a"])
    make(target)
    counts = (
        stream(subscribe=source, **EARLIEST)
        .groupBy("value")
        .count()
        .selectExpr("value AS key", "CAST(count AS STRING) AS value")
    )

    runs = []

    def run(check: str = "check") -> list[bytes]:
        writer = TopicWriter(str(tmp_path / check), **options(server, topic=target))
        runs.append(run_each(counts, tmp_path / check, writer))
        rows = client.read(target).read_all().to_pylist()
        return sorted(row["key"] + b"=" + row["value"] for row in rows)

    assert run() == [b"a=2", b"b=1"]
    # The driver has died before it noted that the batch is done: it is done again.
    forget_last_commit(tmp_path / "check")
    assert run() == [b"a=2", b"b=1"]
    append(client, source, 0, [b"a"])
    assert run() == [b"a=2", b"a=3", b"b=1"]
    # A new checkpoint is a new query: its batch 0 is another one.
    assert run("other") == [b"a=2", b"a=3", b"a=3", b"b=1", b"b=1"]
    if (
        os.environ.get("SPARK_KIND") != "connect"
    ):  # there tasks are not told of which query they are
        series = f"spark-{json.loads((tmp_path / 'check' / 'metadata').read_text())['id']}"
        with pytest.raises(Refused, match="was followed by"):
            client.begin_transaction(f"{series}-x-1", 60, (series, runs[0]))


def test_wrong_options_are_told_at_once(server: LiveServer) -> None:
    with pytest.raises(OptionError, match="topic2: is unknown; did you mean topic"):
        TopicWriter("/somewhere", server="x:1", topic2="t")


def test_the_checkpoint_must_be_that_of_the_query(
    stream: Load, server: LiveServer, make: Make, topic: str, tmp_path: Path
) -> None:
    make(topic, numbers(0, 1))
    writer = TopicWriter(str(tmp_path / "another"), **options(server, topic=topic))
    with pytest.raises(Exception, match="holds no id of a query"):
        run_each(stream(subscribe=topic, **EARLIEST).select("value"), tmp_path / "check", writer)


def test_lag_of_a_query(
    spark: "SparkSession", stream: Load, make: Make, topic: str, tmp_path: Path
) -> None:
    make(topic, numbers(0, 30), numbers(30, 40))
    told: list[QueryLag] = []
    done = threading.Event()

    def tell(lag: QueryLag) -> None:
        if any(one.topic == topic for one in lag.partitions):
            told.append(lag)
            done.set()

    listener = LagListener(tell)
    spark.streams.addListener(listener)
    try:
        frame = stream(subscribe=topic, maxOffsetsPerTrigger=16, **EARLIEST)
        run_now(frame, tmp_path / "check")
        assert done.wait(HANG_S)
    finally:
        spark.streams.removeListener(listener)
    first = told[0]
    assert (first.batch, {one.partition for one in first.partitions}) == (0, {0, 1})
    if LIMITS_BATCHES:
        assert first.lag == 40 - 16
        assert f"lag 24 ({topic}/0 18, {topic}/1 6)" in str(first)


def test_lag_of_the_progress_of_other_sources() -> None:
    foreign = {"endOffset": json.dumps({"logOffset": 3}), "latestOffset": None}
    rate = {"endOffset": "17", "latestOffset": None}
    assert list(lags({"id": "q", "name": None, "batchId": 0, "sources": [foreign, rate]})) == []


def test_a_table_of_sql(
    spark: "SparkSession",
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    make(topic, numbers(0, 3))
    name = topic.replace("-", "_")
    given = options(server, subscribe=topic, keyEnv=KEY_VARIABLE)
    del given["accessKey"]
    pairs = ", ".join(f"'{key}' '{value}'" for key, value in given.items())
    spark.sql(f"CREATE TABLE {name} USING penstock OPTIONS ({pairs}) COMMENT 'of a test'")
    try:
        (row,) = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE partition = 0").collect()
        assert row.n == 3
        rows = spark.read.table(name).select("value")
        rows.write.format("penstock").options(**options(server, topic=topic)).mode("append").save()
        assert stored(client, topic) == numbers(0, 3) * 2
        assert sum(run_now(spark.readStream.table(name), tmp_path / "check")) == 0
    finally:
        spark.sql(f"DROP TABLE {name}")
