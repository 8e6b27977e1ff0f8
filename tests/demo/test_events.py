"""The load of the demonstration: the same from the same seed, and each event with the fate that its value
deserves."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from penstock.demo.events import (
    CLICKS,
    HOT,
    ORDERS,
    PRODUCTS,
    PROTOCOLS,
    TELEMETRY,
    WATERMARK,
    Amounts,
    Event,
    Fate,
    make_load,
)
from penstock.demo.reference import Expected

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
AMOUNTS = Amounts(orders=600, clicks=600, readings=600)
SCHEMAS: dict[str, dict[str, type]] = {
    ORDERS: {"order_id": str, "customer": str, "product": str, "amount": float, "ordered_at": str},
    CLICKS: {"click_id": str, "visitor": str, "product": str, "clicked_at": str},
    TELEMETRY: {"device": str, "reading": int, "temperature": float, "measured_at": str},
}
KEYS = {ORDERS: ("order_id",), CLICKS: ("click_id",), TELEMETRY: ("device", "reading")}


@pytest.fixture(scope="module")
def load() -> list[Event]:
    return make_load(Random(1), NOW, AMOUNTS)


def test_the_same_seed_makes_the_same_load(load: list[Event]) -> None:
    assert make_load(Random(1), NOW, AMOUNTS) == load
    assert make_load(Random(2), NOW, AMOUNTS) != load


def test_all_protocols_carry_something_and_every_fate_occurs(load: list[Event]) -> None:
    assert {event.protocol for event in load} == {"blipmq", "flymq", "rustlog", "felix", "fujin"}
    for topic, protocols in PROTOCOLS.items():
        assert {event.protocol for event in load if event.topic == topic} == set(protocols)
    assert {event.fate for event in load} == set(Fate)


def judged(event: Event) -> Fate | None:
    """By its value alone, without a look at what the generator says. None: a row, perhaps repeated."""
    try:
        fields = json.loads(event.value)
        times = [datetime.fromisoformat(fields[name]) for name in fields if name.endswith("_at")]
        for name, kind in SCHEMAS[event.topic].items():
            if not isinstance(fields[name], kind):
                return Fate.MALFORMED
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Fate.MALFORMED
    if fields.get("amount", 1) <= 0 or not -60 <= fields.get("temperature", 0) <= 150:
        return Fate.BROKEN_RULE
    if times[0] < NOW - WATERMARK:
        return Fate.LATE
    if fields.get("customer") == "test" or fields.get("visitor", "").startswith("bot-"):
        return Fate.DROPPED
    return None


def test_every_event_has_the_fate_that_its_value_deserves(load: list[Event]) -> None:
    seen: set[tuple[object, ...]] = set()
    for event in load:
        fate = judged(event)
        if fate is None:
            fields = json.loads(event.value)
            same = (event.topic, *(fields[name] for name in KEYS[event.topic]))
            fate = Fate.REPEATED if same in seen else Fate.ROW
            seen.add(same)
        assert event.fate is fate, event


def test_no_event_is_near_the_limit_of_what_is_late(load: list[Event]) -> None:
    """So that a slow machine does not make it late."""
    for event in load:
        if event.fields is not None:
            (text,) = [event.fields[name] for name in event.fields if name.endswith("_at")]
            age = NOW - datetime.fromisoformat(text)
            assert not timedelta(minutes=31) < age < timedelta(minutes=119)


def test_waves_share_no_event() -> None:
    chance = Random(1)
    first, second = (make_load(chance, NOW, AMOUNTS, wave) for wave in (1, 2))
    good = [{event.value for event in one if event.fate is Fate.ROW} for one in (first, second)]
    assert not good[0] & good[1]


def test_the_reference_counts_what_was_sent(load: list[Event]) -> None:
    expected = Expected(load)
    fates = Counter((event.topic, event.fate) for event in load)
    counts = expected.counts()
    assert counts["orders_silver"] == fates[ORDERS, Fate.ROW]
    assert counts["clicks_dead_letters"] == fates[CLICKS, Fate.LATE] + fates[CLICKS, Fate.MALFORMED]
    assert counts["products"] == len(PRODUCTS)
    revenue = sum(row[2] for row in expected.rows("revenue"))
    assert revenue == sum(row[3] for row in expected.rows("products"))
    assert sum(row[1] for row in expected.rows("revenue")) == counts["orders_silver"]
    assert expected.alerts()
    assert all(one["temperature"] > HOT for one in expected.alerts())
    assert expected.sent().total() == len(load)
