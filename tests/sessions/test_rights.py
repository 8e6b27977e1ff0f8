"""Felix and Fujin ask the table of rights: each operation with every role, on two topics."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY, Bench
from sessions.felix.peer import NAMES, Client, frames, message
from sessions.fujin.peer import WRITER, connect_reader, fetch, write
from sessions.fujin.peer import Peer as FujinPeer

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS, Operation
from penstock.sessions.felix import session as felix
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.fujin import conversation as fujin
from penstock.sessions.fujin.options import FujinOptions
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.reading import encode_id, encode_settle

TOPICS = ("t/n/s", "other/n/s")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(str(Path(tmp_path_factory.mktemp("rights")) / "data"))
    for topic in TOPICS:
        made.broker.create_topic(ANYBODY, topic, 1)
        made.publish(topic, b"there")
    yield made
    made.close()


def allowed(role: str, operation: Operation, topic: str) -> bool:
    """By the table alone: the right of the role, and a topic that the key's pattern fits."""
    if operation.right in ("none", "login"):
        return True
    return operation.right in ROLE_ACTIONS[role] and topic == TOPICS[0]


def felix_refused(bench: Bench, principal: Principal, kind: str, topic: str) -> bool:
    names = dict(zip(NAMES, topic.split("/"), strict=True))
    scope = {"tenant_id": names["tenant_id"], "namespace": "n", "cache": "s", "key": "k"}
    messages: dict[str, Any] = {
        "publish": {**names, "payload": "", "ack": "per_message"},
        "publish_batch": {**names, "payloads": [], "ack": "per_batch"},
        "subscribe": names,
        "cache_put": {**scope, "value": ""},
        "cache_get": scope,
        "auth": {"token": "dev-key"},
    }
    client = Client(bench, FelixOptions(auto_create=True), principal)
    (reply,) = frames(client.open().ask(message(kind, **messages[kind])))
    client.session.closed()
    refused: bool = reply["type"] == "error"
    assert not refused or reply["message"].startswith("unauthorized")
    return refused


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("role", ROLE_ACTIONS)
@pytest.mark.parametrize("kind", felix.OPERATIONS)
def test_felix(bench: Bench, kind: str, role: str, topic: str) -> None:
    principal = Principal("key", role, ("t/*",))
    expected = allowed(role, felix.OPERATIONS[kind], topic)
    assert felix_refused(bench, principal, kind, topic) == (not expected)


def fujin_refused(bench: Bench, principal: Principal, opcode: int, topic: str) -> bool:
    peer = FujinPeer(bench, FujinOptions(), principal)
    name = topic.encode()
    if opcode in (wire.FETCH, wire.ACK, wire.NACK):
        # A reader that lost its rights: with none it could not have connected.
        peer.principal_of_reader(connect_reader(topic, push=opcode != wire.FETCH), principal)
        ids = [encode_id(0, 0)]
        sent = fetch(1) if opcode == wire.FETCH else encode_settle(opcode, 1, ids)
        peer.session.receive(sent)
        bench.publish(topic, b"new")
        return b"may not" in peer.answers()
    begun = WRITER + bytes([wire.BEGIN, 0, 0, 0, 1])
    sent_by: dict[int, Callable[[], bytes]] = {
        wire.CONNECT_WRITER: lambda: WRITER,
        wire.CONNECT_READER: lambda: connect_reader(topic),
        wire.WRITE: lambda: WRITER + write(1, b"x", name),
        wire.BEGIN: lambda: begun,
        wire.COMMIT: lambda: begun + bytes([wire.COMMIT, 0, 0, 0, 1]),
        wire.ROLLBACK: lambda: begun + bytes([wire.ROLLBACK, 0, 0, 0, 1]),
        wire.DISCONNECT: lambda: b"\x0a",
    }
    found = peer.ask(sent_by[opcode]())
    peer.session.closed()
    return b"may not" in found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("role", ROLE_ACTIONS)
@pytest.mark.parametrize("opcode", fujin.OPERATIONS)
def test_fujin(bench: Bench, opcode: int, role: str, topic: str) -> None:
    principal = Principal("key", role, ("t/*",))
    operation = fujin.OPERATIONS[opcode]
    expected = allowed(role, operation, topic)
    if opcode in (wire.BEGIN, wire.COMMIT, wire.ROLLBACK):
        expected = "write" in ROLE_ACTIONS[role]  # on any topic
    assert fujin_refused(bench, principal, opcode, topic) == (not expected)
