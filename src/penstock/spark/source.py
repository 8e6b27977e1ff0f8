"""The data source itself: what Spark finds under `format("penstock")`. docs/spark.md has its options."""

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.errors import PenstockError
from penstock.spark.connection import resolve
from penstock.spark.options import includes_headers, read_options, write_options
from penstock.spark.versions import (
    LIMITS_BATCHES,
    WRITES_STREAMS_IN_ARROW,
    SupportsTriggerAvailableNow,
)
from penstock.spark.writers import WriteRefused

if TYPE_CHECKING:
    from penstock.spark.batch_reader import PenstockReader
    from penstock.spark.stream_reader import UnguidedStreamReader
    from penstock.spark.writers import PenstockWriter

# As the broker sends them, and as Kafka's source has them. No text: what TIMESTAMP means in one depends on
# spark.sql.timestampType.
SCHEMA: Final = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADER: Final = StructType().add("key", StringType()).add("value", BinaryType())
SCHEMA_WITH_HEADERS: Final = StructType([*SCHEMA.fields]).add("headers", ArrayType(HEADER))


class OtherSchema(PenstockError):
    """A read with a schema of the user's own."""

    given: str
    fixed: str

    line = "the columns are always {fixed}: leave .schema(...) away, and select what you need"


class PenstockSource(DataSource):
    """Made anew by Spark for every step of planning; keeps nothing but the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return SCHEMA_WITH_HEADERS if includes_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> "PenstockReader":
        from penstock.spark.batch_reader import PenstockReader

        self._check_schema(schema)
        options = read_options(self.options, streaming=False)
        return PenstockReader(options, resolve(options.connection))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except PenstockError as error:
            return RefusingStreamReader(error)

    def _stream_reader(self, schema: StructType) -> "UnguidedStreamReader":
        from penstock.spark.stream_reader import PenstockStreamReader, UnguidedStreamReader

        self._check_schema(schema)
        options = read_options(self.options, streaming=True)
        reader = PenstockStreamReader if LIMITS_BATCHES else UnguidedStreamReader
        return reader(options, resolve(options.connection))

    def _check_schema(self, given: StructType) -> None:
        """Spark takes any schema of the user at load, and would stumble over it in the tasks."""
        fixed = self.schema()
        if _columns(given) != _columns(fixed):
            raise OtherSchema(_shown(given), _shown(fixed))

    def writer(self, schema: StructType, overwrite: bool) -> "PenstockWriter":
        from penstock.spark.writers import PenstockWriter

        _check_mode(overwrite)
        options = write_options(self.options, streaming=False)
        return PenstockWriter(options, resolve(options.connection), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.row_writer import PenstockRowStreamWriter
        from penstock.spark.writers import PenstockStreamWriter

        _check_mode(overwrite)
        options = write_options(self.options, streaming=True)
        connection = resolve(options.connection)
        if WRITES_STREAMS_IN_ARROW:
            return PenstockStreamWriter(options, connection, schema)
        return PenstockRowStreamWriter(options, connection, schema)


class RefusingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands where options are wrong, and says so when it is first asked.

    An error of `streamReader` itself ends with one of Spark, about a variable `reader` that it has not set.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *asked: Any, **named: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = commit = _refuse
    getDefaultReadLimit = reportLatestOffset = prepareForTriggerAvailableNow = _refuse


def _columns(schema: StructType) -> list[tuple[str, DataType, bool]]:
    """The schema without comments and other metadata, which do not change what is read."""
    return [(one.name, one.dataType, one.nullable) for one in schema.fields]


def _shown(schema: StructType) -> str:
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema.fields)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise WriteRefused("a topic only grows: write with mode append, stream with mode append")
