"""Orders for the project that `penstock pipeline init` writes: good, late, doubled, broken and wrong ones,
and what must become of each, in plain Python."""

import json
from datetime import UTC, datetime, timedelta

NOW = datetime.now(UTC).replace(microsecond=0)
RULE = "a price: amount > 0"
LATE = "late: ordered_at is more than 1 hour old"


def order(number: int, amount: float = 1.5, customer: str = "ann", ago_s: int = 0) -> bytes:
    fields = {
        "order_id": f"o-{number}",
        "customer": customer,
        "amount": amount,
        "ordered_at": (NOW - timedelta(seconds=ago_s)).isoformat(),
        "product": f"p-{number % 3}",
    }
    return json.dumps(fields).encode()


def load() -> list[bytes]:
    """Good ones, some of them late but in time, twice, too late, broken, wrong, and of a test."""
    sent = [order(number, number + 0.5, f"c-{number % 5}", number) for number in range(60)]
    sent += [order(100, ago_s=3000), order(101, ago_s=7200), order(102, 0), order(103, -1)]
    sent += [order(104, customer="test"), b"no json", b'{"order_id": 7}', b"", *sent[10:20]]
    return sent


def judged(sent: list[bytes]) -> tuple[list[str], dict[int, str]]:
    """What must be in silver, by order, and in the dead letters, by offset: in plain Python."""
    good: dict[tuple[str, str], str] = {}
    bad: dict[int, str] = {}
    for offset, value in enumerate(sent):
        try:
            found = json.loads(value)
            fits = isinstance(found["order_id"], str) and bool(found["ordered_at"])
        except (ValueError, KeyError):
            fits = False
        if not fits:
            bad[offset] = "schema"
        elif not found["amount"] > 0:
            bad[offset] = RULE
        elif datetime.fromisoformat(found["ordered_at"]) < NOW - timedelta(hours=1):
            bad[offset] = LATE
        elif found["customer"] != "test":
            good[found["order_id"], found["ordered_at"]] = found["order_id"]
    return sorted(good.values()), bad
