"""The job over a real broker, in Spark: every number compared with plain Python."""

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest
from kit.live_server import LiveServer
from kit.report_facts import HOSTILE
from spark.conftest import KEY, Make, address, options

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.records import Records
from penstock.client.errors import ConnectFailed, NotAuthorized
from penstock.client.flight import FlightClient, connect
from penstock.log.settings import TopicSettings
from penstock.spark.report.asking import Asked, require_topics
from penstock.spark.report.errors import NoSuchTopics, NoTraffic, TooManyBars
from penstock.spark.report.facts import Traffic
from penstock.spark.report.job import count_traffic
from penstock.spark.report.page import render

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "report-of-job."
# 2001-09-09; other tests of this server write today.
START_US = 1_000_000_000_000_000
MINUTE_US = 60_000_000
HOSTILE_TOPIC = f"{PREFIX}{HOSTILE[0]}"


class Sent(NamedTuple):
    topic: str
    partition: int
    protocol: str
    time_us: int
    key: bytes | None
    value: bytes | None
    reason: bytes | None = None


def plan() -> list[Sent]:
    """Five topics of traffic, two of dead letters, ten minutes."""
    found = []
    for number in range(1, 601):
        time_us = START_US + number * 1_000_000
        key = b"hot" if number % 3 == 0 else b"key-%d" % (number % 40)
        value = None if number % 50 == 0 else b"v" * (number * 7 % 700)
        # By Flight alone can a test send null.
        protocol = ("blipmq", "flymq", "http", "")[number % 4] if value is not None else "flight"
        found.append(Sent(f"{PREFIX}orders", number % 3, protocol, time_us, key, value))
        if number % 2:
            found.append(Sent(f"{PREFIX}clicks", 0, "felix", time_us, None, b"c" * 10))
        if number % 10 == 0:
            reason = b"late" if number % 20 else b"<b>\xff wrong"
            where = f"{PREFIX}orders.dlq" if number % 30 else f"{PREFIX}clicks.dlq"
            found.append(Sent(where, 0, "", time_us, key, b"letter", reason))
        if number % 100 == 0:
            found.append(Sent(HOSTILE_TOPIC, 0, "fujin", time_us, HOSTILE[4].encode(), b"1"))
    # Outside of the period that is asked for, at both ends.
    before = [Sent(f"{PREFIX}orders", one, "http", START_US - 1, b"old", b"0") for one in range(3)]
    after = [Sent(f"{PREFIX}clicks", 0, "http", START_US + 700_000_000, None, b"new")]
    return [*before, *found, *after]


@pytest.fixture(scope="module")
def sent(server: LiveServer) -> list[Sent]:
    broker, before = server.server.broker, server.server.broker.clock_us
    records = plan()
    partitions = Counter({one.topic: 1 for one in records}) | Counter({f"{PREFIX}orders": 3})

    def publish(one: Sent) -> None:
        who = Principal("test", "admin", origin=Origin(one.protocol))
        assert one.value is not None
        headers = [] if one.reason is None else [(b"penstock-reason", one.reason)]
        content = Records([one.value], [one.key], [headers])
        broker.publish(who, one.topic, one.partition, content)

    for topic, count in partitions.items():
        settings = TopicSettings(retention_ms=0)
        server.call(partial(server.server.engine.create_topic, topic, count, settings))
    with connect(address(server), KEY) as client:
        try:
            for one in records:
                broker.clock_us = partial(int, one.time_us)
                if one.value is None:
                    rows = pa.table({"value": pa.nulls(1, pa.binary()), "key": [one.key]})
                    client.write(one.topic, rows, partition=one.partition)
                else:
                    server.call(partial(publish, one))
        finally:
            broker.clock_us = before
    return records


