"""Payments, and a join of two streams: each order with its payment, written once when both are there.

Spark keeps rows of both sides until the watermarks say that no partner can come any more. The delay of a
watermark is at least that of the silver table, so that what silver takes is never too late here.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.pipeline import silver


def rows_by_time(table: str, column: str) -> DataFrame:
    """A stream of a table of this pipeline with a watermark. In SQL, because withWatermark of Python looks
    at the table at once, and the first update has yet to make it."""
    watermark = f"WATERMARK {column} DELAY OF INTERVAL 1 HOUR"
    return SparkSession.active().sql(f"SELECT * FROM STREAM {table} {watermark}")


if silver("payments", schema="payment", key="order_id", event_time="paid_at", to_topic=False):

    @dp.table
    def paid_orders() -> DataFrame:
        """Paid within half an hour."""
        orders = rows_by_time("orders_silver", "ordered_at").alias("orders")
        payments = rows_by_time("payments_silver", "paid_at").alias("payments")
        partners = F.expr("""
            orders.order_id = payments.order_id
            AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 30 MINUTES""")
        return orders.join(payments, partners).select(
            "orders.order_id", "customer", "ordered_at", "paid_at", "payments.amount"
        )
