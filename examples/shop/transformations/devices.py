"""Devices that get too hot: state of each device with transformWithState, and alerts back into a topic.

An alert is one row of `device_alerts` and one message in the topic `shop/devices/alerts`, for clients of
every protocol: streams of Felix have names of three parts.
"""

from collections.abc import Iterator
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.spark.pipeline import ready, stream, to_topic

LIMIT_CELSIUS = 80.0
IN_A_ROW = 3


class TooHot(StatefulProcessor):
    """An alert for the third reading in a row above the limit. The state of a device is how many there
    were, and the time of its last reading: one that is not newer is a copy, or came too late."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.device = handle.getValueState("device", "hot INT, last_us LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        hot, last_us = self.device.get() or (0, 0)
        for row in sorted(rows, key=lambda one: one.time_us):
            if row.time_us <= last_us:
                continue
            last_us = row.time_us
            hot = hot + 1 if row.celsius > LIMIT_CELSIUS else 0
            if hot == IN_A_ROW:
                yield Row(device=key[0], celsius=row.celsius, measured_at=row.measured_at)
        self.device.update((hot, last_us))


if ready("readings", schema="reading"):
    # It reads the topic, and stands outside of the function: Spark looks at the columns of a stream with
    # state at once, when a table of this pipeline is not there yet, and refuses to look inside of one.
    readings = stream(subscribe="readings", schema="registry", schemaName="reading")
    hot = (
        readings.where("_error IS NULL AND NOT _deleted")
        .selectExpr("device", "celsius", "measured_at", "unix_micros(measured_at) AS time_us")
        .groupBy("device")
        .transformWithState(
            TooHot(),
            outputStructType="device STRING, celsius DOUBLE, measured_at TIMESTAMP",
            outputMode="append",
            timeMode="none",  # with processingTime an update would never end
        )
    )

    @dp.table
    def device_alerts() -> DataFrame:
        return hot

    @to_topic("shop/devices/alerts")
    def alerts() -> DataFrame:
        rows = SparkSession.active().readStream.table("device_alerts")
        return rows.selectExpr("device AS key", "to_json(struct(*)) AS value")
