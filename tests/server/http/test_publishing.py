"""Publishing over HTTP: keys, headers, time to live, delay, schemas, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kit.http_caller import Caller, encoded, with_key
from kit.live_server import LiveServer

from penstock.server.http.publishing import MAX_PUBLISHED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("publishing")) as server:
        yield server


@pytest.fixture(scope="module")
def call(server: LiveServer) -> Caller:
    return with_key(server)


def read(call: Caller, topic: str, partition: int = 0) -> list[Any]:
    found = call("GET", f"topics/{topic}/records?partition={partition}")
    assert found.status == 200, found
    records: list[Any] = found.json["records"]
    return records


def test_all_that_a_record_has(call: Caller) -> None:
    headers = [["trace", encoded("7")], ["trace", encoded("8")]]
    record = {"value": encoded("one"), "key": encoded("k"), "headers": headers}
    made = call("POST", "topics/full/records", {"records": [record, {"value": ""}]})
    assert (made.status, made.json) == (
        200,
        {
            "records": [
                {"topic": "full", "partition": 0, "offset": 0},
                {"topic": "full", "partition": 0, "offset": 1},
            ]
        },
    )
    first, second = read(call, "full")
    assert (first["key"], first["value"], first["headers"]) == (encoded("k"), "b25l", headers)
    assert (second["key"], second["value"], second["headers"]) == (None, "", [])
    # What was read can be published again as it is.
    again = {name: first[name] for name in ("key", "value", "headers")}
    assert call("POST", "topics/full/records", {"records": [again]}).status == 200
    assert read(call, "full")[2]["headers"] == headers


def test_text_and_a_deletion_mark(call: Caller) -> None:
    body = {
        "encoding": "text",
        "records": [{"key": "ä", "value": "grün"}, {"key": "ä", "value": None}],
    }
    assert call("POST", "topics/text/records", body).status == 200
    first, second = read(call, "text")
    assert (first["key"], first["value"]) == (encoded("ä"), encoded("grün"))
    assert second["value"] is None


def test_partitions(call: Caller) -> None:
    assert call("POST", "topics", {"name": "parts", "partitions": 4}).status == 201
    keyed = [{"key": f"key-{n}", "value": str(n)} for n in range(20)]
    made = call("POST", "topics/parts/records", {"records": keyed, "encoding": "text"})
    places = {one["partition"] for one in made.json["records"]}
    assert len(places) > 1
    for number, one in enumerate(made.json["records"]):
        found = read(call, "parts", one["partition"])[one["offset"]]
        assert found["value"] == encoded(str(number))
    again = call("POST", "topics/parts/records", {"records": keyed, "encoding": "text"})
    assert [one["partition"] for one in again.json["records"]] == [
        one["partition"] for one in made.json["records"]
    ]
    one = call("POST", "topics/parts/records", {"records": [{"value": ""}], "partition": 3})
    assert one.json["records"][0]["partition"] == 3
    wrong = call("POST", "topics/parts/records", {"records": [{"value": ""}], "partition": 4})
    assert wrong.error[:2] == (404, "UNKNOWN_PARTITION")
    missing = call("POST", "topics/nowhere/records", {"records": [{"value": ""}], "partition": 0})
    assert missing.error[:2] == (404, "UNKNOWN_TOPIC")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"records": []}, "there is none"),
        ({"records": [{"value": "!"}]}, "record 0 is not base64"),
        ({"records": [{"value": ""}, {"value": None}]}, "record 1 has neither key nor value"),
        ({"records": [{"value": "", "headers": [["", ""]]}]}, "the name of a header"),
        ({"records": [{"value": "", "more": 1}]}, "unknown field"),
        ({"records": [{"value": ""}], "encoding": "hex"}, "Invalid enum value 'hex'"),
        ({"records": [{"value": ""}] * (MAX_PUBLISHED + 1)}, f"has {MAX_PUBLISHED} at most"),
        ({"records": [{"value": ""}], "ttl_ms": -1}, "a time to live of -1 ms"),
        ({"records": [{"value": ""}], "ttl_ms": 1, "delay_ms": 1}, "neither ttl_ms nor partition"),
        ({"records": [{"value": "", "key": ""}], "delay_ms": 1}, "a delayed message has a value"),
    ],
)
def test_what_is_refused(call: Caller, body: object, words: str) -> None:
    refused = call("POST", "topics/refused/records", body)
    assert refused.status == 400
    assert words in refused.json["error"]["text"]


def test_large_requests(call: Caller) -> None:
    """One that a thread decodes, one over the limit of a record, one over that of a body."""
    assert call("POST", "topics", {"name": "big", "settings": {"record_bytes": 200_000}}).status
    fits = {"records": [{"value": "x" * 150_000}], "encoding": "text"}
    assert call("POST", "topics/big/records", fits).status == 200
    over = {"records": [{"value": "x" * 200_001}], "encoding": "text"}
    assert call("POST", "topics/big/records", over).error[:2] == (413, "RECORD_TOO_LARGE")
    body = {"records": [{"value": "x" * 4_200_000}], "encoding": "text"}
    assert "the body may have" in call("POST", "topics/big/records", body).error[2]


def test_time_to_live_and_delay(server: LiveServer, call: Caller) -> None:
    made = call("POST", "topics/brief/records", {"records": [{"value": "YQ=="}], "ttl_ms": 60_000})
    assert made.status == 200
    assert [one["value"] for one in read(call, "brief")] == ["YQ=="]
    records = [{"value": encoded(str(n))} for n in range(3)]
    later = call("POST", "topics/brief/records", {"records": records, "delay_ms": 3_600_000})
    ids = [one["id"] for one in later.json["records"]]
    assert all(one.startswith("delayed-") for one in ids)
    listed = call("GET", "delayed?topic=brief").json
    assert listed["pending"] == 3
    assert [(one["id"], one["topic"], one["value"]) for one in listed["messages"]] == [
        (id, "brief", encoded(str(n))) for n, id in enumerate(ids)
    ]
    part = call("GET", "delayed?limit=2").json
    assert [one["id"] for one in part["messages"]] == ids[:2]
    rest = call("GET", f"delayed?limit=2&after={part['next']}").json
    assert [one["id"] for one in rest["messages"]] == ids[2:]
    assert "next" not in rest
    assert call("DELETE", f"delayed/{ids[1]}").status == 204
    left = call("GET", "delayed").json
    assert left["pending"] == 2
    assert [one["id"] for one in left["messages"]] == [ids[0], ids[2]]
    for gone in (ids[1], "delayed-9", "nothing", "delayed-" + 30 * "9"):
        assert call("DELETE", f"delayed/{gone}").error[:2] == (404, "UNKNOWN_DELAYED_MESSAGE")
    assert call("GET", "delayed?topic=other").json["messages"] == []


def test_a_limit_in_the_middle_of_delayed_ones(server: LiveServer, call: Caller) -> None:
    import dataclasses

    broker = server.server.broker
    before = broker.options
    limit = broker.delayed.pending + 2
    server.call(
        lambda: setattr(broker, "options", dataclasses.replace(before, max_delayed_messages=limit))
    )
    body = {"records": [{"value": ""}] * 3, "delay_ms": 3_600_000}
    refused = call("POST", "topics/brief/records", body)
    server.call(lambda: setattr(broker, "options", before))
    assert refused.error[:2] == (409, "LIMIT_REACHED")
    assert refused.error[2].startswith("2 of 3 were accepted before it: ")


def test_schemas(call: Caller) -> None:
    definition = json.dumps({"type": "object", "required": ["n"]})
    for name in ("needs-n", "bound-n"):
        body = {"name": name, "definition": definition}
        assert call("POST", "schemas", body).status == 201
    named = {"encoding": "text", "schema": "needs-n", "records": [{"value": "{}"}]}
    refused = call("POST", "topics/loose/records", named)
    assert refused.error[:2] == (422, "SCHEMA_VIOLATION")
    assert call("POST", "topics/loose/records", {**named, "schema": "nope"}).status == 404
    fits = {**named, "records": [{"value": '{"n": 1}'}]}
    assert call("POST", "topics/loose/records", fits).status == 200
    settings = {"schema": "bound-n"}
    assert call("POST", "topics", {"name": "bound"}).status == 201
    assert call("PATCH", "topics/bound", {"settings": settings}).status == 200
    mixed = {"encoding": "text", "records": [{"value": '{"n": 1}'}, {"value": "{}"}]}
    refused = call("POST", "topics/bound/records", mixed)
    assert "record 1" in refused.error[2]
    assert read(call, "bound") == []
    dlq = {"settings": {"on_invalid": "dlq"}}
    assert call("PATCH", "topics/bound", dlq).status == 200
    made = call("POST", "topics/bound/records", mixed)
    assert made.json["records"] == [
        {"topic": "bound", "partition": 0, "offset": 0},
        {"topic": "bound.dlq", "partition": 0, "offset": 0},
    ]
    assert len(call("GET", "topics/bound/dead-letters").json["dead_letters"]) == 1
    later = call("POST", "topics/bound/records", {**mixed, "delay_ms": 3_600_000}).json["records"]
    assert later[0]["topic"] == "bound" and later[0]["id"].startswith("delayed-")
    assert later[1] == {"topic": "bound.dlq", "partition": 0, "offset": 1}


def test_where_a_time_is(call: Caller) -> None:
    for text in ("a", "b"):
        call("POST", "topics/times/records", {"records": [{"value": encoded(text)}]})
    second = read(call, "times")[1]["timestamp_us"]
    found = call("GET", f"topics/times/offset?time_us={second}").json
    assert found == {"partition": 0, "offset": 1, "earliest": 0, "latest": 2}
    assert call("GET", "topics/times/offset?from=latest").json["offset"] == 2
    assert call("GET", "topics/nothing/offset").status == 404
