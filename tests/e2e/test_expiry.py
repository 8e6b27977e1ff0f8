"""Messages that expire: no protocol delivers one afterwards, in one run whatever the wall clock says."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.blipmq.peer import BlipMQPeer, until
from conformance.flymq.peer import FlyMQPeer, Reply, blob, fetch, frame, placed, text
from conformance.rustlog.peer import DIALECTS, JSON, Dialect, Talker, dialect_name
from kit.flight_client import FLIGHT, column, connect_to
from kit.live_server import LiveServer, ServerProcess

from penstock.cli.http import Api

HOUR_MS = 3_600_000


def ttl(topic: str, value: bytes, ttl_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", ttl_ms)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("expiry"), FLIGHT) as running:
        yield running


@pytest.fixture
def expired(server: LiveServer, request: pytest.FixtureRequest) -> str:
    """A topic with "kept" at 1 and "plain" at 3; those at 0, 2 and 4 have expired."""
    topic = str(request.node.name).replace("[", "-").replace("]", "")
    with FlyMQPeer(server.port()) as peer:
        fill(peer, topic)
    return topic


def fill(peer: FlyMQPeer, topic: str) -> None:
    values = {b"short": 1, b"kept": HOUR_MS, b"brief": 1, b"plain": 0, b"last": 1}
    for value, ttl_ms in values.items():
        peer.want(0x35, ttl(topic, value, ttl_ms))
    until(lambda: [row[0] for row in peer.fetch(topic)[0]] == [1, 3], "the expiry of the others")


@pytest.mark.row("flymq-0x35", "flymq-D12")
def test_flymq(server: LiveServer, expired: str) -> None:
    with FlyMQPeer(server.port()) as peer:
        assert peer.fetch(expired) == ([(1, b"", b"kept"), (3, b"", b"plain")], 5)
        assert peer.fetch(expired, 0, 1) == ([(1, b"", b"kept")], 3)
        for offset, there in enumerate([False, True, False, True, False]):
            for opcode in (0x02, 0x0A):
                reply = peer.ask(opcode, text(expired) + struct.pack(">iQ", 0, offset))
                assert (reply.opcode == opcode) is there
        filtered = peer.want(0x07, fetch(expired, 0, 9, 0, "st"))
        assert filtered == struct.pack(">IQ", 0, 5)


@pytest.mark.parametrize("dialect", DIALECTS, ids=dialect_name)
def test_rustlog(server: LiveServer, expired: str, dialect: Dialect) -> None:
    with Talker(server.port()) as peer:
        counts = [
            dialect.count(peer.ask(dialect.fetch(expired, 0, offset, 1_000_000)))
            for offset in (0, 2, 4)
        ]
        # A reply of the binary dialect has records that follow each other.
        assert counts == [2 if dialect is JSON else 1, 1, 0]


@pytest.mark.parametrize("qos", [0, 1])
def test_blipmq(server: LiveServer, qos: int) -> None:
    """What expires while it waits to be polled is not delivered, and holds up nothing."""
    topic = f"blipmq-{qos}"
    with FlyMQPeer(server.port()) as producer, BlipMQPeer(server.port()).login() as subscriber:
        subscription = subscriber.subscribe(topic, qos)
        fill(producer, topic)
        for value in (b"kept", b"plain"):
            assert subscriber.poll(subscription, 77).endswith(topic.encode() + value)
        assert subscriber.poll_once(subscription) is None


def test_http(server: LiveServer, expired: str) -> None:
    api = Api(f"http://127.0.0.1:{server.port('http')}", "dev-key", 300)
    page = api.get(f"/topics/{expired}/records")
    assert [one["offset"] for one in page["records"]] == [1, 3]


def test_flight(server: LiveServer, expired: str) -> None:
    """Spark reads through it too."""
    with connect_to(server) as client:
        assert column(client, expired) == [b"kept", b"plain"]


@pytest.mark.row("flymq-0x35")
def test_the_answer_says_where_it_is(server: LiveServer) -> None:
    with FlyMQPeer(server.port()) as peer:
        peer.create("places", 2)
        payload = peer.want(0x35, ttl("places", b"value", HOUR_MS))
        assert placed(payload) == (0, 0)
        assert payload[-8:] == struct.pack(">ii", -1, 5)
        # In the order of the requests, with PRODUCE among them, without waiting for answers.
        sent = [frame(0x35, ttl("order", b"%d" % n, HOUR_MS)) for n in range(3)]
        peer.send(b"".join(sent))
        assert [placed(peer.hear().payload) for _ in sent] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.row("flymq-0x35")
@pytest.mark.parametrize("ttl_ms", [-1, 1 << 62])
def test_a_time_to_live_that_makes_no_sense(server: LiveServer, ttl_ms: int) -> None:
    with FlyMQPeer(server.port()) as peer:
        reply: Reply = peer.ask(0x35, ttl("never-made", b"v", ttl_ms))
        assert f"a time to live of {ttl_ms} ms" in reply.error
        assert peer.ask(0x04, text("never-made")).error == "topic not found: never-made"


def test_across_a_restart_the_wall_clock_counts(tmp_path: Path) -> None:
    """What has expired stays so, and what has not is delivered."""
    with ServerProcess(tmp_path) as process, FlyMQPeer(process.ports["tcp"]) as peer:
        fill(peer, "t")
        process.kill()
    with ServerProcess(tmp_path) as process, FlyMQPeer(process.ports["tcp"]) as peer:
        assert [row[2] for row in peer.fetch("t")[0]] == [b"kept", b"plain"]
