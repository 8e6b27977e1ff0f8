"""Writes that go on after the server was killed: every row once, in order. With a real server process."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from kit.flight_client import KEY, column
from kit.restarting import RestartingServer

from penstock.broker.errors import Code
from penstock.client.errors import PASSING, ConnectFailed, Refused
from penstock.client.flight import FlightClient, Producer, connect
from penstock.client.flight.put import MAX_UNCONFIRMED

ROWS = 500
BATCHES = 3 * MAX_UNCONFIRMED
SCHEMA = pa.schema({"value": pa.binary()})
# More than a restart takes, on a busy machine.
RETRIES = 200
PAUSE_S = 0.1
# So short that a write needs several streams.
SHORT_S = 1.0

Act = Callable[[], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartingServer]:
    with RestartingServer(tmp_path_factory.mktemp("resume") / "data") as server:
        yield server


@pytest.fixture
def client(server: RestartingServer) -> Iterator[FlightClient]:
    with connect(server.address, KEY) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", ".").replace("]", "")


def values(batch: int) -> list[bytes]:
    return [b"%d" % number for number in range(batch * ROWS, (batch + 1) * ROWS)]


EVERYTHING = [value for batch in range(BATCHES) for value in values(batch)]


def rows(acts: dict[int, Act]) -> pa.RecordBatchReader:
    """All batches. Before a batch is taken the act of its number is done; one more comes after the last.

    A batch is taken only when all but the last MAX_UNCONFIRMED before it are confirmed.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES + 1):
            if number in acts:
                acts[number]()
            if number < BATCHES:
                yield pa.record_batch([pa.array(values(number), pa.binary())], schema=SCHEMA)

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def stage(client: FlightClient, topic: str, acts: dict[int, Act], retries: int = RETRIES) -> None:
    given = rows(acts)
    staged = client.stage(
        topic, 7, topic, given, create=True, retries=retries, retry_interval_s=PAUSE_S
    )
    assert (staged.rows, staged.batches) == (BATCHES * ROWS, BATCHES)


def test_a_task_goes_on_after_each_kill(
    server: RestartingServer, client: FlightClient, topic: str
) -> None:
    """With many batches confirmed and many not, with nothing left to send, and before the commit."""
    client.begin(topic, 60)
    stage(client, topic, dict.fromkeys((MAX_UNCONFIRMED + 4, BATCHES), server.restart))
    server.restart()
    assert client.offsets(topic) == [(0, 0)]
    client.commit_transaction(topic, {7: BATCHES})
    assert column(client, topic) == EVERYTHING


def kill_at_any_moment(
    server: RestartingServer, client: FlightClient, topic: str, kills: Iterable[int]
) -> None:
    """Not where the source stands, but wherever the stream is: something is always on its way."""
    client.begin(topic, 600)
    flowing = threading.Semaphore(0)
    over = threading.Event()

    def kill() -> None:
        while flowing.acquire() and not over.is_set():
            server.restart()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        stage(client, topic, dict.fromkeys(kills, flowing.release))
    finally:
        over.set()
        flowing.release()
        killer.join()
    client.commit_transaction(topic, {7: BATCHES})
    assert column(client, topic) == EVERYTHING


def test_kills_at_any_moment(server: RestartingServer, client: FlightClient, topic: str) -> None:
    kill_at_any_moment(server, client, topic, [5, 30])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_at_any_moment(
    server: RestartingServer, client: FlightClient, topic: str, seed: int
) -> None:
    kills = random.Random(seed).sample(range(BATCHES + 1), 10)
    kill_at_any_moment(server, client, topic, kills)


def test_a_producer_goes_on_too(server: RestartingServer, client: FlightClient, topic: str) -> None:
    written = client.write(
        topic,
        rows({MAX_UNCONFIRMED + 4: server.restart}),
        create=True,
        producer=Producer(id=1, epoch=0, sequence=0),
        retries=RETRIES,
        retry_interval_s=PAUSE_S,
    )
    assert len(written) == BATCHES
    assert written[-1].sequence == BATCHES - 1
    assert column(client, topic) == EVERYTHING


