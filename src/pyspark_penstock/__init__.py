"""Spark looks into modules named pyspark_*: this one makes `format("penstock")` known to it."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
