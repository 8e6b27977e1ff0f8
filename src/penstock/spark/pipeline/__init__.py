"""Building blocks of data pipelines on Spark Declarative Pipelines, and what `penstock pipeline` runs
them with.

    from penstock.spark.pipeline import bronze

    bronze()

Imports nothing of the server. docs/pipeline.md shows how they are used.
"""

from penstock.spark.pipeline.blocks.back import to_topic
from penstock.spark.pipeline.blocks.bronze import bronze
from penstock.spark.pipeline.blocks.expectations import expect
from penstock.spark.pipeline.blocks.ready import ready
from penstock.spark.pipeline.blocks.silver import silver
from penstock.spark.pipeline.blocks.source import stream

__all__ = ["bronze", "expect", "ready", "silver", "stream", "to_topic"]
