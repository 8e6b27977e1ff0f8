"""What PySpark has in one version and not in another; nothing else in this package asks for versions.

    4.0   streams are written row by row; Spark asks for the end of a batch and does not say where it starts
    4.1   streams are written in Arrow batches
    4.2   Spark gives start and limit of a batch, and prepares for Trigger.AvailableNow

A name that is missing has a stand-in here, so that a class which Spark will not use can be defined anyway.
"""

from pyspark.sql.datasource import DataSourceStreamWriter

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    WRITES_STREAMS_IN_ARROW = True
except ImportError:
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore[misc,assignment]  # its elder
    WRITES_STREAMS_IN_ARROW = False

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    LIMITS_BATCHES = True
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # the same name for both
        """Spark does not look for it."""

    LIMITS_BATCHES = False

__all__ = [
    "LIMITS_BATCHES",
    "WRITES_STREAMS_IN_ARROW",
    "DataSourceStreamArrowWriter",
    "SupportsTriggerAvailableNow",
]
