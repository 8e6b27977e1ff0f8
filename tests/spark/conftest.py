"""One Spark session and one server for all tests of the data source; each test has its own topics.

SPARK_KIND=connect runs the same tests over Spark Connect, and SPARK_KIND=cluster on a standalone cluster:
test_elsewhere.py does that.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from kit.live_server import SOURCES, LiveServer

from penstock.client.flight import FlightClient, connect
from penstock.log.settings import TopicSettings
from penstock.spark.versions import LIMITS_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

KEY = "dev-key"
# Where the driver finds the key with option keyEnv.
KEY_VARIABLE = "SPARK_TEST_KEY"
# Quick to start rather than quick to run: these jobs take seconds.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
FLIGHT = {"listeners.flight": "127.0.0.1:0"}

# As docs/spark.md tells those who give the key itself as an option over Connect.
HIDDEN_KEYS = {
    "spark.redaction.string.regex": r'(?i)key: "accessKey"\s+value: "[^"]*"',
}

# All that Spark has to say goes into a file. Its errors are shown, and so is the line that cluster.py
# waits for.
LOG_SETTINGS = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
rootLogger.appenderRef.console.ref = console
rootLogger.appenderRef.console.level = error
logger.spark.name = org.apache.spark
logger.spark.level = info
logger.ready.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.ready.level = info
logger.ready.appenderRef.console.ref = console
"""


def spark_environment() -> dict[str, str]:
    """For all processes of Spark. Its workers find the same sources as the tests, see worker_python."""
    return {
        "PYTHONPATH": SOURCES,
        "PYSPARK_PYTHON": str(Path(__file__).with_name("worker_python")),
        "TESTS_PYTHON": sys.executable,
        "TESTS_PYTHONPATH": SOURCES,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def spark_settings(scratch: Path) -> dict[str, str]:
    """Small and quiet, on the loopback interface, and patient with a slow machine."""
    return {
        "spark.network.timeout": "600s",
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
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


def recorded(directory: Path) -> dict[str, str]:
    """Settings with which Spark keeps its event log and the log of the driver in a directory."""
    events, settings = directory / "events", directory / "log4j2.properties"
    events.mkdir(parents=True)
    settings.write_text(LOG_SETTINGS.format(path=directory / "logs" / "driver.log"))
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Dlog4j2.configurationFile={settings}",
    }


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the Spark session. In `record` is what it writes down of its own accord."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(scratch: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**spark_environment(), KEY_VARIABLE: KEY}.items():
            patch.setenv(name, value)
        settings = {**spark_settings(scratch), **recorded(scratch / "record"), **HIDDEN_KEYS}
        with where(scratch, settings) as place:
            if place.startswith("sc:"):
                session = SparkSession.builder.remote(place).getOrCreate()
            else:
                builder = SparkSession.builder.master(place)
                for name, value in settings.items():
                    builder = builder.config(name, value)
                session = builder.getOrCreate()
            yield session
            session.stop()


@contextmanager
def where(scratch: Path, settings: dict[str, str]) -> Iterator[str]:
    """The master, or the address of a Connect server, that SPARK_KIND asks for."""
    from spark.cluster import Cluster, connect_server

    kind = os.environ.get("SPARK_KIND", "local")
    if kind == "connect":
        with connect_server(settings) as address:
            yield address
    elif kind == "cluster":
        with Cluster(scratch / "record" / "logs") as cluster:
            settings["spark.executor.memory"] = "512m"
            yield cluster.url
    else:
        yield "local[2]"


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
    # Commas separate topics.
    return re.sub(r"[^\w]", "-", request.node.name)


def address(server: LiveServer) -> str:
    return f"127.0.0.1:{server.port('flight')}"


Make = Callable[..., None]


@pytest.fixture
def make(server: LiveServer, client: FlightClient) -> Make:
    """Makes a topic that keeps everything, also records that a test gives a time of 1970; with values,
    each partition gets its own list of them."""

    def create(name: str, *partitions: Sequence[bytes]) -> None:
        settings = TopicSettings(retention_ms=0)
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
    base = {"server": address(server), "accessKey": KEY, "fetchOffset.numRetries": "2"}
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
    """Runs a query to the end of what there is; gives the rows of each batch.

    Before Spark 4.2 a run is one batch, and the next run goes on.
    """
    writer = frame.writeStream.format(sink).options(**given)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    found = rows = run_once(writer)
    while not LIMITS_BATCHES and any(rows):
        rows = run_once(writer)
        found += rows
    return found


def run_once(writer: "DataStreamWriter") -> list[int]:
    query = writer.start()
    try:
        assert query.awaitTermination(int(HANG_S)), "the query did not end"
        return [one.numInputRows for one in query.recentProgress]
    finally:
        query.stop()
