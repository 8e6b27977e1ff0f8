"""Orders, and four views of them in Python: the same ones that a new project has in SQL.

A materialized view is computed anew by every update, from all rows of its table.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.pipeline import expect, silver


def orders() -> DataFrame:
    return SparkSession.active().read.table("orders_silver")


if silver(
    "orders",
    schema="order",
    key="order_id",
    event_time="ordered_at",
    watermark="1 hour",
    expectations=[
        expect("a price", "amount > 0", otherwise="dead-letter"),
        expect("no tests", "customer <> 'test'", otherwise="drop"),
    ],
):

    @dp.materialized_view
    def revenue_by_minute() -> DataFrame:
        """Tumbling windows."""
        by_minute = orders().groupBy(F.window("ordered_at", "1 minute"))
        counted = by_minute.agg(
            F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("revenue")
        )
        return counted.select(F.col("window.start").alias("minute"), "orders", "revenue")

    @dp.materialized_view
    def visits() -> DataFrame:
        """Session windows: orders of a customer with less than ten minutes between them."""
        session = F.session_window("ordered_at", "10 minutes").alias("session")
        counted = orders().groupBy("customer", session).agg(F.count("*").alias("orders"))
        began, ended = F.col("session.start").alias("began"), F.col("session.end").alias("ended")
        return counted.select("customer", began, ended, "orders")

    @dp.materialized_view
    def last_order() -> DataFrame:
        """The latest value of each key."""
        return (
            orders()
            .groupBy("customer")
            .agg(
                F.max_by("order_id", "ordered_at").alias("order_id"),
                F.max("ordered_at").alias("ordered_at"),
            )
        )

    @dp.materialized_view
    def top_products() -> DataFrame:
        """The ten that bring the most."""
        revenue = F.round(F.sum("amount"), 2).alias("revenue")
        return orders().groupBy("product").agg(revenue).orderBy(F.desc("revenue")).limit(10)
