"""Any mix of options gives the rows that a plain reader gives, which is written here."""

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.live_server import LiveServer
from spark.conftest import KEY, append, numbers, options

from penstock.client.flight import FlightClient
from penstock.log.settings import TopicSettings
from penstock.spark.batch_reader import PenstockReader
from penstock.spark.connection import Connection
from penstock.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Records by topic and partition: (offset, time in ms, value). Times as they are given when written.
TOPICS = {"mix.a": (12, 0, 5), "mix.b": (7,)}
SPARK_CASES = 6
Record = tuple[str, int, int, bytes]


@pytest.fixture(scope="module")
def records(server: LiveServer) -> dict[Record, int]:
    """Writes the topics; gives the time of every record."""
    from spark.conftest import address

    from penstock.client.flight import connect

    broker = server.server.broker
    before = broker.clock_us
    found: dict[Record, int] = {}
    with connect(address(server), KEY) as client:
        try:
            for topic, sizes in TOPICS.items():
                count = len(sizes)
                server.call(
                    lambda t=topic, c=count: server.server.engine.create_topic(
                        t,
                        c,
                        TopicSettings(retention_ms=0),  # its times are of 1970
                    )  # type: ignore[misc]  # bound now
                )
                for partition, size in enumerate(sizes):
                    for offset, value in enumerate(numbers(0, size)):
                        time_ms = 1000 + 10 * offset
                        broker.clock_us = lambda now=time_ms * 1000: now  # type: ignore[misc]  # bound now
                        append(client, topic, partition, [value])
                        found[topic, partition, offset, value] = time_ms
        finally:
            broker.clock_us = before
    return found


def partitions_of(chosen: dict[str, Any]) -> dict[str, list[int]]:
    if "assign" in chosen:
        assigned: dict[str, list[int]] = json.loads(chosen["assign"])
        return assigned
    topics = list(TOPICS) if "subscribePattern" in chosen else chosen["subscribe"].split(",")
    return {topic: list(range(len(TOPICS[topic]))) for topic in topics}


def size_of(topic: str, partition: int) -> int:
    return TOPICS[topic][partition]


def bound(chosen: dict[str, Any], which: str, topic: str, partition: int) -> int:
    """The offset where this partition begins or ends, found record by record."""
    size = size_of(topic, partition)
    time_ms = None
    if f"{which}Timestamp" in chosen:
        time_ms = int(chosen[f"{which}Timestamp"])
    elif f"{which}OffsetsByTimestamp" in chosen:
        time_ms = json.loads(chosen[f"{which}OffsetsByTimestamp"])[topic][str(partition)]
    if time_ms is not None:
        later = [offset for offset in range(size) if 1000 + 10 * offset >= time_ms]
        return later[0] if later else size
    text = chosen.get(f"{which}Offsets", "earliest" if which == "starting" else "latest")
    if text in ("earliest", "latest"):
        return 0 if text == "earliest" else size
    offset = json.loads(text)[topic][str(partition)]
    return int({-2: 0, -1: size}.get(offset, min(offset, size)))


def reference(chosen: dict[str, Any], records: dict[Record, int]) -> list[Record]:
    wanted = partitions_of(chosen)
    return sorted(
        one
        for one in records
        if one[1] in wanted.get(one[0], [])
        and bound(chosen, "starting", one[0], one[1]) <= one[2]
        and one[2] < bound(chosen, "ending", one[0], one[1])
    )


@st.composite
def mixes(draw: st.DrawFn) -> dict[str, Any]:
    ways = [
        {"subscribe": "mix.a"},
        {"subscribe": "mix.b,mix.a"},
        {"subscribePattern": r"mix\..*"},
        {"assign": '{"mix.a":[0,2]}'},
        {"assign": '{"mix.a":[1],"mix.b":[0]}'},
    ]
    chosen: dict[str, Any] = dict(draw(st.sampled_from(ways)))
    wanted = partitions_of(chosen)

    def by_partition(numbers: st.SearchStrategy[int]) -> str:
        return json.dumps(
            {topic: {str(one): draw(numbers) for one in ones} for topic, ones in wanted.items()}
        )

    times = st.integers(980, 1130)
    for which, special in (("starting", -2), ("ending", -1)):
        # Starts up to 6 and ends from 6 on, so that no start is behind an end.
        plain = st.integers(0, 6) if which == "starting" else st.integers(6, 15)
        kinds = draw(st.sets(st.sampled_from(["time", "times", "offsets"])))
        if "time" in kinds and which == "ending":
            chosen["endingTimestamp"] = str(draw(st.integers(1050, 1130)))
        if "time" in kinds and which == "starting":
            chosen["startingTimestamp"] = str(draw(st.integers(980, 1050)))
        if "times" in kinds:
            chosen[f"{which}OffsetsByTimestamp"] = by_partition(times)
        if "offsets" in kinds:
            chosen[f"{which}Offsets"] = by_partition(plain | st.just(special))
    chosen |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "minPartitions": st.integers(1, 12),
                "maxRecordsPerPartition": st.integers(1, 9),
                "includeHeaders": st.sampled_from(["true", "false"]),
            },
        )
    )
    return {
        **chosen,
        # Offsets past the end are part of the mix, and so are times that nobody has.
        "failOnDataLoss": "false",
        "startingOffsetsByTimestampStrategy": "latest",
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=mixes())
def test_the_reader_against_the_reference(
    server: LiveServer, client: FlightClient, records: dict[Record, int], chosen: dict[str, Any]
) -> None:
    """Planning and reading as Spark does both, without the time that Spark takes for it."""
    texts = options(server, **{name: str(value) for name, value in chosen.items()})
    parsed = read_options(texts, streaming=False)
    reader = PenstockReader(parsed, Connection(texts["server"], KEY))
    found: list[Record] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert ("headers" in batch.schema.names) == (chosen.get("includeHeaders") == "true")
            rows = batch.select(["topic", "partition", "offset", "value"]).to_pydict()
            found.extend(zip(*rows.values(), strict=True))
    assert sorted(found) == reference(chosen, records)


@settings(
    max_examples=SPARK_CASES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(chosen=mixes())
def test_spark_against_the_reference(
    spark: "SparkSession", server: LiveServer, records: dict[Record, int], chosen: dict[str, Any]
) -> None:
    texts = options(server, **{name: str(value) for name, value in chosen.items()})
    frame = spark.read.format("penstock").options(**texts).load()
    rows = frame.select("topic", "partition", "offset", "value").collect()
    assert sorted((a, b, c, bytes(d)) for a, b, c, d in rows) == reference(chosen, records)
