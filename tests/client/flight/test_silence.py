"""A server that takes connections and says nothing, and a client that takes its time: not the same."""

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kit.flight_client import KEY, column
from kit.limits import HANG_S
from kit.restarting import RestartingServer

from penstock.client.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimedOut
from penstock.client.flight import FlightClient, connect
from penstock.client.flight import client as client_module
from penstock.client.watchdog import Watchdog
from penstock.spark.connection import Connection
from penstock.spark.ranges import Range
from penstock.spark.reading import read_ranges

Sleep = Callable[[float], object]

TOPIC = "large"
# Far more than gRPC and the kernel hold for a peer that reads nothing.
BATCHES = 96
BATCH_BYTES = 1_000_000
# How long the server may be silent. Far above the gaps that a busy machine makes between two answers.
LIMIT_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartingServer]:
    with RestartingServer(tmp_path_factory.mktemp("silence") / "data") as server:
        with connect(server.address, KEY) as client:
            client.write(TOPIC, rows(), create=True)
        yield server


def patient(
    server: RestartingServer, limit_s: float = LIMIT_S, sleep: Sleep = time.sleep
) -> FlightClient:
    return FlightClient(server.address, KEY, answer_time_s=limit_s, sleep=sleep)


@pytest.fixture
def client(server: RestartingServer) -> Iterator[FlightClient]:
    with patient(server) as client:
        yield client


@pytest.fixture
def thawed(server: RestartingServer) -> Iterator[None]:
    """Whatever the test does to it."""
    yield
    server.thaw()


def rows(*pauses_s: float) -> pa.RecordBatchReader:
    """Each batch has one row, which begins with its number. Stands still before the last ones."""
    schema = pa.schema({"value": pa.binary()})

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            if number >= BATCHES - len(pauses_s):
                threading.Event().wait(pauses_s[number - BATCHES])
            value = (b"%03d" % number).ljust(BATCH_BYTES)
            yield pa.record_batch([pa.array([value], pa.binary())], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def heads(values: list[object]) -> list[int]:
    return [int(bytes(value)[:3]) for value in values]  # type: ignore[call-overload]  # they are bytes


def test_a_task_that_reads_goes_on_when_the_server_does(
    server: RestartingServer, thawed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[ClientError] = []
    frozen_s = failed_s = 0.0

    def following(self: Connection, attempt: int, error: ClientError) -> Connection:
        nonlocal failed_s
        failed_s = time.monotonic()
        failures.append(error)
        server.thaw()
        self.drop()
        return self

    monkeypatch.setattr(Connection, "open", lambda self: patient(server))
    monkeypatch.setattr(Connection, "next", following)
    connection = Connection(server.address, KEY)
    topic = connection.client().describe(TOPIC)
    wanted = Range(TOPIC, 0, 0, BATCHES, topic.created_us)
    found: list[object] = []
    for batch in read_ranges(connection, (wanted,), extras=(), fail_on_data_loss=True):
        found += batch["value"].to_pylist()
        if not frozen_s:
            server.freeze()
            frozen_s = time.monotonic()
    connection.drop()
    # Whichever comes first: the end of the wait, or that of a ping.
    (failure,) = failures
    assert isinstance(failure, RequestTimedOut | ConnectionLost)
    assert failed_s - frozen_s < HANG_S
    assert heads(found) == list(range(BATCHES))


def test_a_slow_reader_is_no_silent_server(client: FlightClient) -> None:
    """The server stands still because nobody reads; nothing is wrong with it."""
    found: list[object] = []
    for batch in client.read(TOPIC):
        if not found:
            threading.Event().wait(2 * LIMIT_S)
        found += batch["value"].to_pylist()
    assert heads(found) == list(range(BATCHES))


def test_a_task_that_writes_goes_on_when_the_server_does(
    server: RestartingServer, thawed: None
) -> None:
    failures: list[float] = []

    def pause(time_s: float) -> None:
        failures.append(time.monotonic())
        server.thaw()

    with patient(server, sleep=pause) as client:
        client.begin("thawed", 600)
        server.freeze()
        began_s = time.monotonic()
        staged = client.stage("thawed", 1, "copy", rows(), create=True, retries=1)
        assert staged.batches == BATCHES
        (failed_s,) = failures
        assert failed_s - began_s < HANG_S
        client.commit_transaction("thawed", {1: BATCHES})
        assert heads(column(client, "copy")) == list(range(BATCHES))


@pytest.mark.soak
def test_a_slow_source_is_no_silent_server(server: RestartingServer) -> None:
    """The stream runs out of its time, with some of what was sent not confirmed: the next one goes on."""
    with patient(server) as client:
        client.begin("slow", 600)
        given = rows(2.2 * LIMIT_S, 0.0, 0.0)
        staged = client.stage("slow", 1, "slow", given, create=True)
        assert staged.batches == BATCHES
        client.commit_transaction("slow", {1: BATCHES})
        assert heads(column(client, "slow")) == list(range(BATCHES))


@pytest.mark.soak
def test_a_write_without_numbers_is_noticed_too(
    server: RestartingServer, client: FlightClient, thawed: None
) -> None:
    client.topics()
    server.freeze()
    began_s = time.monotonic()
    with pytest.raises(ConnectionLost):
        client.write(TOPIC, rows())
    assert time.monotonic() - began_s < HANG_S


@pytest.mark.soak
def test_pings_find_a_silent_server(
    server: RestartingServer, thawed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is sent and nobody counts the time."""
    monkeypatch.setattr(client_module, "PING_INTERVAL_MS", int(LIMIT_S * 1000))
    with patient(server) as client:
        client.topics()
        server.freeze()
        began_s = time.monotonic()
        with pytest.raises(ConnectFailed, match="ping timeout"):
            client.action("topics", 600.0)
        assert time.monotonic() - began_s < HANG_S


def test_the_watchdog_counts_only_waits() -> None:
    cancelled = threading.Event()
    now_s = 0.0
    with Watchdog(0.05, cancelled.set, lambda: now_s) as watchdog:
        now_s += 1
        assert not cancelled.wait(0.2)
        for _ in range(3):
            watchdog.wait_begins()
            watchdog.wait_ends()
            now_s += 1
            assert not cancelled.wait(0.1)
        watchdog.wait_begins()
        assert not cancelled.wait(0.1)
        now_s += 1
        assert cancelled.wait(HANG_S) and watchdog.fired
