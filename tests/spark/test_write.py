"""Writes: columns, topics, and every row once, whatever is done twice."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.live_server import LiveServer
from spark.conftest import Load, Make, append, numbers, options, run_now

from penstock.client.flight import FlightClient
from penstock.spark.writers import task_number

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
        ("id AS value", {}, "append", "option topic, or give a column topic"),
        ("id AS value", {"topic": "bad-value"}, "append", "column value is int64"),
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
