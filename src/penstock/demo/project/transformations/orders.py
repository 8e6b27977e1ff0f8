"""Orders: typed, each once, with a price; what is wrong with the rest stands in orders_dead_letters."""

from penstock.spark.pipeline import expect, silver

silver(
    "orders",
    schema="order",
    key="order_id",
    event_time="ordered_at",
    watermark="1 hour",
    expectations=[
        expect("a price", "amount > 0", otherwise="dead-letter"),
        expect("no tests", "customer <> 'test'", otherwise="drop"),
    ],
)
