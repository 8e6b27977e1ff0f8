"""The table of rights at the door of Felix: every message, with no key, a wrong one, and each role."""

from typing import Any

import pytest
from conformance.felix.kit import reply
from conformance.quic import Wire
from conformance.rights.callers import CALLERS, OTHER, OWN, Caller, Outcome, Walk, outcome
from sessions.felix.peer import message

from penstock.sessions.felix.session import OPERATIONS
from penstock.wire.felix.messages import SERVER_TYPES


def request(kind: str, tenant: str, walk: Walk) -> bytes:
    stream = {"tenant_id": tenant, "namespace": "n", "stream": "s"}
    scope = {"tenant_id": tenant, "namespace": "n", "cache": "c", "key": "k"}
    bodies: dict[str, dict[str, Any]] = {
        "publish": {**stream, "payload": "", "ack": "per_message"},
        "publish_batch": {**stream, "payloads": [""], "ack": "per_batch"},
        "subscribe": stream,
        "cache_put": {**scope, "value": ""},
        "cache_get": scope,
        "auth": {"token": walk.keys["reader"]},
    }
    return message(kind, **bodies[kind])


def test_every_message_that_the_server_serves_is_in_the_table(walk: Walk) -> None:
    """Found from outside: whatever else is sent is unknown."""
    wire = Wire(walk.server)
    for kind in (*OPERATIONS, "unsubscribe", "cache_delete", "resume", ""):
        stream = wire.open(message(kind))
        text = reply(wire, stream)["message"]
        assert text.startswith("unknown message type") == (kind not in OPERATIONS), kind
    wire.close()
    assert not set(OPERATIONS) & set(SERVER_TYPES)


def attempt(walk: Walk, caller: Caller, kind: str, tenant: str) -> Outcome:
    wire = Wire(walk.server)
    stream = wire.open()
    key = walk.key(caller)
    if key is not None:
        wire.send(stream, message("auth", token=key))
        assert (reply(wire, stream)["type"] == "ok") == caller.known
    wire.send(stream, request(kind, tenant, walk))
    answer = reply(wire, stream)
    wire.close()
    if answer["type"] != "error":
        return "allowed"
    assert answer["message"].startswith("unauthorized"), answer
    return "unauthenticated" if answer["message"] == "unauthorized" else "refused"


@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_message_needs_the_right_of_the_table(
    walk: Walk, caller: Caller, prefix: str
) -> None:
    for kind, operation in OPERATIONS.items():
        tenant, _ = walk.fresh(prefix)
        walk.felix(tenant)
        found = attempt(walk, caller, kind, tenant)
        expected = outcome(caller, operation, f"{tenant}/n/s")
        # A key without any right is told no more than somebody without a key.
        if caller.role == "guest" and expected == "refused":
            expected = "unauthenticated"
        assert found == expected, (kind, caller.name)
