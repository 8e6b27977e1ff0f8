"""The examples of examples/shop, in one JVM and two updates: each table is what plain Python makes of the
same records, in SQL as in Python, and clients of all five protocols read the alerts."""

import asyncio
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client.peer import run
from docs.markdown import ROOT
from e2e.meeting import PROTOCOLS, meeting
from e2e.test_five_protocols import SETTINGS, address_of
from kit.live_server import LiveServer
from spark.conftest import FLIGHT, KEY
from spark.pipeline.one_session import OneSession, Refused
from spark.pipeline.running_pipeline import make_quick

from penstock.client.flight import FlightClient, connect
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.starter import write_project
from penstock.spark.pipeline.tables.files import read_table, table_directory

EXAMPLES = ROOT / "examples" / "shop"
NOW = datetime.now(UTC).replace(microsecond=0)
MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE

Event = dict[str, Any]


# --- what is sent ----------------------------------------------------------------------------------


def order(number: int, ordered_at: datetime) -> Event:
    return {
        "order_id": f"o-{number}",
        "customer": f"c-{number % 4}",
        "product": f"p-{number % 12}",
        "amount": number + 0.25,
        "ordered_at": ordered_at,
    }


def payment(of: Event, after: timedelta) -> Event:
    return {"order_id": of["order_id"], "amount": of["amount"], "paid_at": of["ordered_at"] + after}


def reading(device: str, celsius: float, ago_s: int) -> Event:
    return {"device": device, "celsius": celsius, "measured_at": NOW - timedelta(seconds=ago_s)}


# Far enough from each other in time for several visits, and no two at the same second.
ORDERS = [order(n, NOW - (n * 13 % 47) * MINUTE - timedelta(seconds=n)) for n in range(30)]
# Of three orders one is paid in time, one is paid too late, and one not at all.
PAYMENTS = [payment(one, 5 * MINUTE) for one in ORDERS[::3]]
PAYMENTS += [payment(one, 40 * MINUTE) for one in ORDERS[1::3]]
# In any order, and one of them twice: d1 has had two that are too hot, d3 three.
READINGS = [
    reading("d3", 83, 30),
    reading("d1", 70, 50),
    reading("d1", 90, 40),
    reading("d3", 81, 50),
]
READINGS += [
    reading("d1", 91, 30),
    reading("d1", 91, 30),
    reading("d2", 99, 9),
    reading("d3", 82, 40),
]

# In the second update: a payment for an order of the first, and an order so late that all windows end.
LAST = order(99, NOW + 3 * HOUR)
MORE_PAYMENTS = [payment(ORDERS[5], 10 * MINUTE), payment(LAST, MINUTE)]
# The third of d1, a fourth of d3, and devices of which nothing was known.
MORE_READINGS = [reading("d1", 92, 20), reading("d3", 84, 20)]
MORE_READINGS += [reading(f"h{n}", 85, 20 - step) for n in range(5) for step in range(3)]
HOT = sorted(["d1", *(f"h{n}" for n in range(5))])


def send(client: FlightClient, topic: str, events: list[Event], *more: bytes) -> None:
    texts = [json.dumps(one, default=datetime.isoformat).encode() for one in events]
    values = pa.array([*texts, *more], pa.binary())
    client.write(topic, pa.table({"value": values}), create=True)


# --- what comes of it ------------------------------------------------------------------------------


def moment(found: Any) -> Any:
    """Files have times without a zone, in UTC."""
    if not isinstance(found, datetime):
        return found
    return datetime(*found.timetuple()[:6], tzinfo=UTC)


@dataclass
class Gold:
    project: Path
    sql: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    python: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    alerts: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    first_alerts: list[tuple[Any, ...]] = field(default_factory=list)
    first_paid: list[tuple[Any, ...]] = field(default_factory=list)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = read_table(table_directory(load_project(self.project), table))
        found = found.select(list(columns)) if columns else found
        return sorted(tuple(map(moment, row.values())) for row in found.to_pylist())


VIEWS = ("revenue_by_minute", "visits", "last_order", "top_products")


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gold]:
    settings = {**SETTINGS, **FLIGHT, "audit.enabled": "false"}
    directory = tmp_path_factory.mktemp("gold")
    with LiveServer(directory / "data", settings) as server:
        flight = f"127.0.0.1:{server.port('flight')}"
        found = Gold(example_project(directory / "shop", flight))
        registry = server.server.broker.schemas.registry
        for path in (found.project / "schemas").iterdir():
            registry.register(path.stem, "json", path.read_bytes())
        with connect(flight, KEY) as client, OneSession(found.project) as session:
            found.refusals.append(refused(session))
            first_update(found, client, session)
            found.refusals.append(refused(session, refresh=["paid_order"]))
            found.refusals.append(refused(session, full_refresh=["default.unpaid"]))
            run(second_update(found, client, session, server))
    yield found


def example_project(directory: Path, flight: str) -> Path:
    """With the views of a new project, which are in SQL. Bronze has tests of its own."""
    write_project(directory)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("127.0.0.1:8815", flight))
    make_quick(directory)
    kept = (directory / "transformations" / "orders.py").read_text()
    shutil.copytree(EXAMPLES / "schemas", directory / "schemas", dirs_exist_ok=True)
    shutil.rmtree(directory / "transformations")
    shutil.copytree(EXAMPLES / "transformations", directory / "transformations")
    (directory / "transformations" / "orders.py").write_text(kept)
    return directory


def refused(session: OneSession, **selection: list[str]) -> str:
    with pytest.raises(Refused) as raised:
        session.update(**selection)
    return str(raised.value)


