"""What a task counts, compared with plain Python; and that it keeps to its bounds."""

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock.broker.audit.events import Event, encode
from penstock.spark.report import counting
from penstock.spark.report.counting import (
    COLUMNS,
    NO_REASON,
    range_for,
    short_key,
    short_reason,
)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FOREVER_US = 1 << 62


def batch(
    times_us: list[int],
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    protocols: list[str | None] | None = None,
    headers: list[Any] | None = None,
) -> pa.RecordBatch:
    count = len(times_us)
    return pa.record_batch(
        {
            "key": pa.array(keys or [None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times_us, pa.timestamp("us", "UTC")),
            "protocol": pa.array(protocols or [None] * count, pa.string()),
            "headers": pa.array(headers or [None] * count, HEADERS),
        }
    )


def rows(found: pa.RecordBatch, kind: str) -> list[dict[str, Any]]:
    return [one for one in found.to_pylist() if one["kind"] == kind]


@pytest.mark.parametrize("at_once", [1, 7, 65_536])
def test_traffic(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches are counted together."""
    monkeypatch.setattr(counting, "ROWS_AT_ONCE", at_once)
    counted = range_for("orders", 3, 0, FOREVER_US)
    sizes = [0, 1, 2, 3, 4, 255, 256, 1000, 5, None]
    for number in range(20):
        counted.add(
            batch(
                [number * 1_000_000 + one for one in range(10)],
                [None if size is None else b"v" * size for size in sizes],
                [b"a", b"a", b"b", None, None, b"a", b"c", None, b"", b"a"],
                ["flymq", "http"] * 5,
            )
        )
    found = counted.rows()
    assert found.schema == COLUMNS
    (whole,) = rows(found, "range")
    assert (whole["topic"], whole["partition"]) == ("orders", 3)
    assert (whole["records"], whole["payload_bytes"], whole["number"]) == (200, 20 * 1526, 1000)
    assert (whole["low"], whole["high"]) == (0, 19_000_009)
    bits = {one["number"]: one["records"] for one in rows(found, "size")}
    expected = Counter(-1 if size is None else size.bit_length() for size in sizes)
    assert bits == {number: 20 * count for number, count in expected.items()}
    volume = {
        (one["number"], one["text"]): (one["records"], one["payload_bytes"], one["high"])
        for one in rows(found, "volume")
    }
    assert volume == {
        (second, protocol): (5, size, 1)
        for second in range(20)
        for protocol, size in (("flymq", 0 + 2 + 4 + 256 + 5), ("http", 1 + 3 + 255 + 1000))
    }
    keys = {one["key"]: one["records"] for one in rows(found, "key")}
    assert keys == {b"a": 80, b"b": 20, b"c": 20, b"": 20}
    (keyed,) = rows(found, "keyed")
    assert (keyed["records"], keyed["number"]) == (140, 0)


def test_only_the_period_counts() -> None:
    counted = range_for("orders", 0, 1_000, 2_000)
    counted.add(batch([999, 1_000, 1_999, 2_000], [b"a", b"bb", b"ccc", b"dddd"]))
    counted.add(batch([2_001], [b"e"]))
    found = counted.rows()
    (whole,) = rows(found, "range")
    assert (whole["records"], whole["payload_bytes"]) == (2, 5)
    nothing = range_for("orders", 0, 1_000, 2_000)
    nothing.add(batch([5], [b"a"]))
    assert nothing.rows().num_rows == 0


def test_bars_become_wider() -> None:
    """A year of seconds is not a year of bars, and no record is lost on the way."""
    counted = range_for("orders", 0, 0, FOREVER_US)
    hour_us = 3600 * 1_000_000
    for day in range(365):
        times = [(24 * day + hour) * hour_us for hour in range(24)]
        counted.add(batch(times, [b"x"] * 24))
    found = rows(counted.rows(), "volume")
    assert len(found) <= 600
    assert sum(one["records"] for one in found) == 365 * 24
    (width_s,) = {one["high"] for one in found}
    assert all(one["number"] % width_s == 0 for one in found)


def test_very_many_keys_take_bounded_room() -> None:
    counted = range_for("orders", 0, 0, FOREVER_US)
    for part in range(10):
        keys: list[bytes | None] = [b"%d" % (part * 5_000 + one) for one in range(5_000)]
        counted.add(batch([part] * 10_000, [b""] * 10_000, [*keys, *[b"hot"] * 5_000]))
    found = counted.rows()
    keys_found = {one["key"]: one["records"] for one in rows(found, "key")}
    (keyed,) = rows(found, "keyed")
    assert keyed["records"] == 100_000
    assert len(keys_found) <= 2048
    assert keys_found[b"hot"] <= 50_000 <= keys_found[b"hot"] + keyed["number"]
    assert found.nbytes < 1 << 20


def test_long_keys_stay_different() -> None:
    one, two = b"k" * 10_000 + b"1", b"k" * 10_000 + b"2"
    assert short_key(b"short") == b"short"
    assert short_key(one) != short_key(two)
    assert len(short_key(one)) < 200


def test_dead_letters_by_their_reasons() -> None:
    def reason(text: bytes) -> dict[str, Any]:
        return {"key": "penstock-reason", "value": text}

    counted = range_for("orders.dlq", 0, 0, FOREVER_US)
    headers = [
        [reason(b"late")],
        [reason(b"of the peer"), {"key": "h", "value": b"x"}, reason(b"late")],
        [{"key": "other", "value": b"late"}],
        None,
        [reason(b"\xff<b>\n\n" + b"z" * 9_000)],
    ]
    counted.add(batch([5] * 5, [b"a"] * 5, headers=headers))
    counted.add(batch([6], [b"a"], headers=[[reason(b"late")]]))
    found = counted.rows()
    (whole,) = rows(found, "letters")
    assert (whole["topic"], whole["records"]) == ("orders", 6)
    reasons = {one["text"]: one["records"] for one in rows(found, "reason")}
    assert reasons.pop("late") == 3
    assert reasons.pop(NO_REASON) == 2
    (odd,) = reasons
    assert odd.startswith("\ufffd<b> zzz")
    assert len(odd) <= 200


def test_what_the_audit_trail_says_was_refused() -> None:
    def event(
        type: str, door: str, result: str = "success", action: str = "", **details: str
    ) -> bytes:
        return encode(
            Event(
                id="1",
                time_us=1,
                time="",
                type=type,
                door=door,
                result=result,
                action=action,
                details=details,
            )
        )

    values: list[bytes | None] = [
        event("auth.login", "http"),
        event("auth.failure", "http", "failure", **{"with": "key"}),
        event("auth.failure", "http", "failure", **{"with": "key", "repeats": "41"}),
        event("auth.denied", "flymq", "denied", "PRODUCE"),
        *(None, b"no JSON", json.dumps({"type": 1}).encode(), b"\xff"),
    ]
    counted = range_for("_audit", 0, 0, FOREVER_US)
    counted.add(batch([1] * len(values), values))
    found = counted.rows()
    (whole,) = rows(found, "refusals")
    assert whole["records"] == 43
    assert {(one["topic"], one["text"]): one["records"] for one in rows(found, "refusal")} == {
        ("http", "auth.failure, key"): 42,
        ("flymq", "auth.denied, PRODUCE"): 1,
    }


@pytest.mark.parametrize(
    ("raw", "text"), [(None, NO_REASON), (b" \n ", NO_REASON), (b"a\n\tb", "a b")]
)
def test_reasons_are_one_line(raw: bytes | None, text: str) -> None:
    assert short_reason(raw) == text
