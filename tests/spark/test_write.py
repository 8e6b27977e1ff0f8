"""Writes: columns, topics, and every row once, whatever is done twice."""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from kit.live_server import LiveServer
from pyspark.sql.types import StringType, StructType
from spark.conftest import KEY, Load, Make, append, numbers, options, run_now

from penstock.client.errors import Refused
from penstock.client.flight import FlightClient
from penstock.spark.connection import Connection
from penstock.spark.options import write_options
from penstock.spark.writers import (
    PenstockWriter,
    Staged,
    WriteRefused,
    task_number,
    telling_others,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(server: LiveServer, frame: "DataFrame", **given: object) -> None:
    frame.write.format("penstock").options(**options(server, **given)).mode("append").save()


def stored(client: FlightClient, topic: str, partition: int | None = None) -> list[bytes]:
    found: list[bytes] = client.read(topic, partition=partition).read_all()["value"].to_pylist()
    return found


def test_columns(
    spark: "SparkSession", server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(f"{topic}.a", [], [])
    make(f"{topic}.b")
    frame = spark.createDataFrame(
        [
            ("k", "one", f"{topic}.a", 1, [("h", bytearray(b"1"))], 3.5),
            (None, "two", f"{topic}.b", None, None, 4.5),
        ],
        "key STRING, Value STRING, topic STRING, partition INT,"
        " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, other DOUBLE",
    )
    save(server, frame)
    (row,) = client.read(f"{topic}.a", headers=True).read_all().to_pylist()
    assert (row["key"], row["value"], row["partition"]) == (b"k", b"one", 1)
    assert row["headers"] == [{"key": "h", "value": b"1"}]
    assert stored(client, f"{topic}.b") == [b"two"]
    # The option wins over the column.
    save(server, frame.drop("partition"), topic=f"{topic}.b")
    assert sorted(stored(client, f"{topic}.b")) == [b"one", b"two", b"two"]


def test_a_null_value_is_written_as_null(
    spark: "SparkSession",
    load: Load,
    server: LiveServer,
    client: FlightClient,
    topic: str,
    make: Make,
) -> None:
    """A deletion mark, and not an empty value; it is null for whoever reads it."""
    make(topic)
    rows = [("gone", None), ("empty", ""), ("kept", "v")]
    save(server, spark.createDataFrame(rows, "key STRING, value STRING"), topic=topic)
    found = client.read(topic).read_all().to_pylist()
    assert {row["key"]: row["value"] for row in found} == {
        b"gone": None, b"empty": b"", b"kept": b"v",
    }  # fmt: skip
    read = load(subscribe=topic).collect()
    assert [bytes(row["key"]) for row in read if row["value"] is None] == [b"gone"]


def test_a_copy_keeps_partitions_and_order(
    load: Load, server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(f"{topic}.from", numbers(0, 500), numbers(500, 800))
    make(f"{topic}.to", [], [])
    # Many tasks, which end in any order.
    frame = load(subscribe=f"{topic}.from", maxRecordsPerPartition=60)
    save(server, frame, topic=f"{topic}.to")
    assert stored(client, f"{topic}.to", 0) == numbers(0, 500)
    assert stored(client, f"{topic}.to", 1) == numbers(500, 800)


def test_a_named_transaction_is_written_once(
    spark: "SparkSession", server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic)
    frame = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        save(server, frame, topic=topic, transaction=topic)
    assert sorted(stored(client, topic)) == [b"0", b"1", b"2", b"3", b"4"]


def test_another_write_under_a_committed_name_is_refused(
    spark: "SparkSession", server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic)
    save(
        server,
        spark.range(5).selectExpr("CAST(id AS STRING) AS value"),
        topic=topic,
        transaction=topic,
    )
    more = spark.range(7).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(
        Exception, match="is committed with 5 rows, and this write of the same name has 7"
    ):
        save(server, more, topic=topic, transaction=topic)
    assert len(stored(client, topic)) == 5


def test_a_batch_that_is_planned_anew_is_refused(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, topic: str, tmp_path: Path
) -> None:
    """The offsets of a batch that was written are lost: planned again, it reaches further."""
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 20))
    make(target)
    frame = stream(subscribe=source, startingOffsets="earliest")
    given = options(server, topic=target)
    run_now(frame, tmp_path / "check", "penstock", **given)
    forget_last_commit(tmp_path / "check")
    for name in ("0", ".0.crc"):
        (tmp_path / "check" / "offsets" / name).unlink()
    append(client, source, 0, numbers(20, 30))
    with pytest.raises(
        Exception, match="is committed with 20 rows, and this write of the same name"
    ):
        run_now(frame, tmp_path / "check", "penstock", **given)
    assert stored(client, target) == numbers(0, 20)


def test_a_start_of_a_query_fences_those_before_it(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, topic: str, tmp_path: Path
) -> None:
    """As if a driver went on that was paused while another one took over."""
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 2))
    make(target)
    runs = []
    for number in range(2):
        append(client, source, 0, numbers(10 * number, 10 * number + 1))
        writer = stream(subscribe=source, startingOffsets="earliest").writeStream.format("penstock")
        query = (
            writer.options(**options(server, topic=target))
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(HANG_S))
        runs.append(str(query.runId))
    series = f"spark-{query.id}"
    taken_over = "another start of this query has taken over"
    with pytest.raises(WriteRefused, match=taken_over), telling_others("x"):
        client.begin_transaction(f"{series}-77", 60, (series, runs[0]))
    with pytest.raises(Refused, match="was followed by"):
        client.commit_transaction(f"{series}-77", {}, 0, (series, runs[0]))
    assert not client.begin_transaction(f"{series}-77", 60, (series, runs[1])).committed
    client.abort(f"{series}-77")


