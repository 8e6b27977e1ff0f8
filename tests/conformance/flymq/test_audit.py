"""FlyMQ over a socket: AUDIT_QUERY and AUDIT_EXPORT, in each dialect."""

import csv
import io
import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from conformance.flymq.peer import SDK, FlyMQPeer, blob, both, live, names, raw, text
from kit.audit import trail
from kit.live_server import LiveServer

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.audit.events import TOPIC_CREATED, USER_CREATED, Event

AL = Principal("al", "admin", origin=Origin("flymq", "10.0.0.1"))
BO = Principal("bo", "admin")
QUERY_AL = (
    "0000000000000000 0000000000000000  00000000  0002 616C  0000 0000 0000  00000064 00000000"
)


def query(
    types: tuple[str, ...] = (),
    user: str = "",
    resource: str = "",
    result: str = "",
    search: str = "",
    limit: int = 0,
    offset: int = 0,
    times: tuple[int, int] = (0, 0),
) -> bytes:
    texts = b"".join(map(text, (user, resource, result, search)))
    return struct.pack(">qq", *times) + names(*types) + texts + struct.pack(">ii", limit, offset)


class Reading:
    """A reply, field by field, as the table of the protocol has them."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def number(self, layout: str) -> int:
        size = struct.calcsize(layout)
        found: int = struct.unpack(layout, self._payload[:size])[0]
        self._payload = self._payload[size:]
        return found

    def text(self) -> str:
        size = self.number(">H")
        found, self._payload = self._payload[:size], self._payload[size:]
        return found.decode()

    def event(self) -> dict[str, object]:
        left = self.number(">I")
        before = len(self._payload)
        found: dict[str, object] = {"id": self.text(), "time_ms": self.number(">q")}
        for name in ("type", "user", "address", "resource", "action", "result", "node"):
            found[name] = self.text()
        found["details"] = {self.text(): self.text() for _ in range(self.number(">I"))}
        assert before - len(self._payload) == left
        return found

    def answer(self) -> tuple[list[dict[str, object]], int, bool]:
        events = [self.event() for _ in range(self.number(">I"))]
        total, more = self.number(">i"), self.number(">?")
        assert not self._payload
        return events, total, bool(more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Its trail has 150 topics of bo and one user of al, and what a test adds."""
    with live(tmp_path_factory.mktemp("audit")) as running:
        audit = running.server.broker.audit
        for number in range(150):
            running.call(partial(audit.changed, BO, TOPIC_CREATED, f"bo.{number}", {"n": number}))
        running.call(lambda: audit.changed(AL, USER_CREATED, "new", {"roles": "admin"}))
        trail(running)
        yield running


def ask(peer: FlyMQPeer, payload: bytes) -> tuple[list[dict[str, object]], int, bool]:
    return Reading(peer.want(0x80, payload)).answer()


def of_al(server: LiveServer) -> Event:
    return next(event for event in trail(server) if event.user == "al")


