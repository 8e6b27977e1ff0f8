"""What befalls the world of the demonstration: more events, kills, and changes while everything runs."""

import asyncio
import json
import threading
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spark.pipeline.demo_world import World, until

from penstock.cli import main as cli
from penstock.demo.events import ORDERS, Amounts, Event, Fate
from penstock.demo.sending import SCHEMAS

# For the broker to be away.
AWAY_S: Final = 60.0
PARTITIONS: Final = 4
COUPONS: Final = ("spring", "börse", None)


def poison() -> list[Event]:
    """What makes decoders fail: each is a record that stands between good ones."""
    good = {
        "order_id": "poison",
        "customer": "customer-1",
        "product": "anvil",
        "amount": 1.0,
        "ordered_at": datetime.now(UTC).isoformat(),
    }
    text = json.dumps(good)
    malformed = [
        b"[" * (1 << 20),
        b"\xff" * 4096,
        b"\x00",
        b"{}",
        b"null",
        text.replace("1.0", "1e400").encode(),
        text.replace("1.0", "9" * 5000).encode(),
        text.replace("1.0", "NaN").encode(),
        text.replace('"poison"', '"\\ud800"').encode(),
        (text + text).encode(),
    ]
    early = {**good, "ordered_at": "0001-01-01T00:00:00+23:59"}
    late = Event(
        ORDERS,
        "blipmq",
        json.dumps(early).encode(),
        Fate.LATE,
        reason="late: ordered_at is more than 1 hour old",
        fields=early,
    )
    bad = [Event(ORDERS, "flymq", value, Fate.MALFORMED) for value in malformed]
    return [*bad, late]


class Story:
    """`kills`: what was killed so far."""

    def __init__(self, world: World, amounts: Amounts) -> None:
        self._world = world
        self._amounts = amounts
        self._coupons = False
        self._staged: dict[Path, int] = {}
        self.kills: list[str] = []

    def send(self, *, poisoned: bool = False) -> None:
        """Another wave. Poison is in its middle."""
        self._staged = self._world.broker.staged()
        events = self._world.wave(self._amounts)
        if self._coupons:
            events = [with_coupon(event) for event in events]
        middle = len(events) // 2
        asyncio.run(self._world.send(events[:middle]))
        asyncio.run(self._world.send([*(poison() if poisoned else ()), *events[middle:]]))

    def kill(self, what: str, delay_s: float = 0.0) -> None:
        """While a sink writes what was sent last to a topic, or so much later."""
        self._world.wait_for_staging(self._staged)
        if delay_s:
            threading.Event().wait(delay_s)
        if what == "executor":
            until(self._world.kill_executor)
        elif what == "broker":
            self._world.broker.kill()
            self._world.broker.start()
        else:
            self._world.start_pipeline().kill()
        self.kills.append(what)

    def evolve_schema(self) -> None:
        """Orders have a coupon from now on; those before have none."""
        definition = json.loads((SCHEMAS / "order.json").read_bytes())
        definition["properties"]["coupon"] = {"type": "string"}
        path = self._world.project.parent / "order-2.json"
        path.write_text(json.dumps(definition))
        self._penstock("schema", "register", "order", str(path))
        self._world.more_columns["orders_silver"] = ("coupon",)
        self._coupons = True

    def more_partitions(self) -> None:
        self._penstock("topic", "set", ORDERS, "--partitions", str(PARTITIONS))

    def broker_away(self) -> None:
        self._world.broker.kill()
        threading.Event().wait(AWAY_S)
        self._world.broker.start()

    def _penstock(self, *words: str) -> None:
        assert cli.main([*words, "--http", self._world.broker.http]) == 0


def with_coupon(event: Event) -> Event:
    """Both copies of an order that is sent twice have the same."""
    if event.topic != ORDERS or event.fields is None:
        return event
    number = zlib.crc32(event.fields["order_id"].encode())
    coupon = COUPONS[number % len(COUPONS)]
    if coupon is None:
        return event
    fields = {**event.fields, "coupon": coupon}
    return replace(event, value=json.dumps(fields).encode(), fields=fields)
