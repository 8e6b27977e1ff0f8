"""Every table of the demonstration, row by row, against what was sent and what the log holds."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from spark.pipeline.demo_world import World

from penstock.client.flight import FlightClient
from penstock.demo.events import ALERTS
from penstock.demo.reference import PREFIXES, ordered
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.tables.files import read_table, table_directory

Position = tuple[str, int, int]
SILVER = [f"{name}_silver" for name in PREFIXES.values()]
GOLD = ["revenue", "products"]


class Stored(NamedTuple):
    """What both the log and bronze know of a record."""

    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: datetime
    protocol: str | None


class Comparison:
    """`log` is what the broker has; everything is read once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._project = load_project(world.project)
        self._expected = world.expected
        with world.broker.client() as client:
            self.log = {
                topic: stored(client, topic) for topic in client.topics() if topic[0] != "_"
            }

    def everything(self) -> None:
        self.the_log_has_what_was_sent()
        self.bronze_is_the_log()
        for table in SILVER:
            self.rows(table)
            self.origins(table)
        for table in GOLD:
            self.wait_for_view(table)
            self.rows(table)
        for topic in PREFIXES:
            self.dead_letters(topic)
        self.alerts()

    def wait_for_view(self, table: str) -> None:
        """Views are refreshed behind the streams: one with as many rows as it must have may be that of a
        moment before."""
        if not self._is_current(table):
            self._world.start_pipeline().wait(lambda told: self._is_current(table))

    def _is_current(self, table: str) -> bool:
        try:
            return Counter(self._found(table)) == Counter(self._expected.rows(table))
        except FileNotFoundError:  # it is written anew
            return False

    def _found(self, table: str) -> list[tuple[Any, ...]]:
        columns = self._expected.columns(table)
        return [tuple(aware(row[name]) for name in columns) for row in self._rows(table)]

    def the_log_has_what_was_sent(self) -> None:
        found = Counter(
            (topic, record.protocol, record.value, record.key)
            for topic in PREFIXES
            for record in self.log[topic].values()
        )
        same(found, self._expected.sent(), "the log")

    def bronze_is_the_log(self) -> None:
        rows = self._rows("bronze")
        positions = [(row["topic"], row["partition"], row["offset"]) for row in rows]
        every = {at: record for records in self.log.values() for at, record in records.items()}
        same(Counter(positions), Counter(list(every)), "bronze")
        for at, row in zip(positions, rows, strict=True):
            headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
            found = Stored(
                row["value"], row["key"], headers, aware(row["timestamp"]), row["protocol"]
            )
            assert found == every[at], f"bronze at {at}"

    def rows(self, table: str) -> None:
        found = self._found(table)
        same(Counter(found), Counter(self._expected.rows(table)), table)
        assert ordered(found) == ordered(self._expected.rows(table))

    def origins(self, table: str) -> None:
        """Where a row says that it comes from, there is the record that it was made of."""
        rows = self._rows(table)
        columns = self._expected.columns(table)
        origins = Counter(row["_origin"] for row in rows)
        assert max(origins.values(), default=1) == 1
        for row in rows:
            at = position(row["_origin"])
            assert at == (row["_topic"], row["_partition"], row["_offset"])
            written = json.loads(self.log[at[0]][at].value)
            for name in columns:
                if not name.endswith("_at"):
                    assert row[name] == written.get(name), f"{table} at {at}: {name}"

    def dead_letters(self, topic: str) -> None:
        """In the table and in the topic, with reason and position."""
        table = f"{PREFIXES[topic]}_dead_letters"
        rows = self._rows(table)
        expected = self._expected.dead_letters(topic)
        same(Counter(row["value"] for row in rows), Counter(one.value for one in expected), table)
        reasons = {one.value: one.reason for one in expected}
        places: Counter[tuple[int, int, str]] = Counter()
        for row in rows:
            at = (row["topic"], row["partition"], row["offset"])
            assert self.log[topic][at].value == row["value"], f"{table} at {at}"
            assert row["reason"] == (reasons[row["value"]] or row["reason"]) != "", f"{table} {at}"
            places[row["partition"], row["offset"], row["reason"]] += 1
        assert max(places.values(), default=1) == 1, places.most_common(3)
        sent: Counter[tuple[int, int, str]] = Counter()
        for record in self.log[f"{topic}.dlq"].values():
            told = {name: value.decode() for name, value in record.headers}
            where = int(told["penstock-partition"]), int(told["penstock-offset"])
            assert told["penstock-topic"] == topic
            assert self.log[topic][topic, *where].value == record.value
            sent[*where, told["penstock-reason"]] += 1
        same(sent, places, f"topic {topic}.dlq")

    def alerts(self) -> None:
        found = [alert(record.value, record.key) for record in self.log[ALERTS].values()]
        same(Counter(found), Counter(self.expected_alerts()), "alerts")

    def expected_alerts(self) -> list[tuple[Any, ...]]:
        return [
            (one["device"], one["reading"], one["temperature"], one["measured_at"])
            for one in self._expected.alerts()
        ]

    def _rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_table(table_directory(self._project, table)).to_pylist()
        return found


def stored(client: FlightClient, topic: str) -> dict[Position, Stored]:
    names = ("partition", "offset", "value", "key", "headers", "timestamp", "protocol")
    table: pa.Table = client.read(topic, columns=names).read_all()
    found = {}
    for row in table.to_pylist():
        headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
        record = Stored(row["value"], row["key"], headers, row["timestamp"], row["protocol"])
        found[topic, row["partition"], row["offset"]] = record
    return found


def alert(value: bytes, key: bytes | None) -> tuple[Any, ...]:
    fields = json.loads(value)
    assert key in (None, fields["device"].encode())
    when = datetime.fromisoformat(fields["measured_at"])
    return (fields["device"], fields["reading"], fields["temperature"], when)


def position(origin: str) -> Position:
    topic, partition, offset = origin.rsplit("/", 2)
    return topic, int(partition), int(offset)


def aware(value: Any) -> Any:
    """Parquet files of Spark have times without a zone, in UTC."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def same(found: Counter[Any], expected: Counter[Any], what: str) -> None:
    """Fails with the first few that are lost or doubled: all of them would be megabytes."""
    lost, doubled = expected - found, found - expected
    assert not lost and not doubled, (
        f"{what}: {lost.total()} lost {_few(list(lost))}, {doubled.total()} too many {_few(list(doubled))}"
    )


def _few(found: Sequence[Any]) -> list[str]:
    return [str(one)[:200] for one in found[:3]]
