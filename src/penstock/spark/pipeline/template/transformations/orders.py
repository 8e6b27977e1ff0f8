"""The topic orders as a clean table, what is wrong with the rest, and what is made of it.

The tables come with the first update after there are a topic orders and a schema order; see README.md.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipeline import expect, silver


def sql(text: str) -> DataFrame:
    return SparkSession.active().sql(text)


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
        return sql("""
            SELECT window.start AS minute, count(*) AS orders, round(sum(amount), 2) AS revenue
            FROM orders_silver GROUP BY window(ordered_at, '1 minute')""")

    @dp.materialized_view
    def visits() -> DataFrame:
        """Session windows: orders of a customer with less than ten minutes between them."""
        return sql("""
            SELECT customer, session_window.start AS began, session_window.end AS ended, count(*) AS orders
            FROM orders_silver GROUP BY customer, session_window(ordered_at, '10 minutes')""")

    @dp.materialized_view
    def last_order() -> DataFrame:
        """The latest value of each key."""
        return sql("""
            SELECT customer, max_by(order_id, ordered_at) AS order_id, max(ordered_at) AS ordered_at
            FROM orders_silver GROUP BY customer""")

    @dp.materialized_view
    def top_products() -> DataFrame:
        """The ten that bring the most."""
        return sql("""
            SELECT product, round(sum(amount), 2) AS revenue
            FROM orders_silver GROUP BY product ORDER BY revenue DESC LIMIT 10""")
