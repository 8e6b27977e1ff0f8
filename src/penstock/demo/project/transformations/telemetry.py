"""Telemetry of the machines on the shop floor, and alerts: what is too hot goes back to a topic, once."""

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipeline import expect, silver, to_topic

if silver(
    "shop/floor/telemetry",
    table="telemetry_silver",
    schema="telemetry",
    key=["device", "reading"],
    event_time="measured_at",
    watermark="1 hour",
    expectations=[
        expect("a possible temperature", "temperature BETWEEN -60 AND 150"),
    ],
):

    @to_topic("shop/floor/alerts")
    def alerts() -> DataFrame:
        readings = SparkSession.active().readStream.table("telemetry_silver")
        return readings.where("temperature > 80").selectExpr(
            "CAST(device AS BINARY) AS key",
            "CAST(to_json(struct(device, reading, temperature, measured_at)) AS BINARY) AS value",
        )