def asked(server: LiveServer, **given: object) -> Asked:
    period = {"from_us": START_US, "to_us": START_US + 10 * MINUTE_US + 1_000_000}
    connection = options(server)
    return Asked(**{"connection": connection, "pattern": f"{PREFIX}*", **period, **given})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def counted(spark: "SparkSession", server: LiveServer, sent: list[Sent]) -> Traffic:
    return count_traffic(spark, asked(server))


@pytest.fixture
def traffic(sent: list[Sent]) -> list[Sent]:
    """The records of the period that are no dead letters."""
    last_us = START_US + 10 * MINUTE_US + 1_000_000
    inside = [one for one in sent if START_US <= one.time_us < last_us]
    return [one for one in inside if not one.topic.endswith(".dlq")]


def size(one: Sent) -> int:
    return len(one.value or b"")


def test_totals(counted: Traffic, traffic: list[Sent]) -> None:
    assert counted.records == len(traffic)
    assert counted.payload_bytes == sum(map(size, traffic))
    assert counted.largest_bytes == max(map(size, traffic))
    assert counted.null_values == sum(one.value is None for one in traffic)
    assert counted.topic_count == 3
    assert counted.partition_count == 5
    assert counted.first_us == min(one.time_us for one in traffic)
    assert counted.last_us == max(one.time_us for one in traffic)


def test_topics(counted: Traffic, traffic: list[Sent]) -> None:
    expected = []
    for topic in (f"{PREFIX}orders", f"{PREFIX}clicks", HOSTILE_TOPIC):
        ours = [one for one in traffic if one.topic == topic]
        partitions = Counter(one.partition for one in ours)
        sizes = [size(one) for one in ours]
        numbers = (len(ours), sum(sizes), max(sizes), len(partitions), max(partitions.values()))
        expected.append((topic, *numbers))
    found = [
        (one.name, one.records, one.payload_bytes, one.largest_bytes, one.partitions, one.busiest)
        for one in counted.topics
    ]
    assert found == expected


