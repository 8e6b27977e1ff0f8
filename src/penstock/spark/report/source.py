"""The data source of the report: the reads of format("penstock"), counted where they arrive.

Its rows are the counts of a range (counting.py), so that no record ever reaches the JVM: a job over
millions of records moves some thousand rows. Options are those of format("penstock") for a batch read,
and the period in microseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from penstock.client.errors import NotAuthorized, NotFound
from penstock.spark.batch_reader import PenstockReader, plan
from penstock.spark.connection import Connection, resolve
from penstock.spark.options import ReadOptions, Selection, read_options
from penstock.spark.ranges import Range, Ranges, divide
from penstock.spark.reading import read_ranges
from penstock.spark.report.asking import AUDIT_TOPIC, FROM_OPTION, TO_OPTION
from penstock.spark.source import PenstockSource
from penstock.spark.spreading import servers_of, spread

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient

FORMAT: Final = "penstock-traffic"

_NUMBERS: Final = ("number", "records", "payload_bytes", "low", "high")
_COLUMNS: Final[dict[str, DataType]] = {
    "kind": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "text": StringType(),
    "key": BinaryType(),
    **{name: LongType() for name in _NUMBERS},
}


class TrafficSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        found = StructType()
        for name, kind in _COLUMNS.items():
            found.add(name, kind)
        return found

    def reader(self, schema: StructType) -> "TrafficReader":
        given: Mapping[str, str] = self.options
        period = int(given[FROM_OPTION]), int(given[TO_OPTION])
        ours = (FROM_OPTION, TO_OPTION)
        texts = {name: text for name, text in given.items() if name.lower() not in ours}
        options = read_options(texts, streaming=False)
        return TrafficReader(options, resolve(options.connection), period)


class TrafficReader(PenstockReader):
    def __init__(
        self, options: ReadOptions, connection: Connection, period: tuple[int, int]
    ) -> None:
        super().__init__(options, connection)
        self._period = period

    def partitions(self) -> list[InputPartition]:
        connection = self._connection
        ranges, named = connection.call(self._plan)
        named = named if connection.spread else ()
        return list(spread(divide(ranges, None, None), named, connection.servers))

    def _plan(self, client: "FlightClient") -> tuple[list[Range], tuple[str, ...]]:
        """The audit trail is in no list of topics; a key that may read it has to name it."""
        trail = replace(self._options, selection=Selection(topics=(AUDIT_TOPIC,)))
        try:
            audit, _ = plan(client, trail)
        except (NotFound, NotAuthorized):
            audit = []
        ranges, named = plan(client, self._options)
        return [*ranges, *audit], named

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        from penstock.spark.report.counting import range_for

        # Spark makes a partition of its own where there is none to read.
        wanted: Any = None if partition is None else partition.value
        ranges: Ranges = wanted or ()
        connection = self._connection.at(servers_of(partition))
        for one in ranges:
            counts = range_for(one.topic, one.partition, *self._period)
            batches = read_ranges(
                connection,
                (one,),
                extras=counts.extras,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
            for batch in batches:
                counts.add(batch)
            yield counts.rows()
