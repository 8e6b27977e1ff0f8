"""Groups over HTTP: members and what each reads, commit, join and leave; who asks, and the cluster."""

from collections.abc import Iterator

import pytest
from kit.http_caller import Caller, encoded, with_key
from kit.live_server import LiveServer

from penstock.client.flymq import connect_flymq


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("groups")) as server:
        yield server


@pytest.fixture(scope="module")
def call(server: LiveServer) -> Caller:
    return with_key(server)


def test_the_life_of_members(call: Caller) -> None:
    assert call("POST", "topics", {"name": "shared", "partitions": 4}).status == 201
    for partition in range(4):
        body = {"records": [{"value": encoded("x")}], "partition": partition}
        assert call("POST", "topics/shared/records", body).status == 200
    first = call("POST", "groups/team/join", {"topic": "shared", "timeout_ms": 60_000}).json
    assert first["partitions"] == [0, 1, 2, 3]
    second = call("POST", "groups/team/join", {"topic": "shared"}).json
    assert second["partitions"] == [2, 3]
    beat = {"topic": "shared", "member": first["member"]}
    assert call("POST", "groups/team/heartbeat", beat).json == {
        "member": first["member"],
        "generation": second["generation"],
        "partitions": [0, 1],
    }
    commit = {"topic": "shared", "partition": 1, "offset": 1}
    assert call("POST", "groups/team/commit", commit).status == 204
    found = call("GET", "groups/team").json
    assert [(one["member"], one["partitions"]) for one in found["members"]] == [
        (first["member"], [0, 1]),
        (second["member"], [2, 3]),
    ]
    assert found["members"][0]["user"] == "dev-key"
    assert found["members"][0]["timeout_ms"] == 60_000
    assert found["offsets"] == [
        {
            "topic": "shared",
            "partition": number,
            "offset": 1 if number == 1 else None,
            "latest": 1,
            "lag": 0 if number == 1 else 1,
            "member": (first if number < 2 else second)["member"],
        }
        for number in range(4)
    ]
    (listed,) = call("GET", "groups").json["groups"]
    assert (listed["name"], listed["members"]) == ("team", 2)
    assert call("POST", "groups/team/leave", beat).status == 204
    assert "join again" in call("POST", "groups/team/heartbeat", beat).error[2]
    beat = {"topic": "shared", "member": second["member"]}
    assert call("POST", "groups/team/heartbeat", beat).json["partitions"] == [0, 1, 2, 3]
    assert call("DELETE", "groups/team?topic=shared").status == 204


def test_members_of_flymq(server: LiveServer, call: Caller) -> None:
    """A group that has members and no offsets is there; a connection is counted."""
    with connect_flymq(f"127.0.0.1:{server.port()}") as client:
        client.create_topic("fly", 2)
        client.subscribe("fly", 0, "fliers", "earliest")
        found = call("GET", "groups/fliers").json
        assert found == {
            "name": "fliers",
            "committed_us": None,
            "offsets": [],
            "members": [],
            "connections": {"fly": 1},
            "held": {},
        }
        assert "fliers" in [one["name"] for one in call("GET", "groups").json["groups"]]
    assert call("GET", "groups/nobody").error[:2] == (404, "UNKNOWN_GROUP")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("commit", {"topic": "shared", "offset": -1}, 400),
        ("commit", {"topic": "shared", "partition": 9, "offset": 0}, 404),
        ("commit", {"topic": "nothing", "offset": 0}, 404),
        ("join", {"topic": "nothing"}, 404),
        ("join", {"topic": "shared", "timeout_ms": 1}, 400),
        ("leave", {"topic": "shared", "member": "nobody"}, 400),
    ],
)
def test_what_is_refused(call: Caller, path: str, body: object, status: int) -> None:
    strange = call("POST", f"groups/%E2%80%AE/{path}", body)
    assert strange.status in (status, 400)
    assert call("POST", f"groups/team/{path}", body).status == status


def test_who_asks_and_the_cluster(server: LiveServer, call: Caller) -> None:
    assert call("GET", "whoami").json == {
        "name": "dev-key",
        "kind": "key",
        "roles": ["admin"],
        "rights": ["admin", "read", "write"],
        "topics": ["*"],
    }
    found = call("GET", "cluster").json
    assert found["nodes"] == [
        {
            "id": "n1",
            "address": f"127.0.0.1:{server.port()}",
            "cluster_address": "",
            "status": "online",
            "leader": True,
        }
    ]
    assert found["engine"] == "embedded"
