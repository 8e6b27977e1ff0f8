"""`df.writeStream` where Spark hands over rows and no Arrow batches: PySpark 4.0.

The rows are put into the batches that a newer Spark would have handed over. Staging and commit are those of
writers.py.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamWriter

from penstock.spark.writers import Staged, StreamWriting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.connection import Connection
    from penstock.spark.options import WriteOptions

# Spark puts as many rows into an Arrow batch.
ROWS_AT_ONCE: Final = 10_000


class PenstockRowStreamWriter(StreamWriting, DataSourceStreamWriter):
    """Made with the types of the columns: some rows alone do not tell them, all may be null."""

    def __init__(
        self, options: "WriteOptions", connection: "Connection", schema: "StructType"
    ) -> None:
        super().__init__(options, connection, schema)
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> Staged:
        return super().write(batches_of_rows(iterator, self._schema, self._staging.wanted))


def batches_of_rows(
    rows: Iterator[Sequence[Any]], schema: "StructType", wanted: Sequence[str]
) -> "Iterator[pa.RecordBatch]":
    """Record batches with those columns whose names, in lower case, are wanted."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    chosen = [
        (place, field.name, to_arrow_type(field.dataType))
        for place, field in enumerate(schema.fields)
        if field.name.lower() in wanted
    ]
    names = [name for _, name, _ in chosen]
    while some := list(islice(rows, ROWS_AT_ONCE)):
        columns = [pa.array([row[place] for row in some], kind) for place, _, kind in chosen]
        yield pa.record_batch(columns, names=names)
