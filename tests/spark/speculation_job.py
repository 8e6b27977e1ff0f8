"""A Spark driver for the test of speculation: writes rows; the first attempt of one task hangs half-way.

Started with one JSON argument. Ends with 0 when the write is done.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    builder = SparkSession.builder
    for name, value in job["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    directory, rows, tasks = job["directory"], job["rows"], job["tasks"]
    hangs_at = rows // tasks * 3 // 4

    def slow_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        passed = 0
        for batch in batches:
            if context.partitionId() == 0 and passed < hangs_at <= passed + batch.num_rows:
                try:
                    os.close(os.open(f"{directory}/first", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    with open(f"{directory}/second", "w") as file:
                        file.write(str(context.attemptNumber()))
                else:
                    os.open(f"{directory}/gate", os.O_RDONLY)  # a pipe that nobody writes to
            passed += batch.num_rows
            yield batch

    frame = spark.range(0, rows, 1, tasks).selectExpr("CAST(id AS STRING) AS value")
    given = {"server": job["server"], "accessKey": "dev-key", "topic": "to", "createTopics": "true"}
    writer = frame.mapInArrow(slow_once, "value STRING").write.format("penstock")
    writer.options(**given).mode("append").save()
    os._exit(0)


if __name__ == "__main__":
    main()
