"""The HTTP API on the audit trail: filters, parts of the list, and the export as it is read."""

import csv
import http.client
import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
from kit.audit import trail
from kit.limits import HANG_S
from kit.live_server import LiveServer

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.audit import query
from penstock.broker.audit.events import TOPIC_CREATED, USER_CREATED

AL = Principal("al", "admin", origin=Origin("flymq", "10.0.0.1"))
BO = Principal("bo", "admin")
MANY = 3_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("audit")) as running:
        audit = running.server.broker.audit

        def fill() -> None:
            for number in range(MANY):
                audit.changed(BO, TOPIC_CREATED, f"bo.{number}", {"n": number})
            audit.changed(AL, USER_CREATED, "new")

        running.call(fill)
        trail(running)
        yield running


def ask(server: LiveServer, path: str, **given: object) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port("http"), timeout=HANG_S)
    try:
        target = f"/api/v1/{path}?{urlencode(given)}"
        connection.request("GET", target, headers={"Authorization": "Bearer dev-key"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read()
    finally:
        connection.close()


def found(server: LiveServer, **given: object) -> Any:
    status, kind, content = ask(server, "audit", **given)
    assert (status, kind) == (200, "application/json"), content
    return json.loads(content)


def test_events_with_all_their_fields(server: LiveServer) -> None:
    (event,) = found(server, user="al")["events"]
    assert event.pop("id") and event.pop("time").endswith("Z") and event.pop("time_us")
    assert event == {
        "type": "user.create",
        "user": "al",
        "address": "10.0.0.1",
        "door": "flymq",
        "resource": "new",
        "action": "create",
        "result": "success",
        "details": {},
    }


def test_the_newest_come_first_and_in_parts(server: LiveServer) -> None:
    first = found(server, user="bo")
    assert len(first["events"]) == 100
    assert (first["total"], first["has_more"], first["complete"]) == (MANY, True, True)
    assert first["events"][0]["resource"] == f"bo.{MANY - 1}"
    second = found(server, user="bo", limit=5, offset=100)
    assert [one["resource"] for one in second["events"]] == [
        f"bo.{MANY - 101 - number}" for number in range(5)
    ]


def test_times_are_written_in_many_ways(server: LiveServer) -> None:
    (event,) = found(server, user="al")["events"]
    for start in (event["time_us"], event["time"], event["time"][:19], event["time"][:10]):
        assert found(server, user="al", start=start)["total"] == 1
    assert found(server, user="al", start=event["time_us"] + 1)["total"] == 0
    assert found(server, user="al", end=event["time_us"])["total"] == 1
    assert found(server, user="al", end=event["time_us"] - 1)["total"] == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"types": "topic.made"}, "types: 'topic.made' is none of auth.success, "),
        ({"result": "maybe"}, "result: expected one of success, failure, denied"),
        ({"start": "noon"}, "start: expected a time such as 2026-01-31T12:00:00Z, or microseconds"),
        ({"limit": 5_001}, "limit: expected a number from 0 to 5000"),
        ({"offset": -1}, "offset: expected a number from 0 to 1000000"),
        ({"users": "al"}, "no query parameter 'users'; there are start, end, types"),
    ],
)
def test_a_bad_question_gets_one_line(
    server: LiveServer, given: dict[str, object], words: str
) -> None:
    status, _, content = ask(server, "audit", **given)
    assert status == 400
    assert json.loads(content)["error"]["text"].startswith(words)


def test_an_export_is_json_lines_or_csv(server: LiveServer) -> None:
    status, kind, content = ask(server, "audit/export", user="bo")
    assert (status, kind) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in content.splitlines()]
    assert [one["resource"] for one in lines] == [f"bo.{number}" for number in range(MANY)]
    status, kind, content = ask(server, "audit/export", user="bo", format="csv")
    assert (status, kind) == (200, "text/csv; charset=utf-8")
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert [one["resource"] for one in rows] == [f"bo.{number}" for number in range(MANY)]
    assert ask(server, "audit/export", format="xml")[0] == 400


def test_a_query_looks_at_a_limited_number_and_says_so(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "MAX_SCANNED", 1_500)
    part = found(server, user="bo")
    assert not part["complete"] and 0 < part["total"] <= 1_500


def test_few_read_at_a_time(server: LiveServer) -> None:
    """What is refused is refused before the answer begins; a reader that ends gives its place back."""
    reader = server.server.broker.audit_reader
    going = [reader.export(query.Filter()) for _ in range(query.MAX_AT_ONCE)]
    for one in going:
        next(one)
    status, _, content = ask(server, "audit/export")
    assert status == 503 and b"2 exports of the audit trail go on already" in content
    for one in going:
        list(one)
    assert ask(server, "audit/export")[0] == 200


def test_it_can_be_switched_off(server: LiveServer) -> None:
    audit = server.server.broker.audit
    before = audit.options
    off = type(before)(enabled=False)
    try:
        server.call(partial(setattr, audit, "options", off))
        for path in ("audit", "audit/export"):
            status, _, content = ask(server, path)
            assert status == 400 and b"audit trail is not enabled" in content
    finally:
        server.call(partial(setattr, audit, "options", before))
