"""Bronze: every topic as it came, in a table of its own or in one for all, partitioned by day, each
record once."""

import re
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.spark.pipeline.blocks.source import stream
from penstock.spark.pipeline.checkpoints.resuming import go_on
from penstock.spark.pipeline.connecting import broker
from penstock.spark.pipeline.tables.formats import table_options
from penstock.spark.pipeline.tables.merging import DAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Names that begin with _ are the broker's own.
PUBLIC: Final = r"(?!_).*"
# The kind that Spark writes if nobody asks for another has no statistics, which find a time in many files.
TIMES_WITH_STATISTICS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_NOT_OF_A_NAME: Final = re.compile(r"\W")


def bronze(
    table: str = "bronze", *, per_topic: bool = False, pattern: str = PUBLIC, **options: str
) -> None:
    """Lands every topic whose whole name the pattern matches (a regular expression of Python).

    `per_topic`: a table `<table>_<topic>` for each topic there is now; one that comes later gets its
    table with the next update. Each of them is a stream of its own, which costs seconds of every update;
    one table for all is one stream. `options` go to the source.
    """
    if not per_topic:
        _land(table, {**options, "subscribePattern": pattern})
        return
    found = broker().call(lambda client: client.topics())
    topics = [topic for topic in found if re.fullmatch(pattern, topic)]
    for topic, name in names(topics).items():
        _land(f"{table}_{name}", {**options, "subscribe": topic})


def names(topics: Iterable[str]) -> dict[str, str]:
    """What the topics are called in names of tables, which have letters, digits and _ only, and no upper
    case."""
    plain = {topic: _NOT_OF_A_NAME.sub("_", topic).lower() for topic in topics}
    count: dict[str, int] = {}
    for name in plain.values():
        count[name] = count.get(name, 0) + 1
    return {
        topic: name if count[name] == 1 else f"{name}_{zlib.crc32(topic.encode()):08x}"
        for topic, name in plain.items()
    }


def _land(table: str, options: dict[str, str]) -> None:
    from pyspark import pipelines as dp

    go_on(table, options)

    @dp.table(name=table, spark_conf=TIMES_WITH_STATISTICS, **table_options(partitioned_by=DAY))
    def landed() -> "DataFrame":
        from pyspark.sql import functions as F

        records = stream(includeHeaders="true", includeProtocol="true", **options)
        return records.select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            "headers",
            "protocol",
            F.to_date("timestamp").alias(DAY),
        )
