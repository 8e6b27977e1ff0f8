"""What the tables of the demonstration must hold: computed in plain Python from the events that were sent.

Knows nothing of Spark, nor of the broker. Rows are tuples, sorted, so that they can be compared with what
a table has. Where an event was sent twice, either copy may be the one that counts: positions are not
compared here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.demo.events import CLICKS, HOT, ORDERS, TELEMETRY, Event, Fate

WINDOW: Final = timedelta(minutes=5)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The tables of one topic, by the beginning of their names.
PREFIXES: Final = {ORDERS: "orders", CLICKS: "clicks", TELEMETRY: "telemetry"}
COLUMNS: Final = {
    "orders_silver": ("order_id", "customer", "product", "amount", "ordered_at"),
    "clicks_silver": ("click_id", "visitor", "product", "referrer", "clicked_at"),
    "telemetry_silver": ("device", "reading", "temperature", "measured_at"),
    "revenue": ("began", "orders", "revenue"),
    "products": ("product", "views", "orders", "revenue"),
}
_ASIDE: Final = (Fate.LATE, Fate.MALFORMED, Fate.BROKEN_RULE)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`reason` is None where the decoder finds the words."""

    topic: str
    value: bytes
    reason: str | None


class Expected:
    """What must be there after these events, and nothing else."""

    def __init__(
        self, events: Sequence[Event], more_columns: Mapping[str, Sequence[str]] = {}
    ) -> None:
        """`more_columns`: those that silver tables have by newer versions of their schemas."""
        self._events = events
        self._columns = {
            name: (*columns, *more_columns.get(name, ())) for name, columns in COLUMNS.items()
        }

    def columns(self, table: str) -> tuple[str, ...]:
        return self._columns[table]

    def fields(self, topic: str) -> list[dict[str, Any]]:
        """Of each event that is a row, with times as times."""
        rows = [one for one in self._events if one.topic == topic and one.fate is Fate.ROW]
        return [_timed(one.fields) for one in rows if one.fields is not None]

    def rows(self, table: str) -> list[Row]:
        """Of a silver or gold table, by its columns."""
        if table == "revenue":
            return sorted(self._revenue())
        if table == "products":
            return sorted(self._products())
        topic = next(topic for topic, name in PREFIXES.items() if table == f"{name}_silver")
        columns = self._columns[table]
        return ordered(tuple(row.get(name) for name in columns) for row in self.fields(topic))

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        aside = [one for one in self._events if one.topic == topic and one.fate in _ASIDE]
        return [DeadLetter(one.topic, one.value, one.reason) for one in aside]

    def alerts(self) -> list[dict[str, Any]]:
        return [row for row in self.fields(TELEMETRY) if row["temperature"] > HOT]

    def counts(self) -> dict[str, int]:
        """How many rows each table has when all is done, but for bronze."""
        found = {table: len(self.rows(table)) for table in COLUMNS}
        for topic, name in PREFIXES.items():
            found[f"{name}_dead_letters"] = len(self.dead_letters(topic))
        return found

    def sent(self) -> Counter[tuple[str, str, bytes, bytes | None]]:
        """Topic, protocol, value and key of every record that bronze must hold."""
        return Counter((one.topic, one.protocol, one.value, one.key) for one in self._events)

    def _revenue(self) -> Iterable[Row]:
        amounts: defaultdict[datetime, list[float]] = defaultdict(list)
        for row in self.fields(ORDERS):
            since = row["ordered_at"] - EPOCH
            amounts[EPOCH + since // WINDOW * WINDOW].append(row["amount"])
        return [(began, len(found), sum(found)) for began, found in amounts.items()]

    def _products(self) -> Iterable[Row]:
        views = Counter(row["product"] for row in self.fields(CLICKS))
        orders = Counter(row["product"] for row in self.fields(ORDERS))
        revenue: Counter[str] = Counter()
        for row in self.fields(ORDERS):
            revenue[row["product"]] += row["amount"]
        names = {*views, *orders}
        return [(one, views[one], orders[one], float(revenue[one])) for one in names]


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Sorted, also where columns are null."""
    return sorted(rows, key=lambda row: tuple((one is not None, one) for one in row))


def _timed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value) if name.endswith("_at") else value
        for name, value in fields.items()
    }
