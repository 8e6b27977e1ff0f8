"""What silver makes of a topic, as a stream of its own in the session of the other tests: nothing is lost
to others that are faster, and who may say that a record is a copy. test_updates.py has it in a pipeline."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kit.live_server import LiveServer
from spark.conftest import KEY_VARIABLE, Make, address, append, run_now
from spark.test_typed import register

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.records import Records
from penstock.client.flight import FlightClient
from penstock.spark.pipeline.blocks.silver import clean_rows, judged_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREE_HOURS_US = 3 * 3600 * 1_000_000
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}},
}


@pytest.fixture(autouse=True)
def settings(spark: "SparkSession", server: LiveServer) -> Iterator[None]:
    given = {"spark.penstock.server": address(server), "spark.penstock.keyEnv": KEY_VARIABLE}
    for name, value in given.items():
        spark.conf.set(name, value)
    yield
    for name in given:
        spark.conf.unset(name)


def event(number: int, at: str | None = None) -> bytes:
    return json.dumps({"n": number} if at is None else {"n": number, "at": at}).encode()


class Silver:
    """A table of one topic; each call reads on."""

    def __init__(self, spark: "SparkSession", directory: Path, topic: str) -> None:
        self._spark, self._topic, self._directory = spark, topic, directory

    def read(self, **options: str) -> list[int]:
        event_time = "at" if options.pop("timed", "") else None
        judged = judged_rows(
            self._topic, {"schemaName": "counted", **options}, (), event_time, "1 hour"
        )
        path = str(self._directory / "table")
        rows = clean_rows(judged, ["_origin"], "1 hour").select("n", "_origin")
        run_now(rows, self._directory / "checkpoint", "parquet", path=path)
        return sorted(row.n for row in self._spark.read.parquet(path).collect())


@pytest.fixture
def silver(spark: "SparkSession", server: LiveServer, tmp_path: Path, topic: str) -> Silver:
    register(server, "counted", "json", SCHEMA)
    return Silver(spark, tmp_path, topic)


def test_a_partition_that_lags_behind_loses_nothing(
    server: LiveServer, client: FlightClient, make: Make, topic: str, silver: Silver
) -> None:
    """One partition has records of now, the other many that are three hours older and are read in small
    batches: by the broker's time they would all be behind the watermark."""
    make(topic, [], [])
    broker = server.server.broker
    before = broker.clock_us
    broker.clock_us = lambda: before() - THREE_HOURS_US
    try:
        append(client, topic, 1, [event(n) for n in range(12)])
    finally:
        broker.clock_us = before
    append(client, topic, 0, [event(n) for n in range(100, 103)])
    assert silver.read(maxOffsetsPerTrigger="5") == [*range(12), *range(100, 103)]
    append(client, topic, 1, [event(12)])
    assert silver.read(maxOffsetsPerTrigger="5") == [*range(13), *range(100, 103)]


def copy(origin: str) -> list[tuple[bytes, bytes]]:
    return [(b"penstock-origin", origin.encode())]


def publish(server: LiveServer, topic: str, door: str, value: bytes, origin: str) -> None:
    """As a session of this protocol does. It is durable with the next append that is waited for."""
    principal = Principal("test", "admin", origin=Origin(door, ""))
    records = Records([value], None, [copy(origin)])
    server.call(lambda: server.server.broker.publish(principal, topic, 0, records))


@pytest.mark.parametrize("door", ["fujin", "http"])
def test_a_publisher_does_not_say_what_is_a_copy(
    server: LiveServer, client: FlightClient, make: Make, topic: str, silver: Silver, door: str
) -> None:
    """Neither of a record that was, nor of one to come; nor is his record allowed to be late."""
    make(topic, [event(0)])
    publish(server, topic, door, event(1), f"{topic}/0/0")
    publish(server, topic, door, event(2), f"{topic}/0/3")
    append(client, topic, 0, [event(3)])
    assert silver.read() == [0, 1, 2, 3]
    publish(server, topic, door, event(4, "2001-01-01T00:00:00Z"), f"{topic}/0/0")
    now = datetime.now(UTC).isoformat()
    append(client, topic, 0, [event(5, now)])
    assert silver.read(timed="yes") == [0, 1, 2, 3, 5]


def test_copies_of_jobs_with_tables_count_once(
    client: FlightClient, make: Make, topic: str, silver: Silver
) -> None:
    """They write over Flight. A copy is behind what it is a copy of."""
    make(topic, [event(0)])
    headers: list[list[dict[str, Any]]] = [
        [{"key": "penstock-origin", "value": one.encode()}]
        for one in (f"{topic}/0/0", "elsewhere/7/1", "elsewhere/7/1", f"{topic}/0/5", "nonsense")
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    values = pa.array([event(n) for n in range(1, 6)], pa.binary())
    rows = pa.table({"value": values, "headers": pa.array(headers, kind)})
    client.write(topic, rows, partition=0)
    append(client, topic, 0, [event(6)])
    found = silver.read()
    assert found in ([0, 2, 4, 5, 6], [0, 3, 4, 5, 6], [1, 2, 4, 5, 6], [1, 3, 4, 5, 6])
