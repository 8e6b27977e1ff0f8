"""Clicks of people: those of robots are left out."""

from penstock.spark.pipeline import expect, silver

silver(
    "clicks",
    schema="click",
    key="click_id",
    event_time="clicked_at",
    watermark="1 hour",
    expectations=[expect("a person", "visitor NOT LIKE 'bot-%'", otherwise="drop")],
)
