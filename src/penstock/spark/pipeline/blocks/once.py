"""Each event once, in a table of records instead of a stream: for a backfill.

A stream remembers an event for the watermark after it has read it. Here the time at which the broker stored
a record stands for that: of records that are the same the first stays, and so does the next one that
came more than the watermark after the last that stays.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def first_of_each(rows: "DataFrame", same: Sequence[str], watermark: str) -> "DataFrame":
    """`same`: the columns in which rows of one event are the same."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*same).orderBy("_timestamp", "_partition", "_offset")
    rows = rows.withColumn("_n", F.row_number().over(order))
    rows = rows.withColumn("_first", F.first("_timestamp").over(order))
    # Few come again so late that they are another event. Only these are gone through one by one.
    late = f"_timestamp > _first + INTERVAL {watermark}"
    one = F.expr(f"IF({late}, named_struct('t', _timestamp, 'n', _n), NULL)")
    rows = rows.withColumn("_late", F.collect_list(one).over(order))
    last = (
        "aggregate(_late, named_struct('t', CAST(NULL AS TIMESTAMP), 'n', 0), (last, x) -> "
        f"IF(last.t IS NULL OR x.t > last.t + INTERVAL {watermark}, x, last)).n"
    )
    return rows.where(f"_n = 1 OR ({late} AND {last} = _n)").drop("_n", "_first", "_late")
