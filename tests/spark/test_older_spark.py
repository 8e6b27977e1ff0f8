"""What older versions of Spark get, on the Spark that is there; test_versions.py runs those themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kit.live_server import LiveServer
from spark.conftest import Make, numbers, options, run_once

from penstock.client.flight import FlightClient
from penstock.spark.row_writer import ROWS_AT_ONCE, batches_of_rows
from penstock.spark.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

OLD = "penstock_of_old"


def of_old() -> type[PenstockSource]:
    """Defined in a function, so that Spark sends it to its workers as it is."""

    class OfOld(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return OLD

        def streamReader(self, schema: "StructType") -> Any:
            from penstock.spark.connection import resolve
            from penstock.spark.options import read_options
            from penstock.spark.stream_reader import UnguidedStreamReader

            options = read_options(self.options, streaming=True)
            return UnguidedStreamReader(options, resolve(options.connection))

        def streamWriter(self, schema: "StructType", overwrite: bool) -> Any:
            from penstock.spark.connection import resolve
            from penstock.spark.options import write_options
            from penstock.spark.row_writer import PenstockRowStreamWriter

            options = write_options(self.options, streaming=True)
            return PenstockRowStreamWriter(options, resolve(options.connection), schema)

    return OfOld


def test_a_limited_copy_row_by_row(
    spark: "SparkSession",
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    """Each run is one batch of the size that is allowed, and goes on where the last one ended."""
    spark.dataSource.register(of_old())
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 30), numbers(30, 50))
    make(target, [], [])
    given = options(server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    frame = spark.readStream.format(OLD).options(**given, includeHeaders="true").load()
    writer = frame.writeStream.format(OLD).options(**options(server, topic=target))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert [sum(run_once(writer)) for _ in range(2)] == [20, 20]
    for partition, values in ((0, numbers(0, 24)), (1, numbers(30, 46))):
        found = client.read(target, partition=partition).read_all()
        assert found["value"].to_pylist() == values


def test_batches_of_rows() -> None:
    """The types are those of the columns, also where a batch has nothing but nulls."""
    from pyspark.sql import Row
    from pyspark.sql.types import ArrayType, BinaryType, DateType, StringType, StructType

    make = Row("Key", "value", "headers", "when")
    head = Row("key", "value")
    rows = [make(None, bytearray(b"%d" % number), None, None) for number in range(ROWS_AT_ONCE)]
    rows.append(make("k", bytearray(b"last"), [head("h", bytearray(b"1")), head("i", None)], None))
    pair = StructType().add("key", StringType()).add("value", BinaryType())
    schema = StructType().add("Key", StringType()).add("value", BinaryType())
    schema = schema.add("headers", ArrayType(pair)).add("when", DateType())
    many, one = batches_of_rows(iter(rows), schema, ["key", "value", "headers"])
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert many.schema.names == ["Key", "value", "headers"]
    assert many.schema.types == one.schema.types == [pa.string(), pa.binary(), headers]
    assert (many.num_rows, many["Key"].null_count) == (ROWS_AT_ONCE, ROWS_AT_ONCE)
    assert many["value"][7].as_py() == b"7"
    assert one.to_pylist() == [
        {
            "Key": "k",
            "value": b"last",
            "headers": [{"key": "h", "value": b"1"}, {"key": "i", "value": None}],
        }
    ]
