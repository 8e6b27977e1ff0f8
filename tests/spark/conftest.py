"""One Spark session and one server for all tests of the data source; each test has its own topics.

`SPARK_KIND=connect` runs the same tests over Spark Connect, on a server that the session starts itself.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.live_server import SOURCES, LiveServer

from penstock.client.flight import FlightClient, connect
from penstock.log.settings import TopicSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "dev-key"
FLIGHT = {"listeners.flight": "127.0.0.1:0"}

# Spark's own: sockets to its JVM that it leaves to the garbage collector, pandas that it converts with.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning")]


def spark_settings(scratch: Path) -> dict[str, str]:
    """Small and quiet, on the loopback interface."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # The workers of Spark find the same sources as the tests.
        patch.setenv("PYTHONPATH", SOURCES)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder
        for name, value in spark_settings(scratch).items():
            builder = builder.config(name, value)
        if os.environ.get("SPARK_KIND") == "connect":
            builder = builder.config("spark.connect.grpc.binding.port", str(free_port()))
            builder = builder.remote("local[2]")
        else:
            builder = builder.master("local[2]")
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("broker") / "data", FLIGHT) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[FlightClient]:
    with connect(address(server), KEY) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name


def address(server: LiveServer) -> str:
    return f"127.0.0.1:{server.port('flight')}"


Make = Callable[..., None]


@pytest.fixture
def make(server: LiveServer, client: FlightClient) -> Make:
    """Makes a topic; with values, each partition gets its own list of them."""

    def create(name: str, *partitions: Sequence[bytes]) -> None:
        settings = TopicSettings()
        count = max(1, len(partitions))
        server.call(lambda: server.server.engine.create_topic(name, count, settings))
        for number, values in enumerate(partitions):
            append(client, name, number, values)

    return create


def append(client: FlightClient, topic: str, partition: int, values: Sequence[bytes]) -> None:
    if values:
        client.write(topic, pa.table({"value": pa.array(values, pa.binary())}), partition=partition)


def options(server: LiveServer, **given: object) -> dict[str, str]:
    """Quick to give up, so that a test of an error is quick; names as in Spark, `_` for a dot."""
    base = {"server": address(server), "key": KEY, "fetchOffset.numRetries": "2"}
    return {**base, **{name.replace("_", "."): str(value) for name, value in given.items()}}


Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: "SparkSession", server: LiveServer) -> Load:
    def read(**given: object) -> "DataFrame":
        return spark.read.format("penstock").options(**options(server, **given)).load()

    return read


@pytest.fixture
def stream(spark: "SparkSession", server: LiveServer) -> Load:
    def read(**given: object) -> "DataFrame":
        return spark.readStream.format("penstock").options(**options(server, **given)).load()

    return read


def values(frame: "DataFrame") -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]


def run_now(frame: "DataFrame", checkpoint: Path, sink: str = "noop", **given: str) -> list[int]:
    """Runs a query to the end of what there is; gives the rows of each batch."""
    writer = frame.writeStream.format(sink).options(**given)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(50), "the query did not end"
        return [one["numInputRows"] for one in map(dict, query.recentProgress)]
    finally:
        query.stop()
