"""Streaming reads: progress, limits, Trigger.AvailableNow, new partitions, lost data, lag."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from kit.engines import embedded
from kit.live_server import LiveServer
from spark.conftest import KEY, Load, Make, append, numbers, options, run_now, values

from penstock.client.flight import FlightClient
from penstock.log.settings import TopicSettings
from penstock.spark.connection import Connection
from penstock.spark.options import read_options
from penstock.spark.progress import Progress
from penstock.spark.stream_reader import PenstockStreamReader, UnguidedStreamReader
from penstock.spark.versions import LIMITS_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLIEST = {"startingOffsets": "earliest"}
new_spark = pytest.mark.skipif(not LIMITS_BATCHES, reason="Spark gives no limits before 4.2")


def parquet(spark: "SparkSession", path: Path) -> list[bytes]:
    return values(spark.read.schema("value BINARY").parquet(str(path)))


def to_parquet(stream: Load, tmp_path: Path, **given: object) -> list[int]:
    frame = stream(**given).select("value")
    return run_now(frame, tmp_path / "check", "parquet", path=str(tmp_path / "out"))


def test_batches_of_a_limited_size(
    spark: "SparkSession",
    stream: Load,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    make(topic, numbers(0, 70), numbers(70, 100))
    given = {"subscribe": topic, "maxOffsetsPerTrigger": 40, **EARLIEST}
    assert [one for one in to_parquet(stream, tmp_path, **given) if one] == [40, 40, 20]
    append(client, topic, 1, numbers(100, 110))
    # It goes on where it was, whatever the starting options say now.
    given["startingOffsets"] = "latest"
    assert sum(to_parquet(stream, tmp_path, **given)) == 10
    assert parquet(spark, tmp_path / "out") == numbers(0, 110)


def test_the_checkpoint_holds_offsets_and_no_key(
    stream: Load, make: Make, topic: str, tmp_path: Path, server: LiveServer, client: FlightClient
) -> None:
    make(topic, numbers(0, 3))
    run_now(stream(subscribe=topic, groupIdPrefix="mine", **EARLIEST), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
    text = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
    progress = Progress.from_json(json.loads(text))
    assert progress.topics[topic].partitions == {0: 3}
    # The lag of the query is that of a consumer group.
    group = f"mine-{progress.query}"
    found = client.action("committed", group=group, topic=topic)
    assert found["partitions"] == [{"partition": 0, "offset": 3}]


def test_from_the_end_on(
    spark: "SparkSession",
    stream: Load,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    make(topic, numbers(0, 5))
    out = tmp_path / "out"
    frame = stream(subscribe=topic, groupId=topic).select("value")
    writer = frame.writeStream.format("parquet").option("path", str(out))
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start()
    try:
        query.processAllAvailable()
        append(client, topic, 0, numbers(5, 9))
        query.processAllAvailable()
        latest = query.recentProgress[-1]["sources"][0]["latestOffset"]
    finally:
        query.stop()
    assert parquet(spark, out) == numbers(5, 9)
    if LIMITS_BATCHES:  # before, Spark does not ask for it
        assert json.loads(latest)["topics"][topic]["partitions"] == {"0": 9}


def grow(server: LiveServer, topic: str, count: int) -> None:
    server.settle(lambda: embedded(server.server.engine).catalogue.change(topic, {}, count))


def test_new_partitions_and_topics(
    spark: "SparkSession",
    stream: Load,
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    make(f"{topic}.a", numbers(0, 3))
    given = {"subscribePattern": f"{topic}.*", **EARLIEST}
    assert sum(to_parquet(stream, tmp_path, **given)) == 3
    grow(server, f"{topic}.a", 2)
    append(client, f"{topic}.a", 1, numbers(3, 5))
    make(f"{topic}.b", numbers(5, 8))
    assert sum(to_parquet(stream, tmp_path, **given)) == 5
    assert parquet(spark, tmp_path / "out") == numbers(0, 8)


def lose(how: str, server: LiveServer, client: FlightClient, topic: str) -> None:
    """What the query has not read is gone; four other records are there afterwards."""
    engine = embedded(server.server.engine)
    if how == "trimmed":
        append(client, topic, 0, numbers(3, 10))
        server.call(lambda: engine.catalogue.partition(topic, 0).trim(6))
        return
    server.delete_topic(topic)
    server.call(lambda: engine.create_topic(topic, 1, TopicSettings()))
    append(client, topic, 0, numbers(6, 10))


@pytest.mark.parametrize(
    ("how", "complaint"),
    [("trimmed", "the query is at offset 3, but partition 0"), ("recreated", "made anew since")],
)
def test_lost_data(
    spark: "SparkSession",
    stream: Load,
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
    how: str,
    complaint: str,
) -> None:
    make(topic, numbers(0, 3))
    to_parquet(stream, tmp_path, subscribe=topic, **EARLIEST)
    lose(how, server, client, topic)
    with pytest.raises(Exception, match=complaint):
        to_parquet(stream, tmp_path, subscribe=topic, **EARLIEST)
    given = {"subscribe": topic, "failOnDataLoss": "false", **EARLIEST}
    assert sum(to_parquet(stream, tmp_path, **given)) == 4
    assert parquet(spark, tmp_path / "out") == numbers(0, 3) + numbers(6, 10)


def test_a_checkpoint_of_another_topic(
    stream: Load, make: Make, topic: str, tmp_path: Path
) -> None:
    make(f"{topic}.a", numbers(0, 3))
    make(f"{topic}.b", numbers(0, 3))
    to_parquet(stream, tmp_path, subscribe=f"{topic}.a", **EARLIEST)
    with pytest.raises(Exception, match=r"the checkpoint is at topic .*which subscribe"):
        to_parquet(stream, tmp_path, subscribe=f"{topic}.b", **EARLIEST)


def test_the_first_batch_again(
    stream: Load,
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    """It starts where it started, though Spark asks anew where the query begins."""
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 5))
    given = {"subscribe": source, **EARLIEST}
    sink = options(server, topic=target)
    with pytest.raises(Exception, match=f"no topic named '{target}'"):
        run_now(stream(**given), tmp_path, "penstock", **sink)
    make(target)
    server.call(lambda: embedded(server.server.engine).catalogue.partition(source, 0).trim(2))
    with pytest.raises(Exception, match="has offsets 2 to 5, but 0 to 5 are to be read"):
        run_now(stream(**given), tmp_path, "penstock", **sink)


# ---- without Spark: what Spark would ask, step by step -------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


Reader = TypeVar("Reader", bound=UnguidedStreamReader)


def made(kind: type[Reader], server: LiveServer, clock: Clock, **given: object) -> Reader:
    texts = options(server, **given)
    connection = Connection(texts["server"], KEY)
    parsed = read_options(texts, streaming=True)
    return kind(parsed, connection, clock)


def reader(server: LiveServer, clock: Clock, **given: object) -> PenstockStreamReader:
    return made(PenstockStreamReader, server, clock, **given)


def offset_of(found: dict[str, Any], topic: str) -> int:
    return Progress.from_json(found).topics[topic].partitions[0]


@new_spark
def test_waiting_for_enough_records(
    server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

    make(topic, numbers(0, 2))
    clock = Clock()
    limits = {"minOffsetsPerTrigger": 10, "maxOffsetsPerTrigger": 20, "maxTriggerDelay": "60s"}
    one = reader(server, clock, subscribe=topic, **limits, **EARLIEST)
    assert one.getDefaultReadLimit() == ReadMaxRows(20)
    start = one.initialOffset()
    # The first batch goes at once, as with Kafka's source.
    first = one.latestOffset(start, ReadMaxRows(20))
    assert offset_of(first, topic) == 2
    append(client, topic, 0, numbers(2, 5))
    assert one.latestOffset(first, ReadMaxRows(20)) == first
    clock.now_s += 61
    second = one.latestOffset(first, ReadMaxRows(20))
    assert offset_of(second, topic) == 5
    append(client, topic, 0, numbers(5, 45))
    third = one.latestOffset(second, ReadMaxRows(20))
    assert offset_of(third, topic) == 25
    # Trigger.Once wants everything, and gets it.
    assert offset_of(one.latestOffset(third, ReadAllAvailable()), topic) == 45
    only = reader(server, Clock(), subscribe=topic, minOffsetsPerTrigger=10)
    assert only.getDefaultReadLimit() == ReadMinRows(10)


@new_spark
def test_available_now_has_an_end(
    server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    make(topic, numbers(0, 5))
    one = reader(server, Clock(), subscribe=topic, minOffsetsPerTrigger=10, **EARLIEST)
    start = one.initialOffset()
    one.prepareForTriggerAvailableNow()
    append(client, topic, 0, numbers(5, 50))
    grow(server, topic, 2)
    middle = one.latestOffset(start, ReadMaxRows(3))
    end = one.latestOffset(middle, ReadMaxRows(3))
    assert [offset_of(middle, topic), offset_of(end, topic)] == [3, 5]
    assert one.latestOffset(end, ReadMaxRows(3)) == end
    seen = one.reportLatestOffset()
    assert seen is not None and offset_of(seen, topic) == 50


def test_spark_before_4_2_is_held_back_too(server: LiveServer, make: Make, topic: str) -> None:
    make(topic, numbers(0, 50))
    given = {"subscribe": topic, "maxOffsetsPerTrigger": 20, **EARLIEST}
    one = made(UnguidedStreamReader, server, Clock(), **given)
    # It asks for the end before it asks for the beginning.
    ends = [one.latestOffset() for _ in range(4)]
    assert [offset_of(end, topic) for end in ends] == [20, 40, 50, 50]
    assert ends[2] == ends[3]
    # After a restart it tells by an empty range how far it has come.
    again = made(UnguidedStreamReader, server, Clock(), **given)
    assert again.partitions(ends[0], ends[0]) == []
    assert again.latestOffset() == ends[1]


def test_a_limited_batch_jumps_over_what_was_trimmed(
    server: LiveServer, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 100))
    given = {"subscribe": topic, "maxOffsetsPerTrigger": 10, "failOnDataLoss": "false", **EARLIEST}
    one = made(UnguidedStreamReader, server, Clock(), **given)
    first = one.latestOffset()
    server.call(lambda: embedded(server.server.engine).catalogue.partition(topic, 0).trim(85))
    ends = [one.latestOffset() for _ in range(3)]
    assert [offset_of(end, topic) for end in (first, *ends)] == [10, 95, 100, 100]
    for _ in range(2):
        (task,) = one.partitions(first, ends[0])
        assert [(piece.start, piece.end) for piece in task.value] == [(85, 95)]


def test_a_batch_asks_about_its_topics_once(
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(topic, numbers(0, 5))
    asked: list[str] = []
    describe = FlightClient.describe

    def counted(self: FlightClient, name: str) -> Any:
        asked.append(name)
        return describe(self, name)

    monkeypatch.setattr(FlightClient, "describe", counted)
    one = made(UnguidedStreamReader, server, Clock(), subscribe=topic, **EARLIEST)
    start = one.initialOffset()
    for number in range(3):
        asked.clear()
        end = one.latestOffset()
        (task,) = one.partitions(start, end)
        assert [(piece.start, piece.end) for piece in task.value] == [(5 * number, 5 * number + 5)]
        assert asked == [topic]
        append(client, topic, 0, numbers(5 * number + 5, 5 * number + 10))
        start = end
    # Another batch than the one that was planned here: after a restart.
    asked.clear()
    one.partitions(start, start | {"query": "other"})
    assert asked == [topic]


def test_the_beginning_stays(
    server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 5))
    one = made(UnguidedStreamReader, server, Clock(), subscribe=topic)
    start = one.initialOffset()
    append(client, topic, 0, numbers(5, 8))
    end = one.latestOffset()
    append(client, topic, 0, numbers(8, 10))
    assert one.initialOffset() == start
    again = made(UnguidedStreamReader, server, Clock(), subscribe=topic)
    anew = again.initialOffset()
    assert (offset_of(anew, topic), offset_of(end, topic)) == (10, 8)
    for reader, begin in ((one, start), (again, anew)):
        (task,) = reader.partitions(begin, end)
        (piece,) = task.value
        assert (piece.start, piece.end) == (5, 8)
    # The next batch is like all others.
    assert "began" in end and "began" not in one.latestOffset()
