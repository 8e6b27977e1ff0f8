"""Limits of Flight streams on a real server with real clients, and what the metrics tell of them."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kit.flight_client import FLIGHT, connect_to, flight_pid, make, table
from kit.flight_peer import Peer, streams, wait_until
from kit.live_server import WAIT_S, LiveServer
from pyarrow import flight

from penstock.broker.errors import BrokerError, Code
from penstock.client.errors import Unavailable
from penstock.server.flight import host as flight_host
from penstock.server.flight.host import TrafficTotals
from penstock.server.flight.link import StreamCounts, Traffic
from penstock.server.flight.streams import TELL_EVERY_S, FlightTraffic

MIB = 1024 * 1024
LIMITS = {
    **FLIGHT,
    "limits.flight_reads": "2",
    "limits.flight_writes": "2",
    "limits.flight_batch_bytes": "1 MiB",
}
# More than a connection takes in while its peer does not read.
LONG = 64


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("limits") / "data", LIMITS) as server:
        make(server, "t")
        make(server, "long")
        with connect_to(server) as client:
            for _ in range(LONG):
                client.write("long", table(bytes(MIB)))
        yield server


@pytest.fixture
def peer(running: LiveServer) -> Iterator[Peer]:
    with Peer(running.port("flight")) as peer:
        yield peer


def batch(*values: bytes) -> pa.RecordBatch:
    return table(*values).to_batches()[0]


def test_reads_at_the_same_time(running: LiveServer, peer: Peer) -> None:
    before = streams(running).reads
    readers = [peer.get({"topic": "long"}) for _ in range(2)]
    for reader in readers:
        reader.read_chunk()
    assert streams(running).reads.open == 2
    with pytest.raises(
        flight.FlightUnavailableError,
        match=r"^14 OVERLOADED: 2 reads go on already \(limits.flight_reads\), try again later",
    ):
        peer.get({"topic": "long"})
    with connect_to(running) as client, pytest.raises(Unavailable) as caught:
        client.read("long").read_all()
    assert caught.value.code == Code.OVERLOADED.number
    assert streams(running).reads.refused == before.refused + 2
    readers[0].cancel()
    wait_until(running, lambda found: found.reads.open == 1)
    assert peer.get({"topic": "long"}).read_all().num_rows == LONG
    readers[1].cancel()
    wait_until(running, lambda found: found.reads.open == 0)


def test_writes_at_the_same_time(running: LiveServer, peer: Peer) -> None:
    schema = batch(b"v").schema
    opened = [peer.open_put({"topic": "t"}, schema) for _ in range(2)]
    for writer, _ in opened:
        writer.write_batch(batch(b"v"))
    wait_until(running, lambda found: found.writes.open == 2)
    with pytest.raises(
        flight.FlightUnavailableError,
        match=r"^14 OVERLOADED: 2 writes go on already \(limits.flight_writes\), try again later",
    ):
        peer.put({"topic": "t"}, batch(b"v"))
    with connect_to(running) as client, pytest.raises(Unavailable):
        client.write("t", table(b"v"))
    found = streams(running)
    assert (found.writes.open, found.writes.refused) == (2, 2)
    for writer, _ in opened:
        writer.done_writing()
        writer.close()
    wait_until(running, lambda found: found.writes.open == 0)
    peer.put({"topic": "t"}, batch(b"v"))


def test_peers_that_vanish_make_room(running: LiveServer) -> None:
    """The connection goes in the middle of a stream, without a word."""
    for _ in range(3):
        with Peer(running.port("flight")) as gone:
            reader = gone.get({"topic": "long"})
            reader.read_chunk()
            writer, answers = gone.open_put({"topic": "t"}, batch(b"v").schema)
            writer.write_batch(batch(b"v"))
            wait_until(running, lambda found: found.reads.open == found.writes.open == 1)
        del reader, writer, answers
        wait_until(running, lambda found: found.reads.open == found.writes.open == 0)


def test_a_batch_that_is_too_large(running: LiveServer, peer: Peer) -> None:
    make(running, "sizes")
    with pytest.raises(pa.ArrowInvalid, match=r"^7 RECORD_TOO_LARGE: a record batch of \d+ bytes,"):
        peer.put({"topic": "sizes"}, batch(bytes(MIB), bytes(MIB)))
    peer.put({"topic": "sizes"}, batch(bytes(2 * MIB)), batch(*[bytes(1000)] * 1000))
    assert len(peer.read("sizes")) == 1001
    wait_until(running, lambda found: found.reads.open == found.writes.open == 0)


# --- what the metrics tell -------------------------------------------------------------------------


def shown(server: LiveServer, name: str, kind: str | None = None) -> float:
    label = "" if kind is None else f'{{kind="{kind}"}}'
    text = server.run(server.server.metrics.summary()).decode()
    (line,) = (line for line in text.splitlines() if line.startswith(f"penstock_{name}{label} "))
    return float(line.rpartition(" ")[2])


def test_traffic_shows(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", LIMITS) as server:
        make(server, "t")
        data = table(*[bytes(100)] * 1000)
        with Peer(server.port("flight")) as peer:
            peer.put({"topic": "t"}, *data.to_batches())
            assert len(peer.read("t")) == 1000
        streams(server)
        assert shown(server, "flight_rows_total", "write") == 1000
        assert shown(server, "flight_bytes_total", "write") == data.nbytes
        assert shown(server, "flight_rows_total", "read") == 1000
        assert shown(server, "flight_bytes_total", "read") > data.nbytes
        assert shown(server, "flight_streams_limit", "read") == 2
        for kind in ("read", "write"):
            assert shown(server, "flight_streams", kind) == 0
            assert shown(server, "flight_refused_streams_total", kind) == 0
        back = threading.Event()
        host = server.server.flight
        assert host is not None
        launch = host._launch

        async def launch_and_tell() -> flight_host._Child:
            child = await launch()
            back.set()
            return child

        host._launch = launch_and_tell  # type: ignore[method-assign]  # to wait for an event
        with Peer(server.port("flight")) as peer:
            stored = threading.Event()
            server.call(lambda: server.server.engine.watch("t", 0, 1999, stored.set))
            writer, _ = peer.open_put({"topic": "t"}, data.schema)
            writer.write_batch(data.to_batches()[0])
            assert stored.wait(WAIT_S)
            assert streams(server).writes.open == 1
            os.kill(flight_pid(server), signal.SIGKILL)
            assert back.wait(WAIT_S)
        assert streams(server).writes.open == 0
        with Peer(server.port("flight")) as peer:
            assert len(peer.read("t")) == 2000
        streams(server)
        assert shown(server, "flight_restarts_total") == 1
        assert shown(server, "flight_rows_total", "read") == 3000
        assert shown(server, "flight_rows_total", "write") >= 1000


def test_totals_go_on_behind_those_of_a_process_that_ended() -> None:
    totals = TrafficTotals()
    totals.told(Traffic(StreamCounts(1, 2, 3, 4), StreamCounts(5, 6, 7, 8)))
    assert totals.totals() == Traffic(StreamCounts(1, 2, 3, 4), StreamCounts(5, 6, 7, 8))
    totals.process_ended()
    assert totals.totals() == Traffic(StreamCounts(0, 2, 3, 4), StreamCounts(0, 6, 7, 8))
    totals.told(Traffic(StreamCounts(1, 1, 1, 1), StreamCounts()))
    assert totals.totals() == Traffic(StreamCounts(1, 3, 4, 5), StreamCounts(0, 6, 7, 8))


def test_a_long_stream_is_told_of_while_it_goes_on() -> None:
    told: list[Traffic] = []
    traffic = FlightTraffic(1, 1, told.append)
    now = [100.0]
    with traffic.reads.opened(lambda: now[0]) as count:
        count(batch(b"a", b"b"))
        assert [one.reads.rows for one in told] == [0]
        now[0] += TELL_EVERY_S
        count(batch(b"c"))
        assert [one.reads.rows for one in told] == [0, 3]
        with pytest.raises(BrokerError), traffic.reads.opened():
            raise AssertionError("one more than the limit")
        assert (told[-1].reads.open, told[-1].reads.refused) == (1, 1)
    assert told[-1] == Traffic(StreamCounts(0, 1, 3, told[-1].reads.size_bytes), StreamCounts())


def test_a_server_that_is_gone_needs_no_numbers() -> None:
    def tell(traffic: Traffic) -> None:
        raise BrokenPipeError

    with FlightTraffic(1, 1, tell).writes.opened() as count:
        count(batch(b"a"))
