"""Transactions over HTTP: all visible at once or never, whose they are, and what administrators may."""

from collections.abc import Iterator

import pytest
from kit.http_caller import Caller, encoded, with_key
from kit.live_server import LiveServer

from penstock.client.flymq import connect_flymq


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("transactions")) as server:
        yield server


@pytest.fixture(scope="module")
def root(server: LiveServer) -> Caller:
    return with_key(server)


@pytest.fixture(scope="module")
def al(server: LiveServer) -> Caller:
    return with_key(server, server.server.broker.access.create_key("al", "user"))


def begun(call: Caller) -> str:
    made = call("POST", "transactions")
    assert made.status == 201
    assert made.json["timeout_ms"] == 60_000
    name: str = made.json["id"]
    return name


def staged(call: Caller, name: str, topic: str, *values: str) -> None:
    body = {"topic": topic, "records": [{"value": encoded(one)} for one in values]}
    assert call("POST", f"transactions/{name}/records", body).json == {
        "id": name,
        "staged": len(values),
    }


def values(call: Caller, topic: str) -> list[str]:
    found = call("GET", f"topics/{topic}/records")
    return [one["value"] for one in found.json["records"]] if found.status == 200 else []


def test_commit(root: Caller) -> None:
    name = begun(root)
    staged(root, name, "t1", "a", "b")
    staged(root, name, "t2", "c")
    assert values(root, "t1") == values(root, "t2") == []
    shown = root("GET", f"transactions/{name}").json
    assert {"id": name, "owner": "dev-key", "state": "open", "connection": False}.items() <= (
        shown.items()
    )
    assert shown["topics"] == {"t1": 2, "t2": 1}
    assert shown["begun_us"] > 0 and shown["staged_bytes"] > 0
    assert [one["id"] for one in root("GET", "transactions").json["transactions"]] == [name]
    for _ in range(2):  # a repeat changes nothing
        done = root("POST", f"transactions/{name}/commit")
        assert done.json == {"id": name, "state": "committed"}
    assert values(root, "t1") == [encoded("a"), encoded("b")]
    assert values(root, "t2") == [encoded("c")]
    assert root("GET", "transactions").json == {"transactions": []}
    assert root("GET", f"transactions/{name}").error[:2] == (404, "TRANSACTION_NOT_OPEN")


def test_roll_back(root: Caller) -> None:
    name = begun(root)
    staged(root, name, "t3", "a")
    assert root("DELETE", f"transactions/{name}").status == 204
    for method, path in (
        ("DELETE", f"transactions/{name}"),
        ("POST", f"transactions/{name}/commit"),
        ("POST", "transactions/nothing/commit"),
    ):
        assert root(method, path).error[:2] == (404, "TRANSACTION_NOT_OPEN")
    body = {"topic": "t3", "records": [{"value": ""}]}
    assert root("POST", f"transactions/{name}/records", body).status == 404
    assert values(root, "t3") == []


def test_only_values(root: Caller) -> None:
    name = begun(root)
    body = {"topic": "t4", "records": [{"value": "", "key": ""}]}
    refused = root("POST", f"transactions/{name}/records", body)
    assert "a message of a transaction has a value, no key" in refused.error[2]
    assert root("DELETE", f"transactions/{name}").status == 204


def test_whose_they_are(root: Caller, al: Caller, server: LiveServer) -> None:
    """To others an id seems not to exist; administrators see all, and may roll back, not commit."""
    mine, theirs = begun(root), begun(al)
    assert [one["id"] for one in al("GET", "transactions").json["transactions"]] == [theirs]
    for method, path in (
        ("GET", f"transactions/{mine}"),
        ("DELETE", f"transactions/{mine}"),
        ("POST", f"transactions/{mine}/commit"),
    ):
        assert al(method, path).error[:2] == (404, "TRANSACTION_NOT_OPEN")
    found = root("GET", "transactions").json["transactions"]
    assert {one["id"]: one["owner"] for one in found} == {mine: "dev-key", theirs: "al"}
    assert root("POST", f"transactions/{theirs}/commit").status == 404
    assert root("DELETE", f"transactions/{theirs}").status == 404
    assert al("POST", f"transactions/{mine}/abort").error[:2] == (403, "NOT_AUTHORIZED")
    assert root("POST", f"transactions/{theirs}/abort").status == 204
    assert root("POST", f"transactions/{theirs}/abort").status == 404
    assert root("DELETE", f"transactions/{mine}").status == 204
    assert al("POST", f"transactions/{theirs}/commit").status == 404


def test_one_of_a_connection(root: Caller, server: LiveServer) -> None:
    """FlyMQ without a login: listed for administrators, who may end it."""
    with connect_flymq(f"127.0.0.1:{server.port()}") as client:
        name = client.begin_transaction()
        (shown,) = root("GET", "transactions").json["transactions"]
        assert (shown["id"], shown["connection"]) == (name, True)
        assert root("POST", f"transactions/{name}/abort").status == 204
        assert root("GET", "transactions").json == {"transactions": []}


def test_begun_here_and_committed_over_flymq(root: Caller, server: LiveServer) -> None:
    name = begun(root)
    staged(root, name, "t5", "a")
    with connect_flymq(f"127.0.0.1:{server.port()}", key="dev-key") as client:
        client.stage(name, "t5", [b"b"])
        client.commit_transaction(name)
    assert values(root, "t5") == [encoded("a"), encoded("b")]
