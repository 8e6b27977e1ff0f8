"""Typed rows: JSON of ten fields decoded in the source, against `from_json` over the raw value.

In the same run, both give the same columns to a sink that keeps nothing, and both read the same topic with
as many tasks. The control reads it without decoding.
"""

import json
import random
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark_bench import KEY, Bench, consume, seconds
from benchmarks.table import Table, interleaved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASKS = 4
LEAST_TYPED = 1.3
# Values that differ; more of them would only take longer to make.
DISTINCT = 50_000
BATCH_ROWS = 25_000
FIELDS: Final[dict[str, dict[str, str]]] = {
    "order_id": {"type": "integer"},
    "customer": {"type": "string"},
    "sku": {"type": "string"},
    "quantity": {"type": "integer"},
    "price": {"type": "number"},
    "currency": {"type": "string"},
    "paid": {"type": "boolean"},
    "country": {"type": "string"},
    "note": {"type": "string"},
    "created": {"type": "string", "format": "date-time"},
}
SPARK_FIELDS = (
    "order_id BIGINT, customer STRING, sku STRING, quantity BIGINT, price DOUBLE, currency STRING,"
    " paid BOOLEAN, country STRING, note STRING, created TIMESTAMP"
)


def table(bench: Bench, rows: int, rounds: int) -> Table:
    from pyspark.sql import functions as F

    _fill(bench, "typed", rows)
    raw = bench.reading("typed", minPartitions=TASKS)
    position = ["topic", "partition", "offset", "timestamp"]
    parsed = raw.select(
        F.from_json(F.col("value").cast("string"), SPARK_FIELDS).alias("v"), *position
    ).select("v.*", *position)
    typed = bench.reading(
        "typed", minPartitions=TASKS, schema="registry", schemaName="bench-order"
    ).select(*FIELDS, *(f"_{name}" for name in position))
    _check(parsed, typed)
    found = interleaved(
        {
            "warm": lambda: seconds(lambda: consume(parsed)) + seconds(lambda: consume(typed)),
            "raw": lambda: rows / seconds(lambda: consume(raw)),
            "from_json": lambda: rows / seconds(lambda: consume(parsed)),
            "typed": lambda: rows / seconds(lambda: consume(typed)),
        },
        rounds,
    )
    made = Table(f"Spark, {rows:,} rows of JSON with ten fields as columns")
    made.add("control: the raw value, not decoded", found["raw"], "rows/s")
    made.add("from_json over the raw value", found["from_json"], "rows/s")
    made.compare("typed rows", found["typed"], "rows/s", found["from_json"], LEAST_TYPED)
    return made


def _check(parsed: "DataFrame", typed: "DataFrame") -> None:
    """Both give the same: else there is nothing to compare."""
    sums = "sum(order_id)", "sum(price)", "count(customer)", "max(created)", "count_if(paid)"
    one, other = parsed.selectExpr(*sums).first(), typed.selectExpr(*sums).first()
    assert one is not None and other is not None and tuple(one)[2:] == tuple(other)[2:], (
        one,
        other,
    )


def _fill(bench: Bench, topic: str, rows: int) -> None:
    import pyarrow as pa

    schema = {"type": "object", "required": ["order_id", "customer"], "properties": FIELDS}
    _post(
        bench, "schemas", {"name": "bench-order", "type": "json", "definition": json.dumps(schema)}
    )
    _post(bench, "topics", {"name": topic, "partitions": 1})
    values = [json.dumps(one).encode() for one in _orders(min(rows, DISTINCT))]
    done = 0
    while done < rows:
        some = values[done % len(values) :][: min(BATCH_ROWS, rows - done)]
        bench.client.write(topic, pa.table({"value": pa.array(some, pa.binary())}))
        done += len(some)


def _orders(count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    return [
        {
            "order_id": number * 7919,
            "customer": f"customer-{chance.randrange(10**6)}",
            "sku": f"SKU-{chance.randrange(10**5):05d}",
            "quantity": chance.randrange(1, 20),
            "price": round(chance.random() * 1000, 2),
            "currency": chance.choice(["EUR", "USD", "GBP"]),
            "paid": chance.random() < 0.5,
            "country": chance.choice(["DE", "FR", "US", "JP"]),
            "note": "leave it at the door " * chance.randrange(3),
            "created": f"2026-01-02T03:04:05.{chance.randrange(10**6):06d}Z",
        }
        for number in range(count)
    ]


def _post(bench: Bench, path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{bench.http_port}/api/v1/{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request):
        return
