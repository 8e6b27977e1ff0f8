"""Orders, clicks and readings of machines, as services would send them: in time, late, twice, too late,
malformed, against the rules.

All of it follows from a source of randomness and a time that are passed in: the same ones make the same
load. Each event knows what must become of it. Sends nothing.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from random import Random
from typing import Any, Final

ORDERS: Final = "orders"
CLICKS: Final = "clicks"
TELEMETRY: Final = "shop/floor/telemetry"
ALERTS: Final = "shop/floor/alerts"

# By which protocols each kind of event comes in: all five carry something, and each topic has two of them.
PROTOCOLS: Final = {
    ORDERS: ("flymq", "blipmq"),
    CLICKS: ("rustlog", "fujin"),
    TELEMETRY: ("felix", "blipmq"),
}
# The watermark of the project. Events that are in time are at most half as old when they are made, so that
# a slow machine may take the other half to send them.
WATERMARK: Final = timedelta(hours=1)
OLDEST_IN_TIME: Final = WATERMARK / 2
YOUNGEST_LATE: Final = 2 * WATERMARK
OLDEST_LATE: Final = 6 * WATERMARK
# Quarters: sums of them are exact, in whatever order they are added.
PRICE_STEP: Final = 0.25
CUSTOMERS: Final = 40
DEVICES: Final = 12
PRODUCTS: Final = ("anvil", "bellows", "chisel", "drill", "file", "gauge", "hammer", "lathe")
HOT: Final = 80.0
NO_PRICE: Final = "a price: amount > 0"
IMPOSSIBLE: Final = "a possible temperature: temperature BETWEEN -60 AND 150"


class Fate(Enum):
    """What the pipeline does with an event. REPEATED: it was sent before."""

    ROW = "row"
    REPEATED = "repeated"
    LATE = "late"
    MALFORMED = "malformed"
    BROKEN_RULE = "broken rule"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Event:
    """`reason`: what the dead letter says, or None where it tells what the decoder says. `fields`: what
    the value means, for those that decode."""

    topic: str
    protocol: str
    value: bytes
    fate: Fate
    key: bytes | None = None
    reason: str | None = None
    fields: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many events of each kind, without those that are sent twice."""

    orders: int
    clicks: int
    readings: int


DEMO_AMOUNTS: Final = Amounts(orders=2000, clicks=4000, readings=4000)

# Of a thousand events so many have each of the fates; the others are rows.
_PER_MILLE: Final = {
    Fate.REPEATED: 60,
    Fate.LATE: 20,
    Fate.MALFORMED: 15,
    Fate.BROKEN_RULE: 15,
    Fate.DROPPED: 30,
}


def make_load(random: Random, now: datetime, amounts: Amounts, wave: int = 0) -> list[Event]:
    """In the order in which they are to be sent. `wave` is a part of every identity: events of two waves
    are never the same. Raises nothing; `now` needs a time zone."""
    maker = _Maker(random, now, wave)
    kinds = (
        (amounts.orders, maker.order),
        (amounts.clicks, maker.click),
        (amounts.readings, maker.reading),
    )
    turns = [make for count, make in kinds for _ in range(count)]
    random.shuffle(turns)
    events: list[Event] = []
    for make in turns:
        events.append(make(maker.fate()))
    return _with_repeats(random, events)


def _with_repeats(random: Random, events: Sequence[Event]) -> list[Event]:
    """A repeated event is sent a second time a little later, perhaps by another protocol."""
    found: list[Event] = []
    again: list[Event] = []
    for event in events:
        first = event
        if event.fate is Fate.REPEATED:
            first = _copy(event, event.protocol, Fate.ROW)
            again.append(_copy(event, random.choice(PROTOCOLS[event.topic]), Fate.REPEATED))
        found.append(first)
        if again and random.random() < 0.1:
            found.append(again.pop(random.randrange(len(again))))
    return found + again


def _copy(event: Event, protocol: str, fate: Fate) -> Event:
    key = event.key if protocol == "flymq" else None
    return Event(event.topic, protocol, event.value, fate, key, None, event.fields)


