"""Every opcode of the protocol has an operation of the client, which sends it and reads its answer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance.flymq.peer import live
from kit.live_server import LiveServer

from penstock.client.errors import NotAuthorized, NotFound, Refused
from penstock.client.flymq import connect_flymq
from penstock.client.flymq.asking import Asking
from penstock.sessions.flymq import operations as flymq
from penstock.wire.flymq import administration as a
from penstock.wire.flymq.opcodes import AUTH, OPCODES

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
QUERY = a.AuditQuery(0, 0, [], "", "", "", "", 10, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("operations")) as running:
        broker = running.server.broker
        broker.accounts.create_user(broker.access.anonymous, "root", "pw", ["admin"])
        yield running


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[Any]:
    with connect_flymq(f"127.0.0.1:{server.port()}", user="root", key="pw") as client:
        client.create_topic("t", 2)
        client.produce("t", b"0", partition=0)
        client.commit("t", 0, "g", 0)
        client.register_schema("s", b'{"type": "object"}')
        client.create_user("al", "pw")
        client.set_rule("t", users=["al"])
        yield client


def joined(client: Any) -> str:
    return str(client.join_group("t", "team").member)


def test_what_is_there(client: Any) -> None:
    """The answers of the operations that the other tests of this client do not look at."""
    assert client.register_schema("r", AVRO.encode(), "avro") == 1
    assert client.describe_schema("r").definition == AVRO.encode()
    assert [(one.name, one.version) for one in client.list_schemas("r")] == [("r", 1)]
    assert client.validate("s", b"{}") == []
    assert len(client.validate("s", b"[]")) == 1
    assert client.produce_with_schema("t", "s", [b"{}"])[0].topic == "t"
    with pytest.raises(Refused, match="schema validation failed"):
        client.produce_with_schema("t", "s", [b"[]"])
    client.delete_schema("r")
    with pytest.raises(Refused):
        client.describe_schema("r")
    assert client.get("t", 0, 0, zero_copy=True).value == b"0"
    assert client.fetch_plain("t", 0, 0).messages == client.fetch("t", 0, 0).messages
    assert client.fetch_plain("t", 0, 0).next_offset == client.fetch("t", 0, 0).next_offset
    assert client.fetch_plain("t", 1, 5).messages == []
    with pytest.raises(Refused, match="cluster of one"):
        client.join_cluster("127.0.0.1:1")
    (topic,) = client.cluster_metadata("t").topics
    assert len(topic.partitions) == 2
    # From here on the server speaks the layouts of the SDKs.
    assert client.fetch_plain("t", 0, 0).messages == client.fetch("t", 0, 0).messages
    first = client.join_group("t", "pair")
    second = client.join_group("t", "pair")
    assert client.heartbeat("t", "pair", first.member).partitions == [0]
    client.leave_group("t", "pair", second.member)
    assert client.heartbeat("t", "pair", first.member).partitions == [0, 1]


def test_dead_letters(server: LiveServer, client: Any) -> None:
    client.create_topic("bound")
    broker = server.server.broker
    root = broker.access.anonymous
    server.settle(lambda: broker.change_topic(root, "bound", {"schema": "s", "on_invalid": "dlq"}))
    for value in (b"[1]", b"[2]"):
        client.produce("bound", value)
    first, second = client.dead_letters("bound")
    assert (first.data, second.data) == (b"[1]", b"[2]")
    assert len(client.dead_letters("bound", 1)) == 1
    server.settle(lambda: broker.change_topic(root, "bound", {"schema": ""}))
    client.replay_dead_letter("bound", first.id)
    client.replay_dead_letter("bound", 1)
    assert client.fetch("bound", 0, 0).values == [b"[1]", b"[2]"]
    with pytest.raises(Refused, match="replayed"):
        client.replay_dead_letter("bound", first.id)
    client.purge_dead_letters("bound")
    assert client.dead_letters("bound") == []


OPERATIONS: dict[int, Callable[[Any], object]] = {
    0x01: lambda client: client.produce("t", b"v"),
    0x02: lambda client: client.get("t", 0, 0),
    0x03: lambda client: client.create_topic("new"),
    0x04: lambda client: client.describe_topic("t"),
    0x05: lambda client: client.subscribe("t", 0, "", "earliest"),
    0x06: lambda client: client.commit("t", 0, "g", 0),
    0x07: lambda client: client.fetch_plain("t", 0, 0),
    0x08: lambda client: client.list_topics(),
    0x09: lambda client: client.delete_topic("new"),
    0x0A: lambda client: client.get("t", 0, 0, zero_copy=True),
    0x0B: lambda client: client.fetch("t", 0, 0),
    0x10: lambda client: client.register_schema("s", b'{"type": "object"}'),
    0x11: lambda client: client.describe_schema("s"),
    0x12: lambda client: client.list_schemas(),
    0x13: lambda client: client.validate("s", b"{}"),
    0x14: lambda client: client.produce_with_schema("t", "s", [b"{}"]),
    0x15: lambda client: client.delete_schema("nothing"),
    0x20: lambda client: client.dead_letters("t"),
    0x21: lambda client: client.replay_dead_letter("t", "0-0"),
    0x22: lambda client: client.purge_dead_letters("t"),
    0x30: lambda client: client.produce_delayed("t", [b"v"], 3_600_000),
    0x31: lambda client: client.cancel_delayed(1),
    0x35: lambda client: client.produce_with_ttl("t", [b"v"], 1_000),
    0x40: lambda client: client.begin_transaction(),
    0x41: lambda client: client.commit_transaction("txn-0"),
    0x42: lambda client: client.roll_back_transaction("txn-0"),
    0x43: lambda client: client.stage("txn-0", "t", [b"v"]),
    0x50: lambda client: client.join_cluster("127.0.0.1:1"),
    0x51: lambda client: client.leave_cluster(),
    0x52: lambda client: client.cluster_status(),
    0x53: lambda client: client.cluster_metadata(),
    0x60: lambda client: client.committed("t", 0, "g"),
    0x61: lambda client: client.reset_offset("t", 0, "g", "earliest"),
    0x62: lambda client: client.list_groups(),
    0x63: lambda client: client.describe_group("g", "t"),
    0x64: lambda client: client.lag("t", 0, "g"),
    0x65: lambda client: client.delete_group("nobody"),
    0x66: lambda client: client.seek_to_time("t", 0, 0),
    0x67: lambda client: client.join_group("t", "team"),
    0x68: lambda client: client.heartbeat("t", "team", joined(client)),
    0x69: lambda client: client.leave_group("t", "team", joined(client)),
    0x72: lambda client: client.who_am_i(),
    0x73: lambda client: client.create_user("bo", "pw", ["guest"]),
    0x74: lambda client: client.delete_user("bo"),
    0x75: lambda client: client.update_user("al", ["consumer"]),
    0x76: lambda client: client.list_users(),
    0x77: lambda client: client.describe_user("al"),
    0x78: lambda client: client.set_rule("news", public=True),
    0x79: lambda client: client.describe_rule("news"),
    0x7A: lambda client: client.delete_rule("news"),
    0x7B: lambda client: client.list_rules(),
    0x7C: lambda client: client.change_password("al", "pw"),
    0x7D: lambda client: client.list_roles(),
    0x80: lambda client: client.query_audit(limit=10),
    0x81: lambda client: client.export_audit(QUERY),
}
# What there is nothing to do with here: the answer says so, and so it was read.
REFUSED = {0x15, 0x21, 0x31, 0x41, 0x42, 0x43, 0x50, 0x51, 0x65}


def test_every_opcode_is_there() -> None:
    assert set(OPERATIONS) | {AUTH} == set(OPCODES), "AUTH is sent by every connection with a key"


@pytest.mark.parametrize("number", sorted(OPERATIONS), ids=lambda number: OPCODES[number].name)
def test_an_operation_sends_its_opcode(
    client: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sent: list[int] = []
    begin = Asking.begin

    async def noting(self: Asking, frames: bytes, *more: Any) -> Any:
        sent.append(frames[2])
        return await begin(self, frames, *more)

    monkeypatch.setattr(Asking, "begin", noting)
    if number in REFUSED or number not in flymq.OPERATIONS:
        with pytest.raises((Refused, NotFound)) as refusal:
            OPERATIONS[number](client)
        assert not isinstance(refusal.value, NotAuthorized)
        assert OPCODES[number].name in str(refusal.value)
    else:
        OPERATIONS[number](client)
    assert number in sent
