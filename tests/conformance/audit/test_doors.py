"""What each door leaves in the audit trail: logins, refusals and changes, with who, from where and how."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.flymq.peer import FlyMQPeer, blob, names, text
from conformance.quic import Wire
from conformance.rustlog.peer import Talker
from kit.audit import brief, trail
from kit.flight_client import FLIGHT, connect_to, table
from kit.limits import HANG_S
from kit.live_server import LiveServer, RawPeer, ServerProcess
from sessions.felix.peer import message

from penstock.broker.audit.events import Event
from penstock.broker.audit.query import Filter
from penstock.cli import main as cli
from penstock.client.errors import NotAuthorized
from penstock.wire.blipmq import frames as blipmq


class Doors:
    """A server with a key for an admin and one for a reader, and a user."""

    def __init__(self, server: LiveServer, admin: str, reader: str) -> None:
        self.server = server
        self.admin = admin
        self.reader = reader

    def seen(self, door: str, **wanted: str) -> list[Event]:
        """Of one door, since the last time."""
        found = [event for event in trail(self.server, Filter(**wanted)) if event.door == door]  # type: ignore[arg-type]  # texts of the filter
        assert all(event.address == "127.0.0.1" for event in found)
        return found

    def http(
        self, method: str, path: str, body: object = None, key: str | None = None
    ) -> tuple[int, bytes]:
        port = self.server.port("http")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        headers = {"Authorization": f"Bearer {self.admin if key is None else key}"}
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, f"/api/v1/{path}", content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    data = tmp_path_factory.mktemp("audit") / "data"
    with LiveServer(data) as server:
        broker = server.server.broker
        admin = broker.access.create_key("ops", "admin")
        reader = broker.access.create_key("looker", "reader")
        broker.accounts.create_user(broker.access.anonymous, "root", "root-pw", ["admin"])
    with LiveServer(data, {**FLIGHT, "felix.auto_create": "true"}) as server:
        yield Doors(server, admin, reader)


def test_blipmq(doors: Doors) -> None:
    with RawPeer(doors.server.port("blipmq")) as peer:
        peer.send(blipmq.encode_hello(1) + blipmq.encode_auth(2, "wrong"))
        peer.frame(), peer.frame()
        peer.send(blipmq.encode_auth(3, doors.reader))
        peer.frame()
        peer.send(blipmq.encode_publish(4, b"blip.refused", 1, b"v"))
        peer.frame()
    with RawPeer(doors.server.port("blipmq")) as peer:
        peer.send(blipmq.encode_hello(1) + blipmq.encode_auth(2, doors.admin))
        peer.send(blipmq.encode_publish(3, b"blip.made", 1, b"v") + blipmq.encode_ping(4))
        for _ in range(3):
            peer.frame()
    assert list(map(brief, doors.seen("blipmq"))) == [
        ("auth.failure", "", "", "failure"),
        ("auth.success", "looker", "", "success"),
        ("access.denied", "looker", "blip.refused", "denied"),
        ("auth.success", "ops", "", "success"),
        ("topic.create", "ops", "blip.made", "success"),
    ]


def test_rustlog(doors: Doors) -> None:
    """It has no login, and its peers may do nothing here."""
    with Talker(doors.server.port("rustlog")) as peer:
        peer.ask(json.dumps({"CreateTopic": {"topic": "rust", "partition_count": 1}}).encode())
    assert list(map(brief, doors.seen("rustlog"))) == [
        ("access.denied", "anonymous", "rust", "denied")
    ]


def test_flymq(doors: Doors) -> None:
    with FlyMQPeer(doors.server.port("flymq")) as peer:
        assert peer.ask(0x09, text("fly.gone")).opcode == 0xFF
        assert peer.ask(0x70, text("root") + text("wrong")).payload[:1] == b"\x00"
        assert peer.ask(0x70, text("root") + text("root-pw")).payload[:1] == b"\x01"
        peer.create("fly", 2)
        peer.produce("fly", b"v", partition=0)
        place = text("fly") + text("g") + bytes(4)
        peer.want(0x61, place + text("latest"))
        peer.want(0x65, text("fly") + text("g"))
        peer.want(0x73, text("al") + text("pw") + text("") + names("consumer") + b"\x01")
        peer.want(0x75, text("al") + text("") + text("") + names("producer") + b"\x01")
        peer.want(0x7C, text("al") + text("new") + text("") + bytes(5))
        peer.want(0x78, text("fly") + b"\x01" + bytes(8))
        peer.want(0x7A, text("fly"))
        peer.want(0x74, text("al"))
        peer.want(0x10, text("s") + b"\x04json" + blob(b"{}"))
        peer.want(0x15, text("s") + bytes(4))
        peer.want(0x22, text("fly"))
        peer.want(0x09, text("fly"))
    events = doors.seen("flymq")
    assert list(map(brief, events)) == [
        ("access.denied", "anonymous", "fly.gone", "denied"),
        ("auth.failure", "root", "", "failure"),
        ("auth.success", "root", "", "success"),
        ("topic.create", "root", "fly", "success"),
        ("group.reset", "root", "g", "success"),
        ("group.delete", "root", "g", "success"),
        ("user.create", "root", "al", "success"),
        ("user.change", "root", "al", "success"),
        ("user.password", "root", "al", "success"),
        ("acl.set", "root", "fly", "success"),
        ("acl.delete", "root", "fly", "success"),
        ("user.delete", "root", "al", "success"),
        ("schema.register", "root", "s", "success"),
        ("schema.delete", "root", "s", "success"),
        ("topic.delete", "root", "fly", "success"),
    ]
    assert events[2].details == {"with": "user"}
    assert events[6].details == {"roles": "reader"}
    assert not [one for one in events if "pw" in json.dumps(one.details)]


def test_felix(doors: Doors) -> None:
    """Logins of streams, a refusal, and a cache and a topic that are made by their first use."""
    names = {"tenant_id": "fx", "namespace": "n", "stream": "s"}
    scope = {"tenant_id": "fx", "namespace": "n", "cache": "c"}
    publish = message("publish", **names, payload="", ack="per_message")
    wire = Wire(doors.server)
    for key, sent in (
        ("wrong", b""),
        (doors.reader, publish),
        (doors.admin, publish + message("cache_put", **scope, key="k", value="")),
    ):
        stream = wire.open(message("auth", token=key) + sent, fin=True)
        wire.rest(stream)
    wire.close()
    assert list(map(brief, doors.seen("felix"))) == [
        ("auth.failure", "", "", "failure"),
        ("auth.success", "looker", "", "success"),
        ("access.denied", "looker", "fx/n/s", "denied"),
        ("auth.success", "ops", "", "success"),
        ("topic.create", "ops", "fx/n/s", "success"),
        ("cache.create", "ops", "fx/n/c", "success"),
    ]


def test_fujin(doors: Doors) -> None:
    """It has no login, and its peers may do nothing here."""
    wire = Wire(doors.server, ["fujin"])
    reader = b"\2\1\0\0\0\0\3fuj"
    wire.rest(wire.open(reader))
    wire.rest(wire.open(b"\1\0\0\0\0\4\0\0\0\1", fin=True))
    wire.close()
    assert list(map(brief, doors.seen("fujin"))) == [
        ("access.denied", "anonymous", "fuj", "denied"),
        ("access.denied", "anonymous", "", "denied"),
    ]


def test_felix_over_http(doors: Doors) -> None:
    """What administrators do with tenants, namespaces, streams and caches."""
    steps: list[tuple[str, str, object]] = [
        ("POST", "felix/tenants", {"name": "fh"}),
        ("POST", "felix/namespaces", {"name": "fh/n"}),
        ("POST", "felix/caches", {"name": "fh/n/c"}),
        ("POST", "felix/streams", {"name": "fh/n/s"}),
        ("DELETE", "felix/tenants/fh?force=true", None),
    ]
    for method, path, body in steps:
        status, content = doors.http(method, path, body)
        assert status < 300, (path, content)
    found = [brief(one) for one in doors.seen("http") if one.resource.startswith("fh")]
    assert found[:4] == [
        ("tenant.create", "ops", "fh", "success"),
        ("namespace.create", "ops", "fh/n", "success"),
        ("cache.create", "ops", "fh/n/c", "success"),
        ("topic.create", "ops", "fh/n/s", "success"),
    ]
    assert sorted(found[4:6]) == [
        ("cache.delete", "ops", "fh/n/c", "success"),
        ("topic.delete", "ops", "fh/n/s", "success"),
    ]
    assert found[6:] == [
        ("namespace.delete", "ops", "fh/n", "success"),
        ("tenant.delete", "ops", "fh", "success"),
    ]


def test_http(doors: Doors) -> None:
    steps: list[tuple[str, str, object]] = [
        ("POST", "topics", {"name": "web", "partitions": 2}),
        ("PATCH", "topics/web", {"settings": {"retention_ms": 60_000}}),
        ("POST", "groups/h/reset", {"topic": "web", "to": "earliest"}),
        ("POST", "topics/web/purge", None),
        ("POST", "keys", {"name": "app", "role": "writer"}),
        ("DELETE", "keys/app", None),
        ("POST", "schemas", {"name": "web", "definition": "{}"}),
        ("PATCH", "schemas/web", {"compatibility": "none"}),
        ("PATCH", "topics/web", {"settings": {"schema": "web"}}),
        ("DELETE", "topics/web", None),
    ]
    for method, path, body in steps:
        status, content = doors.http(method, path, body)
        assert status < 300, (path, content)
    assert doors.http("GET", "topics", key="wrong")[0] == 401
    assert doors.http("DELETE", "topics/web", key=doors.reader)[0] == 403
    events = [one for one in doors.seen("http") if not one.resource.startswith("fh")]
    assert list(map(brief, events)) == [
        ("auth.success", "ops", "", "success"),
        ("topic.create", "ops", "web", "success"),
        ("topic.change", "ops", "web", "success"),
        ("group.reset", "ops", "h", "success"),
        ("group.reset", "ops", "h", "success"),
        ("topic.purge", "ops", "web", "success"),
        ("key.create", "ops", "app", "success"),
        ("key.revoke", "ops", "app", "success"),
        ("schema.register", "ops", "web", "success"),
        ("schema.change", "ops", "web", "success"),
        ("topic.change", "ops", "web", "success"),
        ("topic.delete", "ops", "web", "success"),
        ("auth.failure", "", "", "failure"),
        ("auth.success", "looker", "", "success"),
        ("access.denied", "looker", "web", "denied"),
    ]
    assert events[10].details == {"schema": "web"}


def test_flight(doors: Doors) -> None:
    with pytest.raises(NotAuthorized), connect_to(doors.server, "wrong") as client:
        client.topics()
    with connect_to(doors.server, doors.reader) as client:
        client.topics()
        with pytest.raises(NotAuthorized):
            client.write("flown", table(b"v"), create=True)
    with connect_to(doors.server, doors.admin) as client:
        client.write("flown", table(b"v"), create=True)
    found = set(map(brief, doors.seen("flight")))
    assert ("auth.failure", "", "", "failure") in found
    assert ("auth.success", "looker", "", "success") in found
    assert ("auth.success", "ops", "", "success") in found
    assert ("access.denied", "looker", "flown", "denied") in found
    assert ("topic.create", "ops", "flown", "success") in found


def test_the_command_line(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in by HTTP."""
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{doors.server.port('http')}")
    monkeypatch.setenv("PENSTOCK_KEY", doors.admin)
    assert cli.main(["topic", "create", "typed"]) == 0
    found = [brief(event) for event in doors.seen("http") if event.resource == "typed"]
    assert found == [("topic.create", "ops", "typed", "success")]


def test_a_change_that_was_answered_is_in_the_trail_after_a_kill(tmp_path: Path) -> None:
    """For each of them: the server is killed as soon as the last answer is there."""
    with ServerProcess(tmp_path / "data") as server, FlyMQPeer(server.ports["flymq"]) as peer:
        for number in range(20):
            peer.create(f"t{number}")
        peer.want(0x09, text("t0"))
        server.kill()
    with LiveServer(tmp_path / "data") as again:
        changes = [event for event in trail(again) if event.type.startswith("topic.")]
    assert [(one.type, one.resource) for one in changes] == [
        *(("topic.create", f"t{number}") for number in range(20)),
        ("topic.delete", "t0"),
    ]