@pytest.mark.parametrize("anew", [False, True])
def test_a_transaction_that_is_gone_is_one_clear_error(
    server: RestartingServer, client: FlightClient, topic: str, anew: bool
) -> None:
    client.begin(topic, 60)

    def lose() -> None:
        if anew:
            server.restart()
        with connect(server.address, KEY) as other:
            other.abort(topic)
            if anew:
                other.begin(topic, 60)

    text = r"task 7 sent batch \d+, expected 0; .* begun anew" if anew else "is unknown"
    with pytest.raises(Refused, match=text) as caught:
        stage(client, topic, {20: lose})
    code = Code.SEQUENCE_GAP if anew else Code.TRANSACTION_NOT_OPEN
    assert caught.value.code == code.number
    text = "is another one than task 7 staged in" if anew else "is unknown"
    with pytest.raises(Refused, match=text):
        client.commit_transaction(topic, {7: BATCHES})


def test_a_server_that_stays_away(server: RestartingServer, topic: str) -> None:
    pauses: list[float] = []
    with FlightClient(server.address, KEY, sleep=pauses.append) as client:
        client.begin(topic, 60)
        with pytest.raises(ConnectFailed):
            stage(client, topic, {20: server.kill}, retries=2)
    assert pauses == [PAUSE_S] * 2
    server.start()


def test_what_the_source_raises_is_not_tried_again(
    client: FlightClient, server: RestartingServer, topic: str
) -> None:
    """The rest of the rows will never come: going on would leave them out."""
    client.begin(topic, 60)

    def fail() -> None:
        raise ConnectFailed("elsewhere", "of the source")

    with pytest.raises(ConnectFailed, match="elsewhere"):
        stage(client, topic, {20: fail})


def test_a_task_stages_once(client: FlightClient, server: RestartingServer, topic: str) -> None:
    client.begin(topic, 60)
    stage(client, topic, {})
    with pytest.raises(ValueError, match=f"task 7 of transaction '{topic}' has staged before"):
        stage(client, topic, {})
    client.commit_transaction(topic, {7: BATCHES})
    assert column(client, topic) == EVERYTHING


def test_large_rows_are_cut_and_empty_batches_take_no_number(
    client: FlightClient, server: RestartingServer, topic: str
) -> None:
    """Two of these are more than a batch may have, and eight more than we keep otherwise."""
    client.begin(topic, 60)
    sizes = [1, 0, 3, 0, 8]
    large = [
        pa.table({"value": pa.array([bytes(9_000_000)] * size, pa.binary())}) for size in sizes
    ]
    staged = client.stage(topic, 1, topic, pa.concat_tables(large), create=True)
    assert (staged.rows, staged.batches) == (12, 12)
    client.commit_transaction(topic, {1: 12})
    assert client.offsets(topic) == [(0, 12)]


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_batch_that_the_server_cuts(server: RestartingServer, topic: str, killed: bool) -> None:
    """It unpacks to more than its bytes over the wire, and takes several numbers. The next stream goes on
    behind them. After a loss nobody knows where that is, if some of them were confirmed."""
    large = pa.array([bytes(1_000_000)] * 30, pa.binary()).dictionary_encode()
    small = pa.array([b"%d" % number for number in range(30)], pa.binary()).dictionary_encode()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": large})
        threading.Event().wait(1.5 * SHORT_S)
        if killed:
            server.restart()
        yield pa.record_batch({"value": small})

    given = pa.RecordBatchReader.from_batches(pa.schema({"value": large.type}), batches())
    producer = Producer(id=2, epoch=0, sequence=0)
    expected = [*large.to_pylist(), *small.to_pylist()]
    with FlightClient(server.address, KEY, answer_time_s=SHORT_S) as client:
        try:
            client.write(topic, given, create=True, producer=producer, retries=RETRIES)
        except PASSING:
            assert killed
            expected = expected[:30]
    with connect(server.address, KEY) as client:
        assert column(client, topic) == expected


def test_without_numbers_nothing_is_sent_twice(client: FlightClient) -> None:
    with pytest.raises(ValueError, match="only the write of a producer"):
        client.write("t", rows({}), retries=1)
