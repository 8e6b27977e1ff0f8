"""Each event once in a table of records, against the same in plain Python."""

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.spark.pipeline.blocks.once import first_of_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
WATERMARK_S = 60
Row = tuple[str | None, int, datetime, int, int]


def plainly(rows: list[Row]) -> set[int]:
    """The offsets of those that stay."""
    stays: dict[tuple[str | None, int], datetime] = {}
    found = set()
    for key, event, stored, _, offset in sorted(rows, key=lambda row: row[2:]):
        last = stays.get((key, event))
        if last is None or stored > last + timedelta(seconds=WATERMARK_S):
            stays[key, event] = stored
            found.add(offset)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_of_each_event_stays(spark: "SparkSession", seed: int) -> None:
    """Some come again at once, some at the same time, some much later, and then again."""
    chance = random.Random(seed)
    rows: list[Row] = [
        (
            chance.choice(["a", "b", "c", None]),
            chance.randrange(2),
            BEGAN + timedelta(seconds=chance.randrange(0, 400, 10)),
            chance.randrange(2),
            offset,
        )
        for offset in range(120)
    ]
    columns = "key string, event int, _timestamp timestamp, _partition int, _offset long"
    frame = first_of_each(
        spark.createDataFrame(rows, columns), ["key", "event"], f"{WATERMARK_S} seconds"
    )
    assert frame.columns == ["key", "event", "_timestamp", "_partition", "_offset"]
    assert {row._offset for row in frame.collect()} == plainly(rows)
