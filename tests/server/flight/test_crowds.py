"""Peers in crowds, that go without a word, and a Flight process that is killed under them."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kit.flight_client import FLIGHT
from kit.flight_peer import Peer, in_threads
from kit.live_server import WAIT_S, ServerProcess
from kit.watched_server import Watched, pids_of
from pyarrow import flight

MIB = 1024 * 1024
PEOPLE = 200
SETTINGS = {**FLIGHT, "limits.flight_reads": "250", "limits.flight_writes": "250"}
TWO = pa.array(["a", "b"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("crowds") / "data", SETTINGS) as watched:
        with Peer(watched.port) as peer:
            for name in ("t", "long"):
                peer.put({"topic": name, "create": True}, rows(value=pa.array([b"a", b"b"])))
            for _ in range(16):
                peer.put({"topic": "long"}, rows(value=pa.array([bytes(MIB)] * 4)))
        yield watched


@pytest.fixture
def peer(watched: Watched) -> Iterator[Peer]:
    with Peer(watched.port) as peer:
        yield peer


def rows(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def test_two_hundred_at_once(watched: Watched) -> None:
    start = threading.Barrier(PEOPLE, timeout=WAIT_S)

    def visit(number: int) -> None:
        with Peer(watched.port) as one:
            start.wait()
            written = one.put({"topic": "t"}, rows(value=pa.array([b"%d" % number])))
            (place,) = (told["base_offset"] for told in written)
            ticket = {"topic": "t", "start": place, "end": place + 1}
            assert one.get(ticket).read_all()["value"].to_pylist() == [b"%d" % number]

    assert in_threads(PEOPLE, visit) == []


def go_without_a_word(watched: Watched) -> None:
    with Peer(watched.port) as one:
        reader = one.get({"topic": "long"})
        reader.read_chunk()
        writer, answers = one.open_put({"topic": "t"}, rows(value=TWO).schema)
        writer.write_batch(rows(value=TWO))
        with pytest.raises(pa.ArrowException):
            one.get(b"nonsense")
    del reader, writer, answers


def test_nothing_is_left_behind(watched: Watched, peer: Peer) -> None:
    """Threads and descriptors of both processes, after a crowd that leaves in the middle."""
    crowd = 25

    def leave(_: int) -> None:
        go_without_a_word(watched)

    assert in_threads(crowd, leave) == []
    descriptors, threads = watched.descriptors(), watched.threads()
    for _ in range(3):
        assert in_threads(crowd, leave) == []
    # The ends of connections are seen a moment later; every call gives them one.
    done = threading.Event()
    timer = threading.Timer(WAIT_S, done.set)
    timer.start()
    while watched.descriptors() > descriptors + 2 or watched.threads() > threads + 8:
        assert not done.is_set(), (watched.descriptors(), descriptors, watched.threads(), threads)
        peer.act("topics")
    timer.cancel()


@pytest.mark.parametrize(
    "content",
    [os.urandom(2000), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff"],
    ids=["noise", "http 1", "half of http 2"],
)
def test_garbage_is_no_flight(watched: Watched, peer: Peer, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", watched.port), timeout=WAIT_S) as plain:
        plain.sendall(content)
    assert peer.act("topics")["topics"]


# --- the Flight process dies -------------------------------------------------------------------------


class Worker:
    """Reads or writes until it cannot any more. `going` is set when it is in the middle of that."""

    def __init__(self, port: int, work: Callable[[Peer], None]) -> None:
        self.going = threading.Event()
        self.failure: BaseException | None = None
        self.rounds = 0
        self._work = work
        self._port = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Peer(self._port) as peer:
                while True:
                    self._work(peer)
                    self.rounds += 1
                    if self.rounds == 3:
                        self.going.set()
        except BaseException as error:
            self.failure = error
            self.going.set()

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it never heard of the end"


def read_all(peer: Peer) -> None:
    assert peer.get({"topic": "r"}).read_all().num_rows == 8


def write_one(peer: Peer) -> None:
    peer.put({"topic": "w"}, rows(value=TWO))


def test_killed_in_the_middle_of_reads_and_writes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", SETTINGS) as server:
        port = server.ports["flight"]
        with Peer(port) as peer:
            peer.put({"topic": "r", "create": True}, rows(value=pa.array([bytes(MIB)] * 8)))
            peer.put({"topic": "w", "create": True}, rows(value=TWO))
        confirmed = 2
        for _ in range(2):
            workers = [Worker(port, work) for work in (read_all, write_one) * 2]
            for worker in workers:
                assert worker.going.wait(WAIT_S)
            _, child = pids_of(server)
            os.kill(child, signal.SIGKILL)
            for worker in workers:
                worker.end()
                assert isinstance(worker.failure, flight.FlightUnavailableError), worker.failure
            confirmed += 2 * sum(worker.rounds for worker in workers[1::2])
            wait_until_it_answers(port)
            with Peer(port) as peer:
                assert len(peer.read("w")) >= confirmed
                read_all(peer)
        assert server.process.stdout is not None
        assert server.stop() == 0
        lines = server.process.stdout.read().splitlines()
    warnings = [line for line in lines if " INFO " not in line]
    assert [line.partition(": ")[2].partition(";")[0] for line in warnings] == [
        "the Flight process ended with status -9"
    ] * 2


def wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with Peer(port) as peer:
                peer.act("topics")
            return
        except flight.FlightUnavailableError:
            assert time.monotonic() < deadline, "the Flight process does not come back"
