"""The table of rights at the door of FlyMQ: every opcode, with no key, a wrong one, and each role."""

import struct
from collections.abc import Callable

import pytest
from conformance.flymq.peer import FlyMQPeer, Reply, blob, frame, text
from conformance.rights.callers import (
    CALLERS,
    OTHER,
    OWN,
    STRANGER,
    WRONG,
    Caller,
    Outcome,
    Walk,
)

from penstock.broker.access.rights import Operation
from penstock.sessions.flymq.operations import OPERATIONS
from penstock.wire.flymq.opcodes import OPCODES

UNKNOWN = "unknown opcode: "
# Nothing; a few empty texts; many; a sized message and a text.
PROBES = (b"", bytes(8), bytes(64), blob(bytes(64)) + text(""))


def test_every_opcode_that_the_server_serves_is_in_the_table(walk: Walk) -> None:
    """Found from outside: by its answers to payloads, one of which each of them can read."""
    served = set()
    with FlyMQPeer(walk.server.port()) as peer:
        for number in range(256):
            words = [said(peer.ask(number, payload)) for payload in PROBES]
            if not any(one.startswith(UNKNOWN) for one in words):
                served.add(number)
    assert served == set(OPERATIONS) == set(OPCODES)


def said(reply: Reply) -> str:
    """The text of an ERROR in either dialect; nothing of an answer."""
    if reply.opcode != 0xFF:
        return ""
    spec = struct.unpack_from(">H", reply.payload, 1)[0] == len(reply.payload) - 3
    short = reply.payload[3] < 0x20
    return reply.sdk_error[1] if short or not spec else reply.error


def request(number: int, topic: str, group: str) -> bytes:
    place = text(topic) + text(group) + bytes(4)
    bodies: dict[int, Callable[[], bytes]] = {
        0x01: lambda: text(topic) + blob(b"") + blob(b"more") + struct.pack(">i", -1),
        0x02: lambda: text(topic) + bytes(12),
        0x03: lambda: text(f"{topic}.new") + bytes(4),
        0x05: lambda: place + text("latest"),
        0x06: lambda: place + bytes(8),
        0x07: lambda: text(topic) + bytes(16),
        0x0A: lambda: text(topic) + bytes(12),
        0x0B: lambda: text(topic) + bytes(16),
        0x10: lambda: text(f"schema-{topic}") + b"\x04json" + blob(b"{}"),
        0x11: lambda: text("none") + bytes(4),
        0x13: lambda: text("none") + blob(b"{}"),
        0x14: lambda: text(topic) + text("none") + blob(b"{}"),
        0x15: lambda: text("none") + bytes(4),
        0x20: lambda: text(topic) + bytes(4),
        0x21: lambda: text(topic) + text("0-0"),
        0x30: lambda: text(topic) + blob(b"late") + bytes(8),
        0x31: lambda: text("delayed-1"),
        0x35: lambda: text(topic) + blob(b"brief") + bytes(8),
        0x43: lambda: text("txn-1") + text(topic) + blob(b"more"),
        0x50: lambda: text("n2:9093"),
        0x61: lambda: place + text("latest"),
        0x66: lambda: place + bytes(8),
        0x67: lambda: text(topic) + text(group) + text("") + bytes(4),
        0x68: lambda: text(topic) + text(group) + text("none") + bytes(4),
        0x69: lambda: text(topic) + text(group) + text("none"),
        0x73: lambda: text(group) + text("pw") + text("") + bytes(5),
        0x75: lambda: text(group) + text("") + text("") + bytes(5),
        0x78: lambda: text(topic) + bytes(9),
        0x7C: lambda: text(group) + text("pw") + text("") + bytes(5),
        0x80: lambda: bytes(36),
        0x81: lambda: blob(bytes(36)) + text("csv"),
    }
    if number in bodies:
        return bodies[number]()
    if number in (0x60, 0x64):
        return place
    return text(topic) + text(group) if number in (0x63, 0x65) else text(topic)


def attempt(walk: Walk, caller: Caller, number: int, topic: str, group: str) -> Outcome:
    """Whatever is not refused for lack of a right counts as allowed."""
    with FlyMQPeer(walk.server.port()) as peer:
        key = walk.key(caller)
        if key is not None:
            peer.ask(0x70, text(caller.name) + text(key))
        payload = request(number, topic, group)
        if number == 0x70:
            payload = text("reader") + text(walk.keys["reader"])
        peer.send(frame(number, payload))
        words = said(peer.hear())
    return "refused" if " may not " in words and ": that needs " in words else "allowed"


def expected(caller: Caller, operation: Operation, topic: str) -> Outcome:
    """A peer that has not logged in acts as a principal that has no rights."""
    return "allowed" if caller.may(operation, topic) else "refused"


@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_opcode_needs_the_right_of_the_table(walk: Walk, caller: Caller, prefix: str) -> None:
    for number, row in OPERATIONS.items():
        topic, group = walk.fresh(prefix)
        found = attempt(walk, caller, number, topic, group)
        assert found == expected(caller, row.operation, topic), OPCODES[number].name


@pytest.mark.parametrize("caller", [STRANGER, WRONG], ids=lambda caller: caller.name)
def test_lists_show_nothing_to_strangers(walk: Walk, caller: Caller) -> None:
    walk.fresh(OWN)
    with FlyMQPeer(walk.server.port()) as peer:
        assert peer.want(0x08) == bytes(4)
        assert peer.want(0x62) == bytes(4)
        assert peer.want(0x53) == text("standalone") + bytes(4)


def test_lists_show_what_the_key_may_use(walk: Walk) -> None:
    own, own_group = walk.fresh(OWN)
    other, other_group = walk.fresh(OTHER)
    for name, sees_all in (("limited-user", False), ("user", True)):
        with FlyMQPeer(walk.server.port()) as peer:
            peer.ask(0x70, text(name) + text(walk.keys[name]))
            for opcode in (0x08, 0x53, 0x62):
                shown = peer.want(opcode)
                assert text(own) in shown
                assert (text(other) in shown) is sees_all
            assert peer.ask(0x63, text("") + text(own_group)).opcode == 0x63
            # Without a topic, a group of others is one that is not there.
            found = peer.ask(0x63, text("") + text(other_group)).opcode == 0x63
            assert found is sees_all
