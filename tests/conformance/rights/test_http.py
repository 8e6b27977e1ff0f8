"""The table of rights at the door of HTTP: every call, with no key, a wrong one, and each role."""

import http.client
import json
from urllib.parse import quote

import pytest
from conformance.rights.callers import CALLERS, OTHER, OWN, Caller, Outcome, Walk, outcome
from kit.limits import HANG_S
from starlette.routing import Route

from penstock.broker.access.rights import Operation
from penstock.broker.access.topic_rules import TopicRule
from penstock.server.http.calls import API_PREFIX, CALLS, OPEN_CALLS

Call = tuple[str, str, Operation]


def calls() -> list[Call]:
    """Method, path and operation of every call that the door takes."""
    found = [("GET", path, operation) for path, operation in OPEN_CALLS.items()]
    for path, methods in CALLS.items():
        found += [
            (method, API_PREFIX + path.replace("{name}", "*"), call.operation)
            for method, call in methods.items()
        ]
    return found


def test_every_route_is_in_the_table(walk: Walk) -> None:
    app = walk.server.server.http
    assert app is not None
    routes = {route.path for route in app.routes if isinstance(route, Route)}
    assert routes == {*OPEN_CALLS, *(API_PREFIX + path for path in CALLS)}


def attempt(walk: Walk, caller: Caller, call: Call, topic: str, group: str) -> Outcome:
    method, pattern, _ = call
    key_name = f"key-of-{group}"
    if "keys/" in pattern:
        walk.server.server.broker.access.create_key(key_name, "reader")
    schema = f"schema-of-{group}"
    if "schemas/" in pattern:
        walk.server.server.broker.schemas.registry.register(schema, "json", b"{}")
    accounts, by = walk.server.server.broker.accounts, walk.server.server.broker.access.anonymous
    if "users/" in pattern:
        accounts.create_user(by, key_name, "pw", ())
    if "acls/" in pattern:
        accounts.set_rule(by, topic, TopicRule())
    name = {
        "topics": topic,
        "groups": group,
        "keys": key_name,
        "users": key_name,
        "acls": topic,
        "schemas": schema,
        "transactions": "txn-0",
        "delayed": "delayed-0",
    }
    scope = f"{topic}/n/s"
    if pattern.startswith(f"{API_PREFIX}felix/"):
        walk.felix(topic)
    member = ""
    if pattern.endswith(("/heartbeat", "/leave")) and caller.known:
        sharing = walk.server.server.broker.sharing
        joined = walk.server.call(lambda: sharing.join(group, topic, 1, caller.name, "", 0))
        member = joined.member
    path = pattern.replace("*", name.get(pattern.removeprefix(API_PREFIX).split("/")[0], ""))
    for what, one in (("streams", scope), ("namespaces", f"{topic}/n"), ("caches", f"{topic}/n/c")):
        path = path.replace(f"felix/{what}/", f"felix/{what}/{quote(one, safe='')}")
    path = path.replace("felix/tenants/", f"felix/tenants/{topic}")
    path += (
        "?force=true"
        if method == "DELETE" and pattern.endswith(("tenants/*", "namespaces/*"))
        else ""
    )
    bodies: dict[tuple[str, str], object] = {
        ("POST", "topics"): {"name": f"{topic}.new"},
        ("PATCH", "topics/*"): {"settings": {"durability": "none"}},
        ("POST", "topics/*/records"): {"records": [{"value": ""}]},
        ("POST", "transactions/*/records"): {"topic": topic, "records": [{"value": ""}]},
        ("POST", "groups/*/reset"): {"topic": topic, "to": "earliest"},
        ("POST", "groups/*/commit"): {"topic": topic, "offset": 0},
        ("POST", "groups/*/join"): {"topic": topic},
        ("POST", "groups/*/heartbeat"): {"topic": topic, "member": member},
        ("POST", "groups/*/leave"): {"topic": topic, "member": member},
        ("POST", "topics/*/dead-letters/replay"): {"id": "0-0"},
        ("POST", "felix/tenants"): {"name": f"{topic}-2"},
        ("POST", "felix/namespaces"): {"name": f"{topic}/n2"},
        ("POST", "felix/streams"): {"name": f"{topic}/n/s2"},
        ("POST", "felix/caches"): {"name": f"{topic}/n/c2"},
        ("POST", "schemas"): {"name": schema, "definition": "{}"},
        ("PATCH", "schemas/*"): {"compatibility": "none"},
        ("POST", "schemas/*/validate"): {"text": "{}"},
        ("POST", "keys"): {"name": key_name, "role": "reader"},
        ("POST", "users"): {"name": key_name, "password": "pw"},
        ("PATCH", "users/*"): {"enabled": False},
        ("POST", "users/*/password"): {"password": "new"},
        ("PUT", "acls/*"): {"users": ["somebody"]},
    }
    body = bodies.get((method, pattern.removeprefix(API_PREFIX)))
    key = walk.key(caller)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None if body is None else json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", walk.server.port("http"), timeout=HANG_S)
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status in (401, 403):
        return "unauthenticated" if answer.status == 401 else "refused"
    # A group is there for who may read one of its topics; no topic here has a dead letter, and there are no
    # transactions and no delayed messages.
    missing = {
        ("GET", "groups/*"),
        ("POST", "topics/*/dead-letters/replay"),
        ("GET", "transactions/*"),
        ("DELETE", "transactions/*"),
        ("POST", "transactions/*/records"),
        ("POST", "transactions/*/commit"),
        ("POST", "transactions/*/abort"),
        ("DELETE", "delayed/*"),
    }
    hidden = answer.status == 404 and (method, pattern.removeprefix(API_PREFIX)) in missing
    assert 200 <= answer.status < 300 or hidden, (call, answer.status, text)
    return "allowed"


@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_call_needs_the_right_of_the_table(walk: Walk, caller: Caller, prefix: str) -> None:
    for call in calls():
        topic, group = walk.fresh(prefix)
        found = attempt(walk, caller, call, topic, group)
        assert found == outcome(caller, call[2], topic), call
