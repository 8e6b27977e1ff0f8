"""What spark_kafka.py runs in another PySpark: every work with both sources, round by round. The last line
that it prints is the seconds of each, as JSON."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark_bench import consume, create_topic, seconds
from benchmarks.spark_control import ControlSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class Side:
    """One of the two sources, with its options."""

    def __init__(self, spark: "SparkSession", name: str, options: dict[str, str]) -> None:
        self._spark = spark
        self.name = name
        self._options = options

    def read(self, topic: str) -> "DataFrame":
        reader = self._spark.read.format(self.name).options(**self._options, subscribe=topic)
        return reader.option("startingOffsets", "earliest").load().select(*COLUMNS)

    def stream(self, topic: str, batch_rows: int, checkpoint: Path) -> None:
        reader = self._spark.readStream.format(self.name).options(**self._options, subscribe=topic)
        reader = reader.option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", batch_rows).load().select(*COLUMNS)
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def write(self, rows: "DataFrame", topic: str) -> None:
        more = {"createTopics": "true"} if self.name == "penstock" else {}
        writer = rows.write.format(self.name).options(**self._options, topic=topic, **more)
        writer.mode("append").save()


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    given: dict[str, Any] = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    settings = {
        "spark.jars": given["jars"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ControlSource)
    sides = [
        Side(spark, "kafka", {"kafka.bootstrap.servers": given["kafka"]}),
        Side(spark, "penstock", {"server": given["flight"], "accessKey": given["key"]}),
    ]
    rows = int(given["rows"])
    reader = spark.read.format("control")
    made = reader.options(rows=rows, tasks=PARTITIONS, valueBytes=given["valueBytes"]).load()
    values = made.select("value")
    placed = made.select("value", (F.col("offset") % PARTITIONS).cast("int").alias("partition"))
    # With as many partitions as Kafka makes by itself.
    create_topic(int(given["http"]), "bench", PARTITIONS)
    for side in sides:
        side.write(placed, "bench")
        assert side.read("bench").count() == rows, side.name
    found: dict[str, list[float]] = {}
    # The round before the first one compiles what the others run.
    for turn in range(-1, int(given["rounds"])):
        for work in ("batch", "parquet", "stream", "write"):
            for side in sides if turn % 2 else reversed(sides):
                call = _work(side, work, values, rows, directory / f"{turn}-{work}-{side.name}")
                took_s = seconds(call)
                if turn >= 0:
                    found.setdefault(f"{work} {side.name}", []).append(took_s)
    spark.stop()
    print(json.dumps(found))


def _work(
    side: Side, work: str, values: "DataFrame", rows: int, place: Path
) -> Callable[[], object]:
    if work == "batch":
        return partial(consume, side.read("bench"))
    if work == "parquet":
        return partial(side.read("bench").write.mode("overwrite").parquet, str(place))
    if work == "stream":
        return partial(side.stream, "bench", rows // 10, place)
    return partial(side.write, values, "out")


if __name__ == "__main__":
    main()
