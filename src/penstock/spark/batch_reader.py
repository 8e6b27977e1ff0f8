"""`spark.read.format("penstock")`: planned once, with ends that stay."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.connection import Connection
from penstock.spark.options import ReadOptions
from penstock.spark.positions import beginning, ending, look, named_servers
from penstock.spark.ranges import Range, divide
from penstock.spark.reading import read_ranges
from penstock.spark.spreading import servers_of, spread

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.flight import FlightClient
    from penstock.spark.typed.pinned import Pinned


class PenstockReader(DataSourceReader):
    """`partitions` runs on the driver, `read` in the executors with a copy of this object."""

    def __init__(
        self, options: ReadOptions, connection: Connection, pinned: "Pinned | None" = None
    ) -> None:
        self._options = options
        self._connection = connection
        self._pinned = pinned

    def partitions(self) -> list[InputPartition]:
        options, connection = self._options, self._connection
        ranges, named = connection.call(lambda client: plan(client, options))
        tasks = divide(ranges, options.min_partitions, options.max_records_per_partition)
        return list(spread(tasks, named if connection.spread else (), connection.servers))

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        # Spark makes a partition of its own where there is none to read, before 4.2 without an object.
        wanted: Any = None if partition is None else partition.value
        if wanted is None:
            return iter(())
        return read_ranges(
            self._connection.at(servers_of(partition)),
            wanted,
            extras=self._options.extras,
            fail_on_data_loss=self._options.fail_on_data_loss,
            pinned=self._pinned,
            raw=self._options.typed is not None and self._options.typed.raw,
        )


def plan(client: "FlightClient", options: ReadOptions) -> tuple[list[Range], tuple[str, ...]]:
    """Reads the offsets once, so that start and end belong to the same moment. And the servers that the
    answer names."""
    states = look(client, options.selection)
    starts = beginning(client, states, options)
    ends = ending(client, states, options)
    ranges = [
        Range(
            topic,
            partition,
            starts[topic][partition],
            ends[topic][partition],
            state.created_us,
            state.record_bytes,
        )
        for topic, state in states.items()
        for partition in state.bounds
    ]
    return ranges, named_servers(states)
