"""Batch reads: columns, ranges, times, splits, and ends that stay where planning put them."""

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.live_server import LiveServer
from spark.conftest import Load, Make, append, numbers, options, values

from penstock.client.flight import FlightClient
from penstock.spark.batch_reader import plan
from penstock.spark.options import OptionError, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_columns(load: Load, client: FlightClient, topic: str) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    data = pa.table({"value": [b"a", b""], "key": [None, b"k"], "headers": headers})
    deleted = pa.table({"value": pa.nulls(1, pa.binary()), "key": [b"k"]})
    client.write(topic, data, create=True)
    client.write(topic, deleted)
    frame = load(subscribe=topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    first, second, third = frame.orderBy("offset").collect()
    assert (first.key, bytes(first.value), first.topic) == (None, b"a", topic)
    assert (bytes(second.key), bytes(second.value), second.offset) == (b"k", b"", 1)
    assert (bytes(third.key), third.value, third.offset) == (b"k", None, 2)
    assert (second.partition, second.timestampType) == (0, 1)
    (stored,) = client.read(topic, end=1).read_all().column("timestamp").to_pylist()
    assert first.timestamp.timestamp() == pytest.approx(stored.timestamp(), abs=1e-5)
    full = load(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(one.key, bytes(one.value)) for one in full[0].headers] == [("h", b"1")]
    assert full[1].headers is None
    told = load(subscribe=topic, includeHeaders="true", includeProtocol="true")
    assert told.columns[-2:] == ["headers", "protocol"]
    assert [row.protocol for row in told.collect()] == ["flight"] * 3


def test_which_topics(load: Load, make: Make, topic: str) -> None:
    make(f"{topic}.a", [b"a0"], [b"a1"])
    make(f"{topic}.b", [b"b0"])
    assert values(load(subscribe=f"{topic}.b,{topic}.a")) == [b"a0", b"a1", b"b0"]
    assert values(load(subscribePattern=rf"{topic}\.[ab]")) == [b"a0", b"a1", b"b0"]
    # The whole name must fit.
    assert values(load(subscribePattern=topic)) == []
    assert values(load(assign=json.dumps({f"{topic}.a": [1]}))) == [b"a1"]


def test_offsets_by_partition(load: Load, make: Make, topic: str) -> None:
    make(topic, numbers(0, 10), numbers(10, 20))
    start = json.dumps({topic: {"0": 4, "1": -2}})
    end = json.dumps({topic: {"0": -1, "1": 3}})
    found = load(subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert values(found) == numbers(4, 13)


def timed(server: LiveServer, client: FlightClient, topic: str) -> None:
    """Records 0, 1, 2 at 1000, 2000, 3000 ms."""
    broker = server.server.broker
    before = broker.clock_us
    clock = iter((1_000_000, 2_000_000, 3_000_000))
    broker.clock_us = lambda: next(clock)
    try:
        for value in numbers(0, 3):
            append(client, topic, 0, [value])
    finally:
        broker.clock_us = before


def test_times(
    load: Load, server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic)
    timed(server, client, topic)

    def found(**given: object) -> list[bytes]:
        return values(load(subscribe=topic, **given))

    by_partition = json.dumps({topic: {"0": 2000}})
    assert found(startingTimestamp=1001) == numbers(1, 3)
    assert found(endingTimestamp=2000) == numbers(0, 1)
    assert found(startingOffsetsByTimestamp=by_partition, endingTimestamp=9000) == numbers(1, 3)
    assert found(endingOffsetsByTimestamp=by_partition) == numbers(0, 1)
    late = {"startingTimestamp": 3001, "startingOffsetsByTimestampStrategy": "latest"}
    assert found(**late) == []
    with pytest.raises(Exception, match=r"option startingTimestamp: partition 0 of .* no record"):
        found(startingTimestamp=3001)


@pytest.mark.parametrize("time_ms", [9_223_372_036_854_775, 9_223_372_036_854_776, (1 << 63) - 1])
def test_times_beyond_all_records(
    server: LiveServer, client: FlightClient, make: Make, topic: str, time_ms: int
) -> None:
    """Without Spark: what is planned."""
    make(topic, numbers(0, 3))
    by_partition = json.dumps({topic: {"0": time_ms}})

    def planned(**given: object) -> tuple[int, int]:
        texts = options(server, subscribe=topic, **given)
        (found,), _ = plan(client, read_options(texts, streaming=False))
        return found.start, found.end

    assert planned(endingTimestamp=time_ms) == (0, 3)
    assert planned(endingOffsetsByTimestamp=by_partition) == (0, 3)
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert planned(startingTimestamp=time_ms, **late) == (3, 3)
    assert planned(startingOffsetsByTimestamp=by_partition, **late) == (3, 3)
    with pytest.raises(OptionError, match="has no record at that time or later"):
        planned(startingTimestamp=time_ms)


@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", "TIMESTAMP_LTZ"])
def test_whatever_timestamp_means(
    spark: "SparkSession", load: Load, make: Make, topic: str, kind: str
) -> None:
    make(topic, numbers(0, 3))
    spark.conf.set("spark.sql.timestampType", kind)
    try:
        frame = load(subscribe=topic)
        assert values(frame) == numbers(0, 3)
        assert frame.schema["timestamp"].dataType.typeName() == "timestamp"
    finally:
        spark.conf.unset("spark.sql.timestampType")


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        # Small partitions share a task, unless somebody asks for tasks.
        ({}, 1),
        ({"minPartitions": 1}, 2),
        ({"minPartitions": 5}, 6),
        ({"maxRecordsPerPartition": 3}, 8),
    ],
)
def test_tasks(load: Load, make: Make, topic: str, given: dict[str, int], tasks: int) -> None:
    from pyspark.sql.functions import spark_partition_id

    make(topic, numbers(0, 10), numbers(10, 20))
    frame = load(subscribe=topic, **given)
    places = [(row.partition, row.offset) for row in frame.collect()]
    assert places == [(number, offset) for number in (0, 1) for offset in range(10)]
    assert values(frame) == numbers(0, 20)
    assert frame.select(spark_partition_id().alias("p")).distinct().count() == tasks


def test_the_end_is_fixed_when_the_read_is_planned(
    load: Load, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 5))
    frame = load(subscribe=topic)
    assert frame.count() == 5
    append(client, topic, 0, numbers(5, 8))
    # A new plan sees more, and every part of one plan sees the same.
    again = load(subscribe=topic)
    assert again.join(again.select("offset"), "offset").count() == 8
