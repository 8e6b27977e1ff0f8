"""Kafka's own clients beside the engine, on the same topics and groups: what one writes the other reads."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kit.engines import WAIT_S, put, values_of
from kit.outside_servers import KafkaServer
from kit.records import Row, build, offsets_of, rows_of

from penstock.kafka.groups import GroupHasMembers
from penstock.kafka.names import to_kafka
from penstock.log.batch.format import encode_values
from penstock.log.engine import Engine
from penstock.log.errors import AppendFailed
from penstock.log.settings import TopicSettings

Named = Callable[[str], str]

NOW_US = time.time_ns() // 1_000_000 * 1000


@pytest.fixture(scope="module")
def admin(kafka_server: KafkaServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_server.brokers, "log_level": 0})


def made(engine: Engine, name: str, partitions: int = 1, **settings: object) -> str:
    engine.create_topic(name, partitions, TopicSettings().changed(settings))
    durable = engine.topic_durable(name)
    if durable is not None:
        durable.result(WAIT_S)
    return name


def consumer_of(server: KafkaServer, group: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server.brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            **more,
        }
    )


def all_messages(server: KafkaServer, kafka_name: str, partition: int = 0) -> list[Message]:
    """Up to the end, as it is now."""
    consumer = consumer_of(server, "outside")
    consumer.assign([TopicPartition(kafka_name, partition, 0)])
    found: list[Message] = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, "Kafka hangs"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        found.append(message)


@contextmanager
def producer_of(server: KafkaServer) -> Iterator[Producer]:
    """What was produced is there at the end."""
    producer = Producer({"bootstrap.servers": server.brokers, "linger.ms": 0, "log_level": 0})
    yield producer
    assert producer.flush(WAIT_S) == 0


class Changes:
    """Waits until topics look as they should, each time that the engine tells of one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told = threading.Condition()
        engine.watch_topics(self._hear)

    def _hear(self, _name: str) -> None:
        with self._told:
            self._told.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._told:
            # The page does not tell of topics that are gone: so one looks again meanwhile.
            while not self._told.wait_for(condition, 0.2):
                continue


# --- records --------------------------------------------------------------------------------------