def test_who_comes_too_late_is_told_so(client: FlightClient, make: Make, topic: str) -> None:
    make(topic)
    client.begin(topic, 60)
    client.commit_transaction(topic, {})
    rows = pa.table({"value": pa.array([b"x"], pa.binary())})
    done = "another driver has done this batch: transaction"
    with pytest.raises(WriteRefused, match=done), telling_others(topic):
        client.stage(topic, 1, topic, rows)


def test_an_abort_of_what_is_committed_says_so(
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(topic)
    client.begin(topic, 60)
    client.commit_transaction(topic, {})
    texts = options(server, topic=topic, transaction=topic)
    schema = StructType().add("value", StringType())
    with caplog.at_level(logging.INFO, "penstock.spark.writers"):
        PenstockWriter(
            write_options(texts, streaming=False), Connection(texts["server"], KEY), schema
        ).abort([])
    assert caplog.messages == [f"transaction {topic} is committed and stands"]


def test_a_write_that_is_skipped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    messages = [Staged("t", task, 2, 0, True, 4) for task in range(2)]
    staging = PenstockWriter(
        write_options({"server": "nowhere:1", "topic": "t"}, streaming=False),
        Connection("nowhere:1"),
        StructType().add("value", StringType()),
    )
    staging.commit(messages)
    assert "its 4 rows are not written again" in caplog.text
    with pytest.raises(WriteRefused, match="with 4 rows, and this write of the same name has 2"):
        staging.commit(messages[:1])


def test_nothing_of_a_failed_job_is_seen(
    spark: "SparkSession", server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic)
    frame = spark.range(0, 40_000, 1, 2).selectExpr(
        "IF(id = 39999, raise_error('broken'), CAST(id AS STRING)) AS value"
    )
    with pytest.raises(Exception, match="broken"):
        save(server, frame, topic=topic)
    assert client.offsets(topic) == [(0, 0)]


def test_an_empty_frame(
    spark: "SparkSession", server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic)
    save(server, spark.createDataFrame([], "value STRING"), topic=topic)
    assert client.offsets(topic) == [(0, 0)]


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between the commit of the sink and its own note of it."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()


def test_a_repeated_batch_is_written_once(
    stream: Load, server: LiveServer, client: FlightClient, make: Make, topic: str, tmp_path: Path
) -> None:
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 30), numbers(30, 50))
    make(target, [], [])
    frame = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    given = options(server, topic=target)
    run_now(frame, tmp_path / "check", "penstock", **given)
    assert stored(client, target, 0) == numbers(0, 30)
    for _ in range(2):
        forget_last_commit(tmp_path / "check")
        assert sum(run_now(frame, tmp_path / "check", "penstock", **given)) == 10
    append(client, source, 0, numbers(50, 55))
    run_now(frame, tmp_path / "check", "penstock", **given)
    assert stored(client, target, 0) == numbers(0, 30) + numbers(50, 55)
    assert stored(client, target, 1) == numbers(30, 50)
    # Another query has other transactions: it writes everything again.
    shutil.rmtree(tmp_path / "check")
    run_now(frame, tmp_path / "check", "penstock", **given)
    assert len(stored(client, target)) == 110