def test_over_time(counted: Traffic, traffic: list[Sent]) -> None:
    assert counted.width_s == 5
    assert counted.bars == 121
    for series, name in ((counted.by_topic, "topic"), (counted.by_protocol, "protocol")):
        expected: Counter[tuple[str, int]] = Counter()
        volume: Counter[tuple[str, int]] = Counter()
        for one in traffic:
            place = getattr(one, name), (one.time_us // 1_000_000 - counted.start_s) // 5
            expected[place] += 1
            volume[place] += size(one)
        for line in series:
            assert len(line.records) == len(line.payload_bytes) == counted.bars
        assert {
            (line.name, bar): (line.records[bar], line.payload_bytes[bar])
            for line in series
            for bar in range(counted.bars)
            if line.records[bar]
        } == {place: (expected[place], volume[place]) for place in expected}
    assert [one.name for one in counted.by_protocol] == [
        "blipmq",
        "flymq",
        "felix",
        "fujin",
        "flight",
        "http",
        "",
    ]


def test_sizes(counted: Traffic, traffic: list[Sent]) -> None:
    assert counted.sizes == Counter(
        len(one.value).bit_length() for one in traffic if one.value is not None
    )


def test_keys(counted: Traffic, traffic: list[Sent]) -> None:
    orders = Counter(one.key for one in traffic if one.topic == f"{PREFIX}orders")
    found, hostile = counted.keys
    assert (found.topic, found.keyed, found.slack) == (f"{PREFIX}orders", 600, 0)
    assert found.different == len(orders)
    expected = sorted(orders.items(), key=lambda one: (-one[1], one[0]))[:5]
    assert [(one.key, one.records) for one in found.top] == expected
    assert (hostile.topic, hostile.keyed) == (HOSTILE_TOPIC, 6)
    assert [one.key for one in hostile.top] == [HOSTILE[4].encode()]


def test_very_many_keys(spark: "SparkSession", server: LiveServer, client: FlightClient) -> None:
    """Of two tasks: every count is too low by the slack at most, and the frequent key is found."""
    topic = f"{PREFIX}keys-of-many"
    server.call(partial(server.server.engine.create_topic, topic, 2))
    for partition in range(2):
        keys = [b"%d-%d" % (partition, number) for number in range(6_000)]
        keys += [b"hot"] * 3_000
        rows = pa.table({"value": [b""] * len(keys), "key": keys})
        client.write(topic, rows, partition=partition)
    everything = {"from_us": 0, "to_us": time.time_ns() // 1000, "pattern": topic}
    (found,) = count_traffic(spark, asked(server, **everything)).keys
    assert found.keyed == 18_000
    assert found.different >= 2_048
    assert found.top[0].key == b"hot"
    assert found.top[0].records <= 6_000 <= found.top[0].records + found.slack


def test_reasons(counted: Traffic, sent: list[Sent]) -> None:
    expected = Counter(
        (one.topic.removesuffix(".dlq"), one.reason.decode("utf-8", "replace"))
        for one in sent
        if one.reason is not None
    )
    assert counted.letters.total == expected.total() == 60
    assert {(one.where, one.text): one.records for one in counted.letters.top} == expected
    assert counted.refusals.total == 0


def test_dead_letters_alone(spark: "SparkSession", server: LiveServer, sent: list[Sent]) -> None:
    found = count_traffic(spark, asked(server, pattern=f"{PREFIX}*.dlq"))
    assert (found.records, found.letters.total, found.topics) == (0, 60, ())


def test_the_page_can_be_made(counted: Traffic) -> None:
    from dataclasses import replace

    from kit.report_facts import shop

    page = render(replace(shop(), traffic=counted))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>" not in page


@pytest.mark.parametrize(("bucket", "bars"), [("1s", 600), ("1m", 11), ("7d", 1)])
def test_a_width_of_ones_own(
    spark: "SparkSession", server: LiveServer, sent: list[Sent], bucket: str, bars: int
) -> None:
    found = count_traffic(spark, asked(server, bucket=bucket, pattern=f"{PREFIX}clicks"))
    assert found.bars == bars
    assert sum(found.by_topic[0].records) == found.records == 300


def test_nothing_there(spark: "SparkSession", server: LiveServer, sent: list[Sent]) -> None:
    early = {"from_us": 1_000_000, "to_us": 60_000_000}
    with pytest.raises(NoTraffic, match=r"^no records from 1970-01-01 00:00:01 UTC to 1970"):
        count_traffic(spark, asked(server, **early))


def test_too_many_bars(spark: "SparkSession", server: LiveServer, sent: list[Sent]) -> None:
    wide = asked(server, bucket="1s", pattern=f"{PREFIX}clicks", to_us=time.time_ns() // 1000)
    with pytest.raises(TooManyBars, match="--bucket 1s gives 700 bars"):
        count_traffic(spark, wide)


def test_what_is_wrong_is_told_before_spark_starts(server: LiveServer, make: Make) -> None:
    make(f"{PREFIX}there")
    require_topics(asked(server))
    with pytest.raises(NoSuchTopics, match="no topic matches 'nix'; penstock topic ls"):
        require_topics(asked(server, pattern="nix"))
    with pytest.raises(NotAuthorized, match="key"):
        require_topics(asked(server, connection={"server": address(server), "accessKey": "wrong"}))
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1:1"):
        require_topics(asked(server, connection={"server": "127.0.0.1:1", "accessKey": "k"}))


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("", "orders", True),
        ("", "orders.dlq", True),
        ("", "_delayed", False),
        ("or*", "orders", True),
        ("or*", "clicks", False),
        ("orders", "orders.dlq", True),
        ("a[", "a[", True),
        ("*", "line\nbreak", True),
    ],
)
def test_topics_by_pattern(pattern: str, name: str, fits: bool) -> None:
    import re

    regular = Asked(connection={}, to_us=1, pattern=pattern).topics_pattern
    assert bool(re.compile(regular).fullmatch(name)) == fits
