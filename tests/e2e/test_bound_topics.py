"""A topic that is bound to a schema, at every door: who is refused, in which words, and what is stored."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.blipmq.peer import BlipMQPeer, message, nack, ping, pong
from conformance.flymq.peer import FlyMQPeer
from conformance.rustlog.peer import BINARY, DIALECTS, JSON, Dialect, Talker, dialect_name
from kit.flight_client import FLIGHT, column, connect_to, make, table
from kit.live_server import LiveServer

from penstock.broker.access.principal import Principal
from penstock.client.errors import Refused

ADMIN = Principal("test", "admin")
SCHEMA = b'{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}'
GOOD = b'{"a":1}'
BAD = b'{"a":"x"}'
WORDS = "type mismatch at a: expected integer, got string"

both = pytest.mark.parametrize("dialect", DIALECTS, ids=dialect_name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("bound") / "data", FLIGHT) as running:
        running.server.broker.schemas.registry.register("s", "json", SCHEMA)
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: LiveServer) -> str:
    name = str(request.node.name).replace("[", ".").replace("]", "")
    make(server, name, schema="s")
    return name


@pytest.fixture
def diverting(topic: str, server: LiveServer) -> str:
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"on_invalid": "dlq"}))
    return topic


def stored(server: LiveServer, topic: str) -> list[bytes]:
    with FlyMQPeer(server.port()) as peer:
        return [value for _, _, value in peer.fetch(topic)[0]]


def letters(server: LiveServer, topic: str) -> list[tuple[bytes | None, dict[bytes, bytes]]]:
    """Value and headers of each dead letter."""
    engine = server.server.engine

    async def read() -> list[tuple[bytes | None, dict[bytes, bytes]]]:
        found = await engine.read(f"{topic}.dlq", 0, 0, 1 << 20)
        return [
            (view.value(row), dict(view.headers(row)))
            for view in found.views
            for row in range(view.first_row, view.last_row)
        ]

    return server.run(read())


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_blipmq_refuses_the_bad_message_alone(server: LiveServer, topic: str, qos: int) -> None:
    with BlipMQPeer(server.port()).login() as peer:
        values = [GOOD, BAD, GOOD, b"", GOOD]
        peer.send(b"".join(message(n, topic, one, qos) for n, one in enumerate(values)) + ping(9))
        peer.expect(
            nack(1, 400, f"schema 's' refuses it: {WORDS}"),
            nack(3, 400, "schema 's' refuses it: empty message"),
            pong(9),
        )
    assert stored(server, topic) == [GOOD, GOOD, GOOD]


@both
def test_rustlog_refuses_the_request_and_names_the_index(
    server: LiveServer, topic: str, dialect: Dialect
) -> None:
    with Talker(server.port()) as peer:
        peer.tell(
            dialect.produce(topic, 0, [GOOD]),
            dialect.produce(topic, 0, [GOOD, BAD]),
            dialect.produce(topic, 0, [GOOD, GOOD]),
        )
        assert peer.hear() == dialect.produced(0, 1)
        refusal = f"schema 's' refuses it: record 1: {WORDS}"
        assert refusal.encode() in peer.hear()
        assert peer.hear() == dialect.produced(1, 2)
    assert stored(server, topic) == [GOOD] * 3


def test_flight_refuses_the_request_and_names_the_index(server: LiveServer, topic: str) -> None:
    with connect_to(server) as client:
        with pytest.raises(Refused, match="schema 's' refuses it: record 2: type mismatch at a"):
            client.write(topic, table(GOOD, GOOD, BAD))
        client.write(topic, table(GOOD))
        assert column(client, topic) == [GOOD]


def test_a_transaction_refuses_the_request_and_names_the_index(
    server: LiveServer, topic: str
) -> None:
    with connect_to(server) as client:
        client.begin(topic, 60)
        with pytest.raises(Refused, match="schema 's' refuses it: record 1: type mismatch at a"):
            client.stage(topic, 0, topic, table(GOOD, BAD))
        client.stage(topic, 1, topic, table(GOOD))
        client.commit_transaction(topic, [1])
        assert column(client, topic) == [GOOD]


# --- dead letters ---------------------------------------------------------------------------------


def test_blipmq_diverts(server: LiveServer, diverting: str) -> None:
    with BlipMQPeer(server.port()).login() as peer:
        values = [GOOD, BAD, GOOD]
        peer.ask(
            b"".join(message(n, diverting, one) for n, one in enumerate(values)) + ping(9), pong(9)
        )
    assert stored(server, diverting) == [GOOD, GOOD]
    assert letters(server, diverting) == [
        (
            BAD,
            {
                b"penstock-reason": WORDS.encode(),
                b"penstock-topic": diverting.encode(),
                b"penstock-schema": b"s",
                b"penstock-protocol": b"blipmq",
            },
        )
    ]


@both
def test_rustlog_diverts(server: LiveServer, diverting: str, dialect: Dialect) -> None:
    """The answer counts what is in the topic."""
    with Talker(server.port()) as peer:
        peer.tell(
            dialect.produce(diverting, 0, [GOOD]),
            dialect.produce(diverting, 0, [BAD, GOOD, BAD]),
            dialect.produce(diverting, 0, [BAD]),
            dialect.produce(diverting, 0, [GOOD]),
        )
        assert peer.hear() == dialect.produced(0, 1)
        assert peer.hear() == dialect.produced(1, 1)
        assert peer.hear() == dialect.produced(0, 0)
        assert peer.hear() == dialect.produced(2, 1)
    assert stored(server, diverting) == [GOOD] * 3
    assert [value for value, _ in letters(server, diverting)] == [BAD] * 3


def test_flight_diverts(server: LiveServer, diverting: str) -> None:
    with connect_to(server) as client:
        client.write(diverting, table(GOOD, BAD, GOOD, key=[b"a", b"b", None]))
        assert column(client, diverting) == [GOOD, GOOD]
        assert column(client, f"{diverting}.dlq") == [BAD]


def test_a_transaction_diverts_with_its_commit(server: LiveServer, diverting: str) -> None:
    with connect_to(server) as client:
        client.begin(diverting, 60)
        client.stage(diverting, 0, diverting, table(GOOD, BAD))
        client.stage(diverting, 1, diverting, table(BAD))
        assert column(client, diverting) == []
        client.commit_transaction(diverting, [0, 1])
        assert column(client, diverting) == [GOOD]
        assert column(client, f"{diverting}.dlq") == [BAD, BAD]


# --- the binding ----------------------------------------------------------------------------------


def test_a_deletion_mark_needs_no_schema(server: LiveServer, topic: str) -> None:
    with connect_to(server) as client:
        rows = table(GOOD, key=[b"k"])
        client.write(topic, rows)
        client.write(topic, rows.set_column(0, "value", [[None]]))
    assert stored(server, topic) == [GOOD, b""]


def test_a_new_version_counts_from_the_next_message_on(server: LiveServer, topic: str) -> None:
    registry, broker = server.server.broker.schemas.registry, server.server.broker
    registry.register(topic, "json", b'{"type":"integer"}')
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": topic}))
    with FlyMQPeer(server.port()) as peer:
        peer.produce(topic, b"1")
        registry.register(topic, "json", b'{"type":["integer","string"]}')
        peer.produce(topic, b'"now"')
        # Bound to the first version alone.
        server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema_version": 1}))
        assert peer.ask(0x01, _produce(topic, b'"no"')).opcode == 0xFF
    assert stored(server, topic) == [b"1", b'"now"']


def _produce(topic: str, value: bytes) -> bytes:
    name = topic.encode()
    sizes = struct.pack(">H", len(name)) + name + bytes(4)
    return sizes + struct.pack(">I", len(value)) + value


def test_dialects_of_the_words(server: LiveServer, topic: str, tmp_path: Path) -> None:
    """Both dialects of RustLog carry the reason; what was refused made no dead letter."""
    with Talker(server.port()) as peer:
        assert WORDS.encode() in peer.ask(JSON.produce(topic, 0, [BAD]))
    with Talker(server.port()) as peer:
        assert WORDS.encode() in peer.ask(BINARY.produce(topic, 0, [BAD]))
    assert server.server.engine.topic(f"{topic}.dlq") is None
