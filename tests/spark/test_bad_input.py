"""What goes wrong outside of Spark: a clear line, and soon."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from kit.live_server import LiveServer
from pyspark.sql.types import BinaryType, StructType
from spark.conftest import FLIGHT, KEY, Load, Make, address, free_port, numbers, options

from penstock.client.flight import FlightClient, connect
from penstock.spark.source import EXTRAS, SCHEMA, OtherSchema, PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_HEADERS = StructType([*SCHEMA.fields]).add("headers", EXTRAS["headers"])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subscribe": "nowhere"}, "no topic named 'nowhere'"),
        ({"assign": '{"there":[0,5]}'}, "option assign: topic 'there' has 1 partitions, not 6"),
        ({"subscribe": "there", "accessKey": "wrong"}, "invalid API key"),
        ({"subscribe": "there", "keyFile": "/nowhere"}, "option keyFile: cannot stand together"),
        ({"subscribe": "there", "startingOffset": "x"}, "did you mean startingOffsets"),
        (
            {"subscribe": "there", "startingOffsets": '{"there":{"0":99}}'},
            "option startingOffsets: partition 0 of 'there' has offsets 0 to 3, not 99",
        ),
        (
            {"subscribe": "there", "startingOffsets": '{"there":{"0":0,"1":0}}'},
            "option startingOffsets: partition 1 of 'there' is not read",
        ),
        (
            {"subscribe": "there,two", "startingOffsets": '{"there":{"0":0}}'},
            "option startingOffsets: partition 0 of 'two' is missing",
        ),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_refused(
    load: Load, stream: Load, make: Make, client: FlightClient, given: dict[str, str], complaint: str,
    streaming: bool,
) -> None:  # fmt: skip
    if "there" not in client.topics():
        make("there", numbers(0, 3))
        make("two", numbers(0, 3))
    began = time.monotonic()
    with pytest.raises(Exception, match=complaint) as caught:
        if streaming:
            query = stream(**given).writeStream.format("noop").start()
            query.processAllAvailable()
        else:
            load(**given).collect()
    assert KEY not in str(caught.value)
    assert re.search(complaint, last_error(str(caught.value)))
    assert time.monotonic() - began < HANG_S


def last_error(text: str) -> str:
    """Of those that Python tells of: what people read. Ours, or one of Python itself."""
    found: list[str] = re.findall(r"^(?:penstock\.\S+|\w+Error): .*", text, re.MULTILINE)
    return found[-1]


def test_a_stream_that_is_refused_before_it_begins(stream: Load) -> None:
    query = stream(subscribe="t", maxOffsetsPerTrigger=0).writeStream.format("noop")
    with pytest.raises(Exception, match="maxOffsetsPerTrigger") as caught:
        query.trigger(availableNow=True).start().awaitTermination(int(HANG_S))
    problem = "option maxOffsetsPerTrigger: '0' is no whole number from 1 on"
    assert last_error(str(caught.value)).endswith(problem)


@pytest.mark.parametrize("schema", [WITH_HEADERS, StructType().add("value", BinaryType())])
def test_the_schema_is_fixed(server: LiveServer, schema: StructType) -> None:
    source = PenstockSource(options(server, subscribe="there"))
    with pytest.raises(OtherSchema, match=r"columns are always key binary, .* timestampType int:"):
        source.reader(schema)
    with pytest.raises(OtherSchema):
        source.streamReader(schema).initialOffset()


def test_the_same_schema_may_be_given(
    spark: "SparkSession", server: LiveServer, make: Make, topic: str
) -> None:
    make(topic, numbers(0, 3))
    reader = spark.read.format("penstock").options(**options(server, subscribe=topic))
    assert reader.schema(SCHEMA).load().count() == 3
    with pytest.raises(Exception, match=r"leave \.schema\(\.\.\.\) away"):
        reader.schema("value BINARY").load().count()


def test_offsets_out_of_range_without_failing(load: Load, make: Make, topic: str) -> None:
    make(topic, numbers(0, 3))
    given = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":99}}}}'}
    assert load(failOnDataLoss="false", **given).count() == 0


def test_nobody_is_there(spark: "SparkSession") -> None:
    began = time.monotonic()
    reader = spark.read.format("penstock").option("server", f"127.0.0.1:{free_port()}")
    reader = reader.option("subscribe", "t").option("fetchOffset.numRetries", "1")
    with pytest.raises(Exception, match=r"cannot connect to 127\.0\.0\.1"):
        reader.load().collect()
    assert time.monotonic() - began < HANG_S


def test_not_a_flight_server(spark: "SparkSession", server: LiveServer) -> None:
    given = options(server, subscribe="t") | {"server": f"127.0.0.1:{server.port('http')}"}
    assert given["server"] != address(server)
    with pytest.raises(Exception, match=r"cannot connect to|was lost"):
        spark.read.format("penstock").options(**given).load().collect()


def test_the_server_goes_away_during_a_query(spark: "SparkSession", tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", FLIGHT) as gone:
        given = options(gone, subscribe="t", startingOffsets="earliest")
        with connect(address(gone), KEY) as client:
            client.write("t", pa.table({"value": numbers(0, 3)}), create=True)
        frame = spark.readStream.format("penstock").options(**given).load()
        checkpoint = str(tmp_path / "check")
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        query.processAllAvailable()
    with pytest.raises(Exception, match=r"cannot connect to|was lost"):
        assert query.awaitTermination(int(HANG_S)), "the query goes on without a server"
