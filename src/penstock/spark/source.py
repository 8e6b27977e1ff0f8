"""The data source itself: what Spark finds under `format("penstock")`. docs/spark.md has its options."""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter

from penstock.spark.connection import resolve
from penstock.spark.options import includes_headers, read_options, write_options
from penstock.spark.versions import LIMITS_BATCHES, WRITES_STREAMS_IN_ARROW
from penstock.spark.writers import WriteRefused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.batch_reader import PenstockReader
    from penstock.spark.stream_reader import UnguidedStreamReader
    from penstock.spark.writers import PenstockWriter

# As the broker sends them, and as Kafka's source has them.
SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
HEADERS: Final = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class PenstockSource(DataSource):
    """Made anew by Spark for every step of planning; keeps nothing but the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return SCHEMA + HEADERS if includes_headers(self.options) else SCHEMA

    def reader(self, schema: "StructType") -> "PenstockReader":
        from penstock.spark.batch_reader import PenstockReader

        options = read_options(self.options, streaming=False)
        return PenstockReader(options, resolve(options.connection))

    def streamReader(self, schema: "StructType") -> "UnguidedStreamReader":
        from penstock.spark.stream_reader import PenstockStreamReader, UnguidedStreamReader

        options = read_options(self.options, streaming=True)
        reader = PenstockStreamReader if LIMITS_BATCHES else UnguidedStreamReader
        return reader(options, resolve(options.connection))

    def writer(self, schema: "StructType", overwrite: bool) -> "PenstockWriter":
        from penstock.spark.writers import PenstockWriter

        _check_mode(overwrite)
        options = write_options(self.options, streaming=False)
        return PenstockWriter(options, resolve(options.connection), schema.names)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.row_writer import PenstockRowStreamWriter
        from penstock.spark.writers import PenstockStreamWriter

        _check_mode(overwrite)
        options = write_options(self.options, streaming=True)
        connection = resolve(options.connection)
        if WRITES_STREAMS_IN_ARROW:
            return PenstockStreamWriter(options, connection, schema.names)
        return PenstockRowStreamWriter(options, connection, schema)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise WriteRefused("a topic only grows: write with mode append, stream with mode append")
