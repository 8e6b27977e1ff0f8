"""A Spark driver for the kill tests: copies a topic to another one and to Parquet until it is told to end.

Started with one JSON argument. Prints a line for every batch; ends with 0 only after a line on its input,
when both copies hold all that the source holds. Any query that fails ends it at once, with 1.
"""

import json
import os
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener


class Told(StreamingQueryListener):
    """A line for each batch that had rows."""

    def onQueryStarted(self, event: Any) -> None:
        print("started", flush=True)

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            print(f"batch {event.progress.name} {event.progress.batchId}", flush=True)

    def onQueryIdle(self, event: Any) -> None:
        return

    def onQueryTerminated(self, event: Any) -> None:
        print(f"terminated {(event.exception or '')[:400]!r}", flush=True)


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    builder = SparkSession.builder
    for name, value in job["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.streams.addListener(Told())
    common = {"server": job["server"], "accessKey": "dev-key"}
    source = {
        **common,
        "subscribe": "from",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(job["batch"]),
        "minPartitions": "4",
    }
    frame = spark.readStream.format("penstock").options(**source).load()
    directory = job["directory"]
    to_topic = frame.writeStream.format("penstock").options(**common, topic="to")
    to_table = frame.writeStream.format("parquet").option("path", f"{directory}/table")
    queries = [
        writer.queryName(name).option("checkpointLocation", f"{directory}/{name}").start()
        for name, writer in (("topic", to_topic), ("parquet", to_table))
    ]

    def watch() -> None:
        try:
            spark.streams.awaitAnyTermination()
        finally:  # it raises what a query failed with: the job fails with it, and is started again
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    sys.stdin.readline()
    for query in queries:
        query.processAllAvailable()
    table = spark.read.parquet(f"{directory}/table").select("partition", "offset", "value")
    rows = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in table.collect())
    with open(f"{directory}/table.json", "w") as file:
        json.dump(rows, file)
    print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
