"""The Spark job of the report: one pass over the log, then sums over what the tasks have counted.

Only small results come to this process: as many topics, keys and reasons as the page shows, and a number
for each bar. The rows of the tasks are kept by Spark, on disk where they do not fit into memory.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.spark.report.asking import Asked
from penstock.spark.report.buckets import chosen_s
from penstock.spark.report.counting import NULL_VALUE, SECOND_US
from penstock.spark.report.errors import NoTraffic
from penstock.spark.report.facts import (
    KeyCount,
    Reason,
    Reasons,
    Series,
    TopicKeys,
    TopicTotals,
    Traffic,
)
from penstock.spark.report.heavy import CAPACITY
from penstock.spark.report.limits import (
    COLOURED_TOPICS,
    KEYED_TOPICS,
    PROTOCOLS,
    SHOWN_KEYS,
    SHOWN_REASONS,
    SHOWN_TOPICS,
)
from penstock.spark.report.source import FORMAT, TrafficSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def count_traffic(spark: "SparkSession", asked: Asked) -> Traffic:
    """Raises NoTraffic, TooManyBars; whatever Spark raises."""
    spark.dataSource.register(TrafficSource)
    counts = spark.read.format(FORMAT).options(**asked.options()).load().persist()
    try:
        return _Sums(counts, asked).traffic()
    finally:
        counts.unpersist()


class _Sums:
    def __init__(self, counts: "DataFrame", asked: Asked) -> None:
        from pyspark.sql import functions as F

        self._F = F
        self._counts = counts
        self._asked = asked

    def traffic(self) -> Traffic:
        whole = self._whole()
        if not whole["records"] and not whole["letters"]:
            raise NoTraffic(self._asked.period)
        first_us, last_us = whole["low"], whole["high"]
        first_s, last_s = first_us // SECOND_US, last_us // SECOND_US
        width_s = chosen_s(self._asked.bucket, first_s, last_s)
        topics = self._topics()
        coloured = [one.name for one in topics[:COLOURED_TOPICS]]
        bars = range(first_s - first_s % width_s, last_s + 1, width_s)
        volume, sizes = self._volume(coloured, width_s)
        reasons = self._reasons() if whole["letters"] or whole["refusals"] else {}
        by_topic = [(topic, start, one) for topic, _, start, one in volume]
        by_protocol = [(protocol, start, one) for _, protocol, start, one in volume]
        others = [None] if whole["topics"] > len(coloured) else []
        return Traffic(
            first_us=first_us,
            last_us=last_us,
            start_s=bars.start,
            width_s=width_s,
            records=whole["records"],
            payload_bytes=whole["payload_bytes"],
            largest_bytes=whole["largest"],
            null_values=sizes.pop(NULL_VALUE, 0),
            topic_count=whole["topics"],
            partition_count=whole["partitions"],
            topics=topics,
            by_topic=_series([*coloured, *others], bars, by_topic),
            by_protocol=_series(_protocols(volume), bars, by_protocol),
            sizes=sizes,
            keys=self._keys(),
            letters=Reasons(whole["letters"], reasons.get("reason", ())),
            refusals=Reasons(whole["refusals"], reasons.get("refusal", ())),
        )

    def _of(self, *kinds: str) -> "DataFrame":
        return self._counts.where(self._F.col("kind").isin(*kinds))

    def _whole(self) -> dict[str, Any]:
        """Of all topics. Times are those of dead letters too: without records they are all there is."""
        F = self._F

        def of(kind: str, column: Any) -> Any:
            found = F.col(column) if isinstance(column, str) else column
            return F.when(F.col("kind") == kind, found)

        place = F.struct("topic", "partition")
        seen = F.col("kind") != "refusals"
        (row,) = (
            self._of("range", "letters", "refusals")
            .agg(
                F.sum(of("range", "records")).alias("records"),
                F.sum(of("range", "payload_bytes")).alias("payload_bytes"),
                F.max(of("range", "number")).alias("largest"),
                F.count_distinct(of("range", "topic")).alias("topics"),
                F.count_distinct(of("range", place)).alias("partitions"),
                F.sum(of("letters", "records")).alias("letters"),
                F.sum(of("refusals", "records")).alias("refusals"),
                F.min(F.when(seen, F.col("low"))).alias("low"),
                F.max(F.when(seen, F.col("high"))).alias("high"),
            )
            .collect()
        )
        return {name: value or 0 for name, value in row.asDict().items()}

    def _topics(self) -> tuple[TopicTotals, ...]:
        """The largest ones."""
        F = self._F
        partitions = (
            self._of("range")
            .groupBy("topic", "partition")
            .agg(*self._sums(), F.max("number").alias("largest"))
        )
        topics = partitions.groupBy("topic").agg(
            *self._sums(),
            F.max("largest").alias("largest"),
            F.count("*").alias("partitions"),
            F.max("records").alias("busiest"),
        )
        rows = topics.orderBy(F.desc("records"), "topic").limit(SHOWN_TOPICS).collect()
        return tuple(
            TopicTotals(
                row.topic,
                row.records,
                row.payload_bytes,
                row.largest,
                row.partitions,
                row.busiest,
            )
            for row in rows
        )

    def _sums(self) -> "list[Column]":
        return [self._F.sum(name).alias(name) for name in ("records", "payload_bytes")]

    def _volume(
        self, coloured: list[str], width_s: int
    ) -> tuple[list[tuple[str | None, str, int, tuple[int, int]]], dict[int, int]]:
        """Topic (None: another one), protocol, start, records and bytes; and the sizes, of all topics."""
        F = self._F
        volume = F.col("kind") == "volume"
        name = F.when(volume & F.col("topic").isin(*coloured), F.col("topic"))
        start = F.when(volume, F.col("number") - F.col("number") % width_s)
        rows = (
            self._of("volume", "size")
            .groupBy(
                "kind",
                name.alias("topic"),
                "text",
                start.otherwise(F.col("number")).alias("number"),
            )
            .agg(*self._sums())
            .collect()
        )
        found = [
            (row.topic, row.text, row.number, (row.records, row.payload_bytes))
            for row in rows
            if row.kind == "volume"
        ]
        return found, {row.number: row.records for row in rows if row.kind == "size"}

    def _keys(self) -> tuple[TopicKeys, ...]:
        from pyspark.sql import Window

        F = self._F
        keyed = (
            self._of("keyed")
            .groupBy("topic")
            .agg(F.sum("records").alias("records"), F.sum("number").alias("slack"))
            .orderBy(F.desc("records"), "topic")
            .limit(KEYED_TOPICS)
            .collect()
        )
        if not keyed:
            return ()
        topic = Window.partitionBy("topic")
        ranked = (
            self._of("key")
            .where(F.col("topic").isin(*(row.topic for row in keyed)))
            .groupBy("topic", "key")
            .agg(F.sum("records").alias("records"))
            .withColumn("place", F.row_number().over(topic.orderBy(F.desc("records"), "key")))
            .withColumn("different", F.count("*").over(topic))
            .where(F.col("place") <= SHOWN_KEYS)
            .orderBy("topic", "place")
            .collect()
        )
        return tuple(
            _keys_of(one, [row for row in ranked if row.topic == one.topic]) for one in keyed
        )

    def _reasons(self) -> dict[str, tuple[Reason, ...]]:
        """By the kind of their rows."""
        from pyspark.sql import Window

        F = self._F
        kind = Window.partitionBy("kind").orderBy(F.desc("records"), "topic", "text")
        rows = (
            self._of("reason", "refusal")
            .groupBy("kind", "topic", "text")
            .agg(F.sum("records").alias("records"))
            .withColumn("place", F.row_number().over(kind))
            .where(F.col("place") <= SHOWN_REASONS)
            .orderBy("kind", "place")
            .collect()
        )
        found: dict[str, tuple[Reason, ...]] = {}
        for row in rows:
            reason = Reason(row.topic, row.text, row.records)
            found[row.kind] = (*found.get(row.kind, ()), reason)
        return found


def _keys_of(keyed: Any, ranked: list[Any]) -> TopicKeys:
    """Where counters were given up, there are more keys than counters."""
    different = ranked[0].different if ranked else 0
    if keyed.slack:
        different = max(different, CAPACITY)
    top = tuple(KeyCount(bytes(row.key), row.records) for row in ranked)
    return TopicKeys(keyed.topic, keyed.records, different, keyed.slack, top)


def _protocols(volume: Iterable[tuple[Any, str, int, Any]]) -> list[str]:
    there = {protocol for _, protocol, _, _ in volume}
    return [*(one for one in PROTOCOLS if one in there), *sorted(there - set(PROTOCOLS))]


def _series(
    names: Iterable[str | None],
    bars: range,
    counted: Iterable[tuple[str | None, int, tuple[int, int]]],
) -> tuple[Series, ...]:
    sums: dict[str | None, tuple[list[int], list[int]]] = {
        name: ([0] * len(bars), [0] * len(bars)) for name in names
    }
    for name, start, (records, size) in counted:
        bar = bars.index(start)
        sums[name][0][bar] += records
        sums[name][1][bar] += size
    return tuple(
        Series(name, tuple(records), tuple(sizes)) for name, (records, sizes) in sums.items()
    )
