"""Every topic as it came. See docs/pipeline.md of Penstock for the options."""

from penstock.spark.pipeline import bronze

bronze()
