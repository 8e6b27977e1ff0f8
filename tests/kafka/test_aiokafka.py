"""The other client of Kafka in Python, which is not librdkafka's, beside the engine on the same topics."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kit.engines import WAIT_S, put, values_of
from kit.outside_servers import KafkaServer
from kit.records import Row, build, rows_of

from penstock.kafka.names import to_kafka
from penstock.log.engine import Engine

Named = Callable[[str], str]

NOW_US = time.time_ns() // 1_000_000 * 1000
HOUR_US = 3_600_000_000


def made(engine: Engine, name: str, partitions: int = 1) -> str:
    engine.create_topic(name, partitions)
    durable = engine.topic_durable(name)
    if durable is not None:
        durable.result(WAIT_S)
    return name


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, WAIT_S))


async def read_all(server: KafkaServer, kafka_name: str, count: int, group: str) -> list[Any]:
    """So many records from the beginning, as a member of the group, which then has read them."""
    consumer = AIOKafkaConsumer(
        kafka_name,
        bootstrap_servers=server.brokers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        found = [await consumer.getone() for _ in range(count)]
        await consumer.commit()
    finally:
        await consumer.stop()
    return found


def wait_for(engine: Engine, topic: str, offset: int) -> None:
    woken = threading.Event()
    engine.watch(topic, 0, offset, woken.set)
    assert woken.wait(WAIT_S)


def test_it_reads_what_the_engine_wrote(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name, group = made(kafka_engine, named("clicks/ü")), named("readers")
    rows = [
        Row(b"plain", NOW_US),
        Row(b"", NOW_US, key=b"k", null=True),
        Row(b"h", NOW_US, headers=((b"a", b"1"), ("ü".encode(), b""))),
    ]
    kafka_engine.append(name, 0, build(rows)).result(WAIT_S)
    transactions = kafka_engine.transactions
    for transaction in (named("kept"), named("dropped")):
        transactions.begin(transaction, HOUR_US)
        transactions.stage_groups(transaction, 1, [[(name, 0, build([Row(b"once", NOW_US)]))]], 0)
    transactions.commit(named("kept"), {1: 1})
    transactions.abort(named("dropped"))
    put(kafka_engine, name, b"last", time_us=NOW_US)
    found = run(read_all(kafka_server, to_kafka(name), 5, group))
    assert [one.value for one in found] == [b"plain", None, b"h", b"once", b"last"]
    assert [one.key for one in found] == [None, b"k", None, None, None]
    assert found[2].headers == (("a", b"1"), ("ü", b""))
    assert {one.timestamp for one in found[:3]} == {NOW_US // 1000}
    # The group is Kafka's: the engine sees how far it has come.
    while kafka_engine.committed_offset(group, name, 0) != found[-1].offset + 1:
        kafka_engine.offset_at_time(name, 0, 0).result(WAIT_S)  # a round trip to Kafka


def test_the_engine_reads_what_it_wrote(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name = made(kafka_engine, named("orders"))

    async def write() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=kafka_server.brokers, enable_idempotence=True
        ) as producer:
            at_ms = NOW_US // 1000
            await producer.send_and_wait(name, b"plain", timestamp_ms=at_ms)
            await producer.send_and_wait(name, None, b"k", timestamp_ms=at_ms)
            headers = [("a", b"1"), ("penstock-expires-us", b"%d" % (NOW_US + HOUR_US))]
            await producer.send_and_wait(name, b"h", headers=headers, timestamp_ms=at_ms)

    run(write())
    wait_for(kafka_engine, name, 2)
    result = kafka_engine.read(name, 0, 0, 1 << 20).result(WAIT_S)
    assert rows_of(result.views) == [
        Row(b"plain", NOW_US),
        Row(b"", NOW_US, key=b"k", null=True),
        Row(b"h", NOW_US, headers=((b"a", b"1"),), expiry_us=NOW_US + HOUR_US),
    ]


def test_its_transactions_are_seen_whole_or_not_at_all(
    kafka_engine: Engine, kafka_server: KafkaServer, named: Named
) -> None:
    name, group = made(kafka_engine, named("gaps")), named("movers")
    place = TopicPartition(name, 0)

    async def write() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=kafka_server.brokers, transactional_id=name
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"aborted", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(name, b"a", partition=0)
                await producer.send_and_wait(name, b"b", partition=0)
                await producer.send_offsets_to_transaction({place: 3}, group)

    run(write())
    last = kafka_engine.append(name, 0, build([Row(b"c", NOW_US)])).result(WAIT_S)
    wait_for(kafka_engine, name, last)
    assert values_of(kafka_engine, name) == [b"a", b"b", b"c"]
    while kafka_engine.committed_offset(group, name, 0) != 3:
        kafka_engine.offset_at_time(name, 0, 0).result(WAIT_S)