@pytest.mark.row("flymq-0x80")
@both
def test_the_query_of_the_documents(server: LiveServer, dialect: str) -> None:
    """Byte by byte; the id and the time are the server's."""
    event = of_al(server)
    with FlyMQPeer(server.port()) as peer:
        if dialect == SDK:
            peer.ask(0x53, text(""))  # only an SDK sends it
        peer.send(raw(f"AF 01 80 01 00000026  {QUERY_AL}"))
        reply = peer.hear_frame()
    told = (
        text(event.id)
        + struct.pack(">q", event.time_us // 1_000)
        + b"".join(map(text, ("user.create", "al", "10.0.0.1", "new", "create", "success", "n1")))
        + raw('00000002  0004 "door" 0005 "flymq"  0005 "roles" 0005 "admin"')
    )
    payload = raw("00000001") + blob(told) + raw("00000001 00")
    assert reply == raw("AF 01 80 01") + struct.pack(">I", len(payload)) + payload


@pytest.mark.row("flymq-0x81")
@both
def test_the_export_of_the_documents(server: LiveServer, dialect: str) -> None:
    event = of_al(server)
    with FlyMQPeer(server.port()) as peer:
        if dialect == SDK:
            peer.ask(0x53, text(""))
        peer.send(raw(f"AF 01 81 01 0000002F  00000026 {QUERY_AL}  0003 637376"))
        reply = peer.hear_frame()
    lines = (
        "id,time,type,user,address,door,resource,action,result,details\n"
        f"{event.id},{event.time},user.create,al,10.0.0.1,flymq,new,create,success,roles=admin\n"
    )
    payload = text("csv") + blob(lines.encode())
    assert reply == raw("AF 01 81 01") + struct.pack(">I", len(payload)) + payload


@pytest.mark.row("flymq-0x81")
@pytest.mark.parametrize("form", ["json", "xml", ""])
def test_every_other_format_is_json(peer: FlyMQPeer, form: str) -> None:
    """All that fit, the oldest first, whatever limit and offset say."""
    asked = blob(query(user="bo", limit=3, offset=7)) + text(form)
    reply = Reading(peer.want(0x81, asked))
    assert reply.text() == "json"
    assert reply.number(">I") == len(reply._payload)
    events = json.loads(reply._payload)
    assert [one["resource"] for one in events] == [f"bo.{number}" for number in range(150)]


@pytest.mark.row("flymq-0x80")
def test_limit_and_offset(peer: FlyMQPeer) -> None:
    """Newest first; a limit of 0 is 100."""
    events, total, more = ask(peer, query(user="bo"))
    assert (len(events), total, more) == (100, 150, True)
    assert [events[0]["resource"], events[-1]["resource"]] == ["bo.149", "bo.50"]
    events, total, more = ask(peer, query(user="bo", limit=1_000))
    assert (len(events), total, more) == (150, 150, False)
    events, total, more = ask(peer, query(user="bo", limit=10, offset=145))
    assert ([one["resource"] for one in events][::4], total, more) == (["bo.4", "bo.0"], 150, False)
    assert ask(peer, query(user="bo", limit=10, offset=500)) == ([], 150, False)


@pytest.mark.parametrize(
    ("asked", "total"),
    [
        (query(types=("user.create",)), 1),
        (query(types=("user.create", "topic.create")), 151),
        (query(types=("user.*",)), 1),
        (query(types=("user",)), 0),
        (query(resource="bo.7"), 1),
        (query(resource="bo.1*"), 61),
        (query(user="b*", result="success"), 150),
        (query(user="bo", result="failure"), 0),
        (query(search="10.0.0.1"), 1),
        (query(search="BO.14"), 11),
        (query(user="bo", times=(1, 2)), 0),
        (query(user="bo", times=(1, 4_000_000_000)), 150),
        (query(user="bo", times=(4_000_000_000, 0)), 0),
    ],
)
@pytest.mark.row("flymq-0x80")
def test_filters(peer: FlyMQPeer, asked: bytes, total: int) -> None:
    assert ask(peer, asked)[1] == total


def test_the_second_of_the_end_is_a_part_of_it(server: LiveServer, peer: FlyMQPeer) -> None:
    now_s = of_al(server).time_us // 1_000_000
    assert ask(peer, query(user="al", times=(now_s, now_s)))[1] == 1
    assert ask(peer, query(user="al", times=(0, now_s - 1)))[1] == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (query(limit=-1), "limit and offset are not below 0"),
        (query(offset=-1), "limit and offset are not below 0"),
        (query(times=(-1, 0)), "time -1 is no Unix time in seconds; 0 is open"),
        (query(times=(0, 1 << 62)), f"time {1 << 62} is no Unix time in seconds; 0 is open"),
        (b"", "invalid binary format: start_s is cut off, 8 bytes expected and 0 there, at byte 0"),
    ],
)
def test_what_is_refused(peer: FlyMQPeer, asked: bytes, words: str) -> None:
    assert peer.ask(0x80, asked).error == words
    if "time" in words:
        assert peer.ask(0x81, blob(asked) + text("csv")).error == words


@pytest.mark.row("flymq-0x80", "flymq-0x81")
def test_the_right_comes_before_the_feature_and_that_before_the_payload(tmp_path: Path) -> None:
    broken = b"\x00"
    with live(tmp_path, audit__enabled="false") as off:
        broker = off.server.broker
        broker.accounts.create_user(broker.access.anonymous, "root", "pw", ["admin"])
        broker.accounts.create_user(broker.access.anonymous, "al", "pw", ["reader"])
        with FlyMQPeer(off.port()) as peer:
            for user, words in (
                ("al", "al may not read the audit trail: that needs the right admin on all topics"),
                ("root", "audit trail is not enabled"),
            ):
                assert peer.ask(0x70, text(user) + text("pw")).payload[:1] == b"\x01"
                for opcode in (0x80, 0x81):
                    for payload in (broken, query(), blob(query()) + text("csv")):
                        if opcode == 0x80 or payload != query():
                            assert peer.ask(opcode, payload).error.startswith(words)


def test_an_export_that_fits_no_reply_is_refused(
    peer: FlyMQPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sessions.flymq.audit.MAX_EXPORT_BYTES", 1_000)
    for form in ("csv", "json"):
        reply = peer.ask(0x81, blob(query()) + text(form))
        assert "over 1000 bytes; narrow the times" in reply.error


def test_csv_is_no_formula_and_has_the_fields(server: LiveServer, peer: FlyMQPeer) -> None:
    audit = server.server.broker.audit
    server.call(lambda: audit.changed(BO, TOPIC_CREATED, "=1+1", {"comma": 'a,"b"'}))
    trail(server)
    reply = Reading(peer.want(0x81, blob(query(resource="=1+1")) + text("csv")))
    reply.text(), reply.number(">I")
    rows = list(csv.DictReader(io.StringIO(reply._payload.decode())))
    assert [(one["resource"], one["details"]) for one in rows] == [("'=1+1", 'comma=a,"b"')]


def test_a_query_of_a_trail_without_events(tmp_path: Path) -> None:
    with live(tmp_path) as fresh, FlyMQPeer(fresh.port()) as peer:
        assert ask(peer, query(types=("user.*",))) == ([], 0, False)