@pytest.mark.parametrize(
    ("frame", "given", "mode", "complaint"),
    [
        ("id AS other", {"topic": "t"}, "append", "column value is missing"),
        ("'a' AS value", {}, "append", "option topic, or give a column topic"),
        ("id AS value", {"topic": "bad-value"}, "append", "column value is bigint: cast it to str"),
        ("id AS key, 'a' AS value", {"topic": "t"}, "append", "column key is bigint: cast it"),
        ("'a' AS value, id AS topic", {}, "append", "column topic is bigint: cast it to string"),
        ("'a' AS value, 'h' AS headers", {"topic": "t"}, "append", "column headers is string"),
        ("'a' AS value", {"kafka.bootstrap.servers": "x"}, "append", "is called server here"),
        ("'a' AS value", {"topic": "nowhere"}, "append", "no topic named 'nowhere'"),
        ("'a' AS value, 9 AS partition", {"topic": "bad-value"}, "append", "no partition 9"),
        ("'a' AS value, '1' AS partition", {"topic": "t"}, "append", "column partition is string"),
        (
            "'a' AS value, 'b' AS VALUE",
            {"topic": "t"},
            "append",
            r"more than once \(value, VALUE\)",
        ),
        ("'a' AS value", {"topic": "t", "topics": "t"}, "append", "topics: is unknown; did you"),
        ("'a' AS value", {"topic": "t"}, "overwrite", "a topic only grows"),
    ],
)
def test_what_cannot_be_written(
    spark: "SparkSession",
    server: LiveServer,
    client: FlightClient,
    make: Make,
    frame: str,
    given: dict[str, str],
    mode: str,
    complaint: str,
) -> None:
    if "bad-value" not in client.topics():
        make("bad-value")
    writer = spark.range(3).selectExpr(*frame.split(", ")).write.format("penstock")
    with pytest.raises(Exception, match=complaint):
        writer.options(**options(server, **given)).mode(mode).save()
    assert client.offsets("bad-value") == [(0, 0)]


def test_only_the_attempts_that_the_commit_names_count(
    client: FlightClient, make: Make, topic: str
) -> None:
    """A speculative attempt, one that died half-way, and those of a driver that is gone."""
    make(topic)

    def rows(*values: bytes) -> pa.Table:
        return pa.table({"value": pa.array(values, pa.binary())})

    assert client.begin(topic, 60)
    client.stage(topic, 1 << 40 | 5, topic, rows(b"b"))
    client.stage(topic, 0 << 40 | 9, topic, rows(b"a"))
    client.stage(topic, 0 << 40 | 7, topic, rows(b"a"))
    client.stage(topic, 1 << 40 | 6, topic, rows(b"half of it"))
    assert client.offsets(topic) == [(0, 0)]
    for _ in range(2):
        client.commit_transaction(topic, [1 << 40 | 5, 0 << 40 | 9])
    assert stored(client, topic) == [b"a", b"b"]
    assert not client.begin(topic, 60)
    client.begin(f"{topic}.given-up", 60)
    client.stage(f"{topic}.given-up", 1, topic, rows(b"x"))
    client.abort(f"{topic}.given-up")
    assert stored(client, topic) == [b"a", b"b"]


def test_numbers_of_tasks_are_never_the_same_twice() -> None:
    assert len({task_number() for _ in range(1000)}) == 1000