def first_update(gold: Gold, client: FlightClient, session: OneSession) -> None:
    send(client, "orders", ORDERS)
    send(client, "payments", PAYMENTS)
    send(client, "readings", READINGS, b"no json")
    session.update()
    gold.sql = {table: gold.rows(table) for table in VIEWS}
    gold.first_alerts = gold.rows("device_alerts")
    gold.first_paid = gold.rows("paid_orders", "order_id", "paid_at")


async def second_update(
    gold: Gold, client: FlightClient, session: OneSession, server: LiveServer
) -> None:
    """With the views in Python, while clients of all protocols wait for alerts."""
    shutil.copy(EXAMPLES / "transformations" / "orders.py", gold.project / "transformations")
    send(client, "orders", [LAST])
    send(client, "payments", MORE_PAYMENTS)
    send(client, "readings", MORE_READINGS)
    async with meeting(address_of(server)) as clients:
        readers = {name: await one.open("shop/devices/alerts") for name, one in clients.items()}
        await asyncio.to_thread(session.update)
        found = await asyncio.gather(*(read(len(HOT)) for read in readers.values()))
    for name, values in zip(readers, found, strict=True):
        gold.alerts[name] = sorted(json.loads(value)["device"] for value in values)
    gold.python = {table: gold.rows(table) for table in VIEWS}


# --- views -----------------------------------------------------------------------------------------


def revenue_by_minute(orders: list[Event]) -> list[tuple[Any, ...]]:
    found: dict[datetime, list[float]] = defaultdict(list)
    for one in orders:
        found[one["ordered_at"].replace(second=0)].append(one["amount"])
    return sorted((minute, len(some), round(sum(some), 2)) for minute, some in found.items())


def visits(orders: list[Event]) -> list[tuple[Any, ...]]:
    found: list[list[Any]] = []
    for one in sorted(orders, key=lambda one: (one["customer"], one["ordered_at"])):
        customer, at = one["customer"], one["ordered_at"]
        if found and found[-1][0] == customer and at < found[-1][2]:
            found[-1][2:] = [at + 10 * MINUTE, found[-1][3] + 1]
        else:
            found.append([customer, at, at + 10 * MINUTE, 1])
    return sorted(tuple(one) for one in found)


def last_order(orders: list[Event]) -> list[tuple[Any, ...]]:
    last = {one["customer"]: one for one in sorted(orders, key=lambda one: one["ordered_at"])}
    return sorted((name, one["order_id"], one["ordered_at"]) for name, one in last.items())


def top_products(orders: list[Event]) -> list[tuple[Any, ...]]:
    revenue: dict[str, float] = defaultdict(float)
    for one in orders:
        revenue[one["product"]] += one["amount"]
    best = sorted(revenue.items(), key=lambda one: -one[1])[:10]
    return sorted((product, round(sum_, 2)) for product, sum_ in best)


@pytest.mark.parametrize("view", [revenue_by_minute, visits, last_order, top_products])
def test_views_in_sql_and_in_python(
    gold: Gold, view: Callable[[list[Event]], list[tuple[Any, ...]]]
) -> None:
    assert gold.sql[view.__name__] == view(ORDERS)
    assert gold.python[view.__name__] == view([*ORDERS, LAST])


# --- what cannot be ----------------------------------------------------------------------------------


def test_a_table_whose_topic_is_missing(gold: Gold) -> None:
    """A file of SQL reads it. The line says what is missing, and why."""
    text = gold.refusals[0]
    assert "orders_silver` cannot be found" in text
    assert "no table for topic orders yet: " in text


def test_names_of_no_table_are_refused(gold: Gold) -> None:
    for text, name in zip(gold.refusals[1:], ("paid_order", "default.unpaid"), strict=True):
        assert text.startswith(f"no table named {name}; there are device_alerts, last_order, ")
        assert "paid_orders" in text and "unpaid_orders" in text


# --- streams ---------------------------------------------------------------------------------------


def test_each_order_with_its_payment_once(gold: Gold) -> None:
    """One payment came in another update than its order."""
    in_time = [(one["order_id"], one["paid_at"]) for one in PAYMENTS[:10]]
    assert gold.first_paid == sorted(in_time)
    later = [(one["order_id"], one["paid_at"]) for one in MORE_PAYMENTS]
    assert gold.rows("paid_orders", "order_id", "paid_at") == sorted([*in_time, *later])


def test_orders_without_a_payment(gold: Gold) -> None:
    """Written when no payment can come any more."""
    paid = {one["order_id"] for one in (*PAYMENTS[:10], *MORE_PAYMENTS)}
    unpaid = [(one["order_id"],) for one in ORDERS if one["order_id"] not in paid]
    assert gold.rows("unpaid_orders", "order_id") == sorted(unpaid)


def test_windows_as_a_stream(gold: Gold) -> None:
    """All hours but that of the last order, which is not over."""
    hours: dict[datetime, list[float]] = defaultdict(list)
    for one in ORDERS:
        hours[one["ordered_at"].replace(minute=0, second=0)].append(one["amount"])
    wanted = [(hour, len(some), round(sum(some), 2)) for hour, some in hours.items()]
    assert gold.rows("orders_by_hour") == sorted(wanted)


def test_state_of_each_device(gold: Gold) -> None:
    """Three in a row, also across updates; a copy is none of them, nor is what does not decode."""
    assert gold.first_alerts == [("d3", 83.0, NOW - timedelta(seconds=30))]
    assert gold.rows("device_alerts", "device") == sorted((one,) for one in ["d3", *HOT])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_alerts_are_read_with_every_protocol(gold: Gold, protocol: str) -> None:
    assert gold.alerts[protocol] == HOT