class _Maker:
    def __init__(self, random: Random, now: datetime, wave: int) -> None:
        self._random = random
        self._now = now
        self._wave = wave
        self._made = 0

    def fate(self) -> Fate:
        drawn = self._random.randrange(1000)
        for fate, share in _PER_MILLE.items():
            drawn -= share
            if drawn < 0:
                return fate
        return Fate.ROW

    def order(self, fate: Fate) -> Event:
        random = self._random
        customer = f"customer-{random.randrange(CUSTOMERS)}"
        if fate is Fate.DROPPED:
            customer = "test"
        amount = random.randrange(1, 400) * PRICE_STEP
        fields = {
            "order_id": f"o-{self._wave}-{self._number()}",
            "customer": customer,
            "product": random.choice(PRODUCTS),
            "amount": -amount if fate is Fate.BROKEN_RULE else amount,
            "ordered_at": self._time(fate),
        }
        return self._event(ORDERS, fields, fate, NO_PRICE, customer)

    def click(self, fate: Fate) -> Event:
        """There is no rule of clicks that makes dead letters."""
        if fate is Fate.BROKEN_RULE:
            fate = Fate.ROW
        random = self._random
        visitor = f"customer-{random.randrange(CUSTOMERS)}"
        fields = {
            "click_id": f"c-{self._wave}-{self._number()}",
            "visitor": f"bot-{random.randrange(9)}" if fate is Fate.DROPPED else visitor,
            "product": random.choice(PRODUCTS),
            "clicked_at": self._time(fate),
        }
        if random.random() < 0.5:
            fields["referrer"] = random.choice(("search", "letter", "größe/世界"))
        return self._event(CLICKS, fields, fate, "", "")

    def reading(self, fate: Fate) -> Event:
        """None of them is dropped. A reading in fifty is hot."""
        if fate is Fate.DROPPED:
            fate = Fate.ROW
        random = self._random
        hot = random.random() < 0.02
        degrees = random.randrange(324, 400) if hot else random.randrange(40, 300)
        fields = {
            "device": f"machine-{random.randrange(DEVICES)}",
            "reading": self._wave * 1_000_000 + self._number(),
            "temperature": 999.0 if fate is Fate.BROKEN_RULE else degrees / 4,
            "measured_at": self._time(fate),
        }
        return self._event(TELEMETRY, fields, fate, IMPOSSIBLE, "")

    def _event(self, topic: str, fields: dict[str, Any], fate: Fate, rule: str, key: str) -> Event:
        protocol = self._random.choice(PROTOCOLS[topic])
        value = json.dumps(fields, ensure_ascii=False).encode()
        reason = None
        if fate is Fate.MALFORMED:
            value = self._random.choice(MALFORMATIONS)(fields)
        elif fate is Fate.BROKEN_RULE:
            reason = rule
        elif fate is Fate.LATE:
            when = next(name for name in fields if name.endswith("_at"))
            reason = f"late: {when} is more than 1 hour old"
        sent_key = key.encode() if key and protocol == "flymq" else None
        known = None if fate is Fate.MALFORMED else fields
        return Event(topic, protocol, value, fate, sent_key, reason, known)

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _time(self, fate: Fate) -> str:
        youngest, oldest = timedelta(), OLDEST_IN_TIME
        if fate is Fate.LATE:
            youngest, oldest = YOUNGEST_LATE, OLDEST_LATE
        age = youngest + self._random.random() * (oldest - youngest)
        return (self._now - age).isoformat(timespec="milliseconds")


# --- what broken services send -------------------------------------------------------------------


def _cut_off(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()[:-7]


def _without_a_field(fields: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in fields.items() if not name.endswith("_at")}
    return json.dumps(kept).encode()


def _wrong_type(fields: dict[str, Any]) -> bytes:
    return json.dumps({**fields, "product": 7, "temperature": "warm"}).encode()


def _no_utf8(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode().replace(b': "', b': "\xff\xfe', 1)


def _no_time(fields: dict[str, Any]) -> bytes:
    times = {name: "yesterday" for name in fields if name.endswith("_at")}
    return json.dumps({**fields, **times}).encode()


def _a_list(fields: dict[str, Any]) -> bytes:
    return json.dumps([fields]).encode()


def _too_deep(fields: dict[str, Any]) -> bytes:
    """Deeper than a parser may go on its stack."""
    return b'{"more": ' + b"[" * 20_000


def _no_json(fields: dict[str, Any]) -> bytes:
    return b"\x00\x01 this is no order"


MALFORMATIONS: Final[tuple[Callable[[dict[str, Any]], bytes], ...]] = (
    _cut_off, _without_a_field, _wrong_type, _no_utf8, _no_time, _a_list, _too_deep, _no_json,
)  # fmt: skip