def test_kafka_reads_what_the_engine_wrote(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name = made(kafka_engine, named("clicks/eu"))
    expiry_us = NOW_US + 3_600_000_000
    rows = [
        Row(b"plain", NOW_US),
        Row(b"", NOW_US, key=b"k", null=True),
        Row(b"", NOW_US, key=b""),
        Row(b"h", NOW_US, headers=((b"a", b"1"), ("ü".encode(), b""), (b"\xff", b"x"))),
        Row(b"e", NOW_US, expiry_us=expiry_us),
    ]
    kafka_engine.append(name, 0, build(rows)).result(WAIT_S)
    kafka_engine.append(name, 0, encode_values([b"hot"], kafka_engine.clock_us())).result(WAIT_S)
    found = all_messages(kafka_server, to_kafka(name))
    assert [one.value() for one in found] == [b"plain", None, b"", b"h", b"e", b"hot"]
    assert [one.key() for one in found] == [None, b"k", b"", None, None, None]
    assert [one.headers() for one in found] == [
        None,
        None,
        None,
        [("a", b"1"), ("ü", b""), ("penstock-name-ff", b"x")],
        [("penstock-expires-us", str(expiry_us).encode())],
        None,
    ]
    assert {one.timestamp()[1] for one in found[:5]} == {NOW_US // 1000}
    assert to_kafka(name).startswith("penstock-name.clicks-2feu")


def test_the_engine_reads_what_kafka_wrote(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name = made(kafka_engine, named("orders"))
    woken = threading.Event()
    kafka_engine.watch(name, 0, 4, woken.set)
    expiry = b"%d" % (NOW_US + 3_600_000_000)
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]] = [
        (b"plain", None, []),
        (None, b"k", []),
        (b"", b"", []),
        (b"h", None, [("a", b"1"), ("none", None), ("penstock-expires-us", b"soon")]),
        (b"e", None, [("penstock-expires-us", expiry)]),
    ]
    with producer_of(kafka_server) as producer:
        for value, key, headers in sent:
            producer.produce(name, value, key, 0, timestamp=NOW_US // 1000, headers=headers)
    assert woken.wait(WAIT_S)
    result = kafka_engine.read(name, 0, 0, 1 << 20).result(WAIT_S)
    assert rows_of(result.views) == [
        Row(b"plain", NOW_US),
        Row(b"", NOW_US, key=b"k", null=True),
        Row(b"", NOW_US, key=b""),
        Row(
            b"h",
            NOW_US,
            headers=((b"a", b"1"), (b"none", b""), (b"penstock-expires-us", b"soon")),
        ),
        Row(b"e", NOW_US, expiry_us=NOW_US + 3_600_000_000),
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_kafka_in_every_compression_are_read(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named, compression: str
) -> None:
    name = made(kafka_engine, named(compression))
    values = [b"%d" % number * 50 for number in range(3000)]
    settings = {
        "bootstrap.servers": kafka_server.brokers,
        "compression.type": compression,
        "log_level": 0,
    }
    producer = Producer(settings)
    for value in values:
        producer.produce(name, value, partition=0)
    woken = threading.Event()
    kafka_engine.watch(name, 0, len(values) - 1, woken.set)
    assert producer.flush(WAIT_S) == 0 and woken.wait(WAIT_S)
    assert values_of(kafka_engine, name) == values


def test_transactions_of_kafka_leave_gaps_and_aborted_ones_are_not_seen(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name = made(kafka_engine, named("gaps"))
    producer = Producer(
        {"bootstrap.servers": kafka_server.brokers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(name, b"%d" % number, partition=0)
        assert producer.flush(WAIT_S) == 0
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    token = kafka_engine.append(name, 0, encode_values([b"last"], kafka_engine.clock_us()))
    # Kafka writes the mark of the last abort a moment after its answer: before the record, or behind it.
    last = token.result(WAIT_S)
    assert last in (7, 8)
    woken = threading.Event()
    kafka_engine.watch(name, 0, last, woken.set)
    assert woken.wait(WAIT_S)
    for first, expected in ((0, [0, 4, last]), (1, [4, last]), (5, [last]), (last, [last])):
        offset = first
        found: list[int] = []
        while offset <= last:
            result = kafka_engine.read(name, 0, offset, 1 << 20).result(WAIT_S)
            found += offsets_of(result.views)
            assert result.next_offset > offset
            offset = result.next_offset
        assert found == expected
    assert values_of(kafka_engine, name) == [b"0", b"2", b"last"]


def test_two_engines_that_interleave_tell_the_real_offsets(
    kafka_engine: Engine, other_engine: Engine, named: Named
) -> None:
    name = made(kafka_engine, named("both"))
    Changes(other_engine).until(lambda: other_engine.topic(name) is not None)
    tokens = {
        b"%d.%d" % (number, who): one.append(
            name, 0, encode_values([b"%d.%d" % (number, who)] * 50, one.clock_us())
        )
        for number in range(40)
        for who, one in enumerate((kafka_engine, other_engine))
    }
    expected: dict[int, bytes] = {}
    for value, token in tokens.items():
        token.result(WAIT_S)
        expected.update({token.offset_of(number): value for number in range(50)})
    assert sorted(expected) == list(range(4000))
    for one in (kafka_engine, other_engine):
        woken = threading.Event()
        one.watch(name, 0, 3999, woken.set)
        assert woken.wait(WAIT_S)
        assert values_of(one, name) == [expected[offset] for offset in range(4000)]


def test_a_record_without_key_in_a_compacted_topic_is_refused_with_the_reason(
    kafka_engine: Engine, named: Named
) -> None:
    name = made(kafka_engine, named("compacted"), cleanup="compact")
    with pytest.raises(AppendFailed, match="a compacted topic takes records with a key alone"):
        put(kafka_engine, name, b"x")


# --- topics ---------------------------------------------------------------------------------------


def test_topics_of_kafkas_tools_are_seen_changed_and_gone(
    kafka_engine: Engine, admin: AdminClient, named: Named
) -> None:
    name, changes = named("outside"), Changes(kafka_engine)
    configuration = {"retention.ms": "7200000", "cleanup.policy": "compact"}
    new = NewTopic(name, 2, 1, config=configuration)
    admin.create_topics([new])[name].result(WAIT_S)
    changes.until(lambda: kafka_engine.topic(name) is not None)
    found = kafka_engine.topic(name)
    assert found is not None and found.partitions == 2
    assert (found.settings.retention_ms, found.settings.cleanup) == (7_200_000, "compact")

    admin.create_partitions([NewPartitions(name, 3)])[name].result(WAIT_S)
    entry = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(WAIT_S)

    def as_changed() -> bool:
        info = kafka_engine.topic(name)
        return info is not None and (info.partitions, info.settings.retention_ms) == (3, 3_600_000)

    changes.until(as_changed)
    admin.delete_topics([name])[name].result(WAIT_S)
    changes.until(lambda: kafka_engine.topic(name) is None)


def test_kafkas_tools_see_the_topics_of_the_engine(
    kafka_engine: Engine, admin: AdminClient, named: Named
) -> None:
    name = made(kafka_engine, named("inside"), 2, retention_ms=0, retention_bytes=9_000_000)
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert entries["retention.ms"].value == "-1"
    assert entries["retention.bytes"].value == "9000000"
    assert len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 2


def test_a_topic_that_others_made_anew_has_nothing_of_the_old_one(
    kafka_engine: Engine, kafka_server: KafkaServer, admin: AdminClient, named: Named
) -> None:
    """Between two looks of the engine: its name and its partitions are the same."""
    name, changes = made(kafka_engine, named("anew")), Changes(kafka_engine)
    put(kafka_engine, name, b"old", b"older")
    before = kafka_engine.topic(name)
    admin.delete_topics([name])[name].result(WAIT_S)
    while True:
        try:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
            break
        except Exception as error:
            assert "exists" in str(error)
    with producer_of(kafka_server) as producer:
        producer.produce(name, b"new", partition=0)

    def is_another() -> bool:
        after = kafka_engine.topic(name)
        return after is not None and before is not None and after.id != before.id

    changes.until(is_another)
    woken = threading.Event()
    kafka_engine.watch(name, 0, 0, woken.set)
    assert woken.wait(WAIT_S)
    assert values_of(kafka_engine, name) == [b"new"]


# --- groups ---------------------------------------------------------------------------------------


def test_offsets_of_groups_are_seen_both_ways(
    kafka_engine: Engine, other_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name, group = made(kafka_engine, named("shared/ü")), named("group ü")
    put(kafka_engine, name, *[b"x"] * 10)
    kafka_engine.commit_offset(group, name, 0, 4).result(WAIT_S)
    consumer = consumer_of(kafka_server, group)
    (place,) = consumer.committed([TopicPartition(to_kafka(name), 0)], timeout=WAIT_S)
    assert place.offset == 4
    consumer.commit(offsets=[TopicPartition(to_kafka(name), 0, 7)], asynchronous=False)
    consumer.close()
    for one in (kafka_engine, other_engine):
        while one.committed_offset(group, name, 0) != 7:
            # Followed by a thread of the engine; a round trip to Kafka passes the time.
            one.offset_at_time(name, 0, 0).result(WAIT_S)
        assert group in one.group_names(None, 100_000)


def test_a_group_with_members_takes_no_commits_from_outside(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name, group = made(kafka_engine, named("topic")), named("members")
    put(kafka_engine, name, b"x")
    consumer = consumer_of(kafka_server, group)
    consumer.subscribe([name])
    message = consumer.poll(WAIT_S)
    assert message is not None and message.value() == b"x"
    with pytest.raises(GroupHasMembers, match="let one of them commit, or stop them first"):
        kafka_engine.commit_offset(group, name, 0, 1).result(WAIT_S)
    with pytest.raises(GroupHasMembers):
        kafka_engine.delete_group(group).result(WAIT_S)
    consumer.close()
    kafka_engine.commit_offset(group, name, 0, 1).result(WAIT_S)
    assert kafka_engine.committed_offset(group, name, 0) == 1
