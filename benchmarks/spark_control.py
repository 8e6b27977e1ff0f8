"""A data source that yields record batches from memory, and drops those that are written to it: what Spark
does without a broker. Runs in workers.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.spark.source import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

# As the broker sends them: 64 K rows or 4 MiB.
BATCH_ROWS = 65_536
BATCH_BYTES = 4 * 1024 * 1024


def rows_of_a_batch(value_bytes: int) -> int:
    return min(BATCH_ROWS, BATCH_BYTES // value_bytes)


def random_values(rows: int, value_bytes: int) -> "pa.Array":
    import pyarrow as pa

    content = random.Random(7).randbytes(rows * value_bytes)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(value_bytes), rows, [None, pa.py_buffer(content)]
    )
    return fixed.cast(pa.binary())


@lru_cache(maxsize=4)  # a worker runs many tasks; making the batch is not what they measure
def record_batch(rows: int, value_bytes: int) -> "pa.RecordBatch":
    """As the broker sends them."""
    import pyarrow as pa

    columns = {
        "key": pa.nulls(rows, pa.binary()),
        "value": random_values(rows, value_bytes),
        "topic": pa.repeat("bench", rows),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([0] * rows, pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(1, pa.int32()), rows),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def batches(rows: int, value_bytes: int) -> "Iterator[pa.RecordBatch]":
    most = rows_of_a_batch(value_bytes)
    whole = record_batch(min(rows, most), value_bytes)
    while rows > 0:
        yield whole.slice(0, min(rows, most))
        rows -= most


class ControlReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options["rows"])
        self._tasks = int(options["tasks"])
        self._value_bytes = int(options["valuebytes"])

    def partitions(self) -> list[InputPartition]:
        edges = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [InputPartition(b - a) for a, b in pairwise(edges)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return batches(partition.value, self._value_bytes)


class ControlStreamReader(DataSourceStreamReader):
    """A row for each batch, without end."""

    def __init__(self) -> None:
        self._batch = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        self._batch += 1
        return {"batch": self._batch}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(1)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return batches(partition.value, 100)


class ControlWriter(DataSourceArrowWriter):
    """Takes every record batch and keeps nothing."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class ControlSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "control"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: Any) -> ControlReader:
        return ControlReader(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> ControlWriter:
        return ControlWriter()

    def streamReader(self, schema: Any) -> ControlStreamReader:
        return ControlStreamReader()
