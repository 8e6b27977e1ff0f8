"""Users, passwords and the rules of topics over HTTP, and logins with Basic."""

import base64
from collections.abc import Iterator

import pytest
from kit.http_caller import Caller
from kit.http_caller import with_password as basic
from kit.live_server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("accounts")) as server:
        accounts = server.server.broker.accounts
        accounts.create_user(server.server.broker.access.anonymous, "root", "root-pw", ["admin"])
        yield server


@pytest.fixture
def root(server: LiveServer) -> Caller:
    return basic(server, "root", "root-pw")


def test_the_life_of_a_user(server: LiveServer, root: Caller) -> None:
    al = basic(server, "al", "pässword:1")
    made = root("POST", "users", {"name": "al", "password": "pässword:1", "roles": ["reader"]})
    assert made.status == 201
    assert {"name": "al", "roles": ["reader"], "enabled": True}.items() <= made.json.items()
    assert "password" not in str(made.json)
    assert root("GET", "users/al").json == made.json
    assert [one["name"] for one in root("GET", "users").json["users"]] == ["al", "root"]
    assert root("GET", "users?limit=1").json["next"] == "al"
    assert al("GET", "topics").status == 200
    assert al("GET", "users").error[:2] == (403, "NOT_AUTHORIZED")
    # Roles count for the next call, and what is not given stays.
    changed = root("PATCH", "users/al", {"roles": ["guest", "admin"]})
    assert (changed.json["roles"], changed.json["enabled"]) == (["admin", "guest"], True)
    assert al("GET", "users").status == 200
    assert root("PATCH", "users/al", {"enabled": False}).json["roles"] == ["admin", "guest"]
    assert al("GET", "topics").status == 401
    assert root("PATCH", "users/al", {"enabled": True}).status == 200
    assert al("GET", "topics").status == 200
    assert root("DELETE", "users/al").status == 204
    assert al("GET", "topics").error[:2] == (401, "NOT_AUTHENTICATED")
    assert root("DELETE", "users/al").error == (404, "UNKNOWN_USER", 'user "al" not found')


def test_passwords(server: LiveServer, root: Caller) -> None:
    """The own one needs the current one, that of others the right to administer."""
    assert root("POST", "users", {"name": "bo", "password": "pw"}).status == 201
    bo = basic(server, "bo", "pw")
    path = "users/bo/password"
    assert bo("POST", path, {"password": "new"}).error[2] == "invalid current password"
    assert bo("POST", path, {"password": "new", "current": "no"}).status == 400
    assert bo("POST", "users/root/password", {"password": "new"}).status == 403
    assert bo("POST", path, {"password": "new", "current": "pw"}).status == 204
    assert bo("GET", "topics").status == 401
    assert basic(server, "bo", "new")("GET", "topics").status == 200
    assert root("POST", path, {"password": "third"}).status == 204
    assert basic(server, "bo", "third")("GET", "topics").status == 200
    assert root("DELETE", "users/bo").status == 204


def test_what_is_refused(root: Caller) -> None:
    for body, status, name in (
        ({"name": "root", "password": "pw"}, 409, "USER_EXISTS"),
        ({"name": "cy", "password": ""}, 400, "INVALID_REQUEST"),
        ({"name": "cy", "password": "pw", "roles": ["king"]}, 400, "INVALID_REQUEST"),
        ({"name": "cy"}, 400, "INVALID_REQUEST"),
        ({"name": "cy", "password": "pw", "more": 1}, 400, "INVALID_REQUEST"),
    ):
        assert root("POST", "users", body).error[:2] == (status, name)
    assert root("DELETE", "users/root").error[2] == "cannot delete your own account"
    assert root("PATCH", "users/root", {"enabled": False}).error[:2] == (409, "LAST_ADMIN_KEY")
    assert root("GET", "users/nobody").error[:2] == (404, "UNKNOWN_USER")


def test_rules_of_topics(root: Caller) -> None:
    rule = {"public": False, "users": ["al"], "roles": ["guest"]}
    assert root("PUT", "acls/news.*", rule) == (200, {"topic": "news.*", **rule})
    assert root("GET", "acls/news.*").json == {"topic": "news.*", **rule}
    listed = {"acls": [{"topic": "news.*", **rule}], "default_public": False}
    assert root("GET", "acls").json == listed
    assert root("DELETE", "acls/news.*").status == 204
    for method in ("GET", "DELETE"):
        assert root(method, "acls/news.*").error == (
            404,
            "UNKNOWN_TOPIC",
            "topic 'news.*' has no rule",
        )
    assert root("PUT", "acls/_audit", {}).error[:2] == (400, "INVALID_REQUEST")


def test_roles(root: Caller) -> None:
    found = {one["name"]: one["rights"] for one in root("GET", "roles").json["roles"]}
    assert found == {
        "admin": ["admin", "read", "write"],
        "writer": ["write"],
        "reader": ["read"],
        "guest": [],
    }


def test_a_key_logs_in_with_its_name(server: LiveServer) -> None:
    key = server.server.broker.access.create_key("app", "reader")
    assert basic(server, "app", key)("GET", "topics").status == 200
    assert basic(server, "other", key)("GET", "topics").error[2] == "invalid username or password"
    assert Caller(server, f"Bearer {key}")("GET", "topics").status == 200


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        ("Basic !", "Basic needs base64 of name:password"),
        ("Basic " + base64.b64encode(b"no colon").decode(), "send an API key"),
        ("Basic " + base64.b64encode(b":no name").decode(), "send an API key"),
        ("Basic " + base64.b64encode(b"\xff:x").decode(), "the API key is not UTF-8"),
        ("Basic", "send an API key"),
        ("Digest x", "send an API key"),
    ],
)
def test_other_credentials_are_refused(server: LiveServer, authorization: str, words: str) -> None:
    status, name, text = Caller(server, authorization)("GET", "topics").error
    assert (status, name) == (401, "NOT_AUTHENTICATED") and text.startswith(words)
