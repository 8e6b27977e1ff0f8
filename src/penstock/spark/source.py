"""The data source itself: what Spark finds under `format("penstock")`. docs/spark.md has its options."""

from collections.abc import Mapping
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
from penstock.spark.options import column_options, read_options, write_options
from penstock.spark.sql_tables import options_of, with_options
from penstock.spark.versions import (
    LIMITS_BATCHES,
    WRITES_STREAMS_IN_ARROW,
    SupportsTriggerAvailableNow,
)
from penstock.spark.writers import WriteRefused

if TYPE_CHECKING:
    from penstock.spark.batch_reader import PenstockReader
    from penstock.spark.stream_reader import UnguidedStreamReader
    from penstock.spark.typed.pinned import Pinned
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
EXTRAS: Final = {"headers": ArrayType(HEADER), "protocol": StringType()}


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
        found = self._columns(self._pinned(self.options, None), self.options)
        return with_options(found, self.options)

    def _columns(self, pinned: "Pinned | None", texts: Mapping[str, str]) -> StructType:
        extras = column_options(texts).extras
        if pinned is None:
            columns = StructType([*SCHEMA.fields])
            for name in extras:
                columns.add(name, EXTRAS[name])
            return columns
        from penstock.spark.typed.pinned import spark_schema

        return spark_schema(pinned, extras)

    def _pinned(self, texts: Mapping[str, str], given: StructType | None) -> "Pinned | None":
        """With typed rows the schema that values are decoded by: the one that the columns were made
        from, or the one of today."""
        options = column_options(texts)
        typed, selection = options.typed, options.selection
        if typed is None or selection is None or options.connection is None:
            return None
        from penstock.spark.typed.pinned import choose, fetch, pinned_in

        connection = resolve(options.connection)
        found = None if given is None else pinned_in(given)
        if found is None:
            return connection.call(lambda client: choose(client, selection, typed))
        return connection.call(lambda client: fetch(client, *found))

    def reader(self, schema: StructType) -> "PenstockReader":
        from penstock.spark.batch_reader import PenstockReader

        texts = options_of(schema, self.options)
        options = read_options(texts, streaming=False)
        pinned = self._pinned(texts, schema)
        self._check_schema(schema, pinned, texts)
        return PenstockReader(options, resolve(options.connection), pinned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except PenstockError as error:
            return RefusingStreamReader(error)

    def _stream_reader(self, schema: StructType) -> "UnguidedStreamReader":
        from penstock.spark.stream_reader import PenstockStreamReader, UnguidedStreamReader

        texts = options_of(schema, self.options)
        options = read_options(texts, streaming=True)
        pinned = self._pinned(texts, schema)
        self._check_schema(schema, pinned, texts)
        reader = PenstockStreamReader if LIMITS_BATCHES else UnguidedStreamReader
        return reader(options, resolve(options.connection), pinned=pinned)

    def _check_schema(
        self, given: StructType, pinned: "Pinned | None", texts: Mapping[str, str]
    ) -> None:
        """Spark takes any schema of the user at load, and would stumble over it in the tasks."""
        fixed = self._columns(pinned, texts)
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
