"""Two gateways in front of one Kafka, of which one dies: tasks go to both, and to the one that is left."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.live_server import LiveServer, ServerProcess
from kit.outside_servers import KafkaServer
from spark.conftest import FLIGHT, KEY, address, numbers, values

from penstock.client.errors import Refused
from penstock.client.flight import FlightClient, connect
from penstock.spark.batch_reader import PenstockReader
from penstock.spark.connection import resolve
from penstock.spark.options import read_options
from penstock.spark.spreading import servers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
EACH = 50
HOUR_S = 3600


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield {**FLIGHT, "server.engine": "kafka", "kafka.bootstrap": running.brokers}


@pytest.fixture(scope="module")
def first(kafka: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("first"), kafka) as running:
        yield running


@pytest.fixture(scope="module")
def second(kafka: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LiveServer(tmp_path_factory.mktemp("second"), kafka) as running:
        yield address(running)


@pytest.fixture
def one(first: LiveServer) -> Iterator[FlightClient]:
    with connect(address(first), KEY) as client:
        yield client


@pytest.fixture
def two(second: str) -> Iterator[FlightClient]:
    with connect(second, KEY) as client:
        yield client


def table(*found: bytes) -> pa.Table:
    return pa.table({"value": pa.array(found, pa.binary())})


def written(client: FlightClient, topic: str) -> list[bytes]:
    return sorted(client.read(topic).read_all().column("value").to_pylist())


def make(server: LiveServer, topic: str) -> None:
    """Returns when Kafka has it; the other gateway may not know it yet."""

    async def create() -> None:
        server.server.engine.create_topic(topic, PARTITIONS)
        durable = server.server.engine.topic_durable(topic)
        if durable is not None:
            await durable

    server.run(create())


def wait_for_both(client: FlightClient, topic: str) -> None:
    while len(client.describe(topic).servers) < 2:
        continue  # each question takes Kafka some milliseconds


def test_a_topic_is_the_same_through_both_at_once(
    first: LiveServer, one: FlightClient, two: FlightClient, topic: str
) -> None:
    """What one gateway has told a client, the other does not deny."""
    make(first, topic)
    for number in range(PARTITIONS):
        one.write(topic, table(*numbers(0, EACH)), partition=number)
        told = one.describe(topic)
        found = two.stream(
            topic, number, 0, EACH, ("value",), created_us=told.created_us, whole=True
        )
        assert pa.Table.from_batches(found).column("value").to_pylist() == numbers(0, EACH)
    wait_for_both(one, topic)
    assert set(one.describe(topic).servers) == {one.server, two.server}
    assert two.describe(topic).bounds == told.bounds
    with pytest.raises(Refused, match="no topic named"):
        two.describe("none")


def test_a_transaction_goes_over_both(one: FlightClient, two: FlightClient, topic: str) -> None:
    """Begun at one, staged through the other to a topic that is made there, committed at the first."""
    assert not one.begin_transaction(topic, HOUR_S).committed
    staged = two.stage(topic, 1, topic, table(*numbers(0, EACH)), create=True)
    one.commit_transaction(topic, {1: staged.batches}, staged.rows)
    assert written(one, topic) == written(two, topic) == numbers(0, EACH)
    # Doing it again changes nothing, wherever.
    two.commit_transaction(topic, {1: staged.batches}, staged.rows)
    assert two.begin_transaction(topic, HOUR_S).rows == EACH
    assert written(one, topic) == numbers(0, EACH)


def test_a_query_that_has_a_follower_is_refused_by_both(
    one: FlightClient, two: FlightClient, topic: str
) -> None:
    for number, client in enumerate((one, one, two)):
        client.begin_transaction(f"{topic}-{number}", HOUR_S, (topic, "old"))
    two.begin_transaction(f"{topic}-next", HOUR_S, (topic, "new"))
    for client in (two, one):
        with pytest.raises(Refused, match="was followed by new"):
            client.begin_transaction(f"{topic}-late", HOUR_S, (topic, "old"))


def test_a_gateway_dies_between_planning_and_reading(
    spark: "SparkSession",
    kafka: dict[str, str],
    first: LiveServer,
    one: FlightClient,
    tmp_path: Path,
    topic: str,
) -> None:
    make(first, topic)
    all_values = [b"%d-%03d" % (part, n) for part in range(PARTITIONS) for n in range(EACH)]
    rows = [(value,) for value in all_values]
    given = {"server": one.server, "accessKey": KEY, "fetchOffset.numRetries": "2"}
    with ServerProcess(tmp_path / "third", kafka) as dying:
        third = f"127.0.0.1:{dying.ports['flight']}"
        while third not in one.describe(topic).servers:
            continue
        frame = spark.createDataFrame(rows, "value BINARY").repartition(PARTITIONS)
        to_topic = frame.write.format("penstock").options(**given, topic=topic).mode("append")
        to_topic.save()
        assert dying.process.poll() is None
        options = {**given, "subscribe": topic, "minPartitions": str(PARTITIONS)}
        planned = spark.read.format("penstock").options(**options).load()
        rdd = planned.select("value").rdd
        assert rdd.getNumPartitions() >= PARTITIONS
        plain = read_options(options, streaming=False)
        reader = PenstockReader(plain, resolve(plain.connection))
        tasks = reader.partitions()
        assert {servers_of(task)[0] for task in tasks} > {third, one.server}
        dying.kill()
    # Planned with it, read without it.
    assert sorted(bytes(row.value) for row in rdd.collect()) == sorted(all_values)
    found = [value for task in tasks for batch in reader.read(task) for value in batch["value"]]
    assert sorted(value.as_py() for value in found) == sorted(all_values)
    # It is named until it was silent for a while; a write does without it too.
    assert third in one.describe(topic).servers
    to_topic.option("transaction", uuid.uuid4().hex).save()
    again = spark.read.format("penstock").options(**options).load()
    assert values(again) == sorted(all_values * 2)
