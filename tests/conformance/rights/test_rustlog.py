"""The table of rights at the door of RustLog: every request, as a stranger and as each role.

RustLog has no login: its connections act as the principal that the configuration names.
"""

from pathlib import Path
from typing import get_args

import pytest
from conformance.rights.callers import KNOWN, OTHER, OWN, STRANGER, Caller, Outcome, walking
from conformance.rustlog.peer import BINARY, Talker, text

from penstock.broker.access.rights import Operation
from penstock.sessions.rustlog.session import REQUESTS
from penstock.wire.rustlog import frames as wire


def test_every_request_is_in_the_table() -> None:
    assert set(REQUESTS) == set(get_args(wire.Request))


def attempt(port: int, request: type, topic: str, group: str) -> Outcome:
    content = {
        wire.Produce: BINARY.produce(topic, 0, [b"x"]),
        wire.Fetch: BINARY.fetch(topic, 0, 0, 9),
        wire.OffsetCommit: BINARY.commit(group, topic, 0, 0),
        wire.OffsetFetch: BINARY.offset_fetch(group, topic, 0),
        wire.CreateTopic: BINARY.create(f"{topic}.new", 1),
        wire.ListTopics: BINARY.list_topics(),
        wire.DescribeTopic: b"\x07" + text(topic),
        wire.DescribePartition: b"\x08" + text(topic) + bytes(4),
        wire.Metrics: b"\x09",
        wire.Ping: BINARY.ping(),
    }[request]
    with Talker(port) as peer:
        answer = peer.ask(content)
    if answer[0] == 0xFE:
        # Whether a topic exists is not told to who may not read it.
        hidden = request in (wire.DescribeTopic, wire.DescribePartition) and b"not found" in answer
        assert hidden or b": that needs the right" in answer, answer
        return "refused"
    return "allowed"


def expected(caller: Caller, operation: Operation, topic: str) -> Outcome:
    return "allowed" if caller.may(operation, topic) else "refused"


@pytest.mark.parametrize("caller", [STRANGER, *KNOWN], ids=lambda caller: caller.name)
def test_every_request_needs_the_right_of_the_table(tmp_path: Path, caller: Caller) -> None:
    principal = "anonymous" if caller is STRANGER else caller.name
    with walking(tmp_path, rustlog__principal=principal) as walk:
        for prefix in (OWN, OTHER):
            for request, row in REQUESTS.items():
                topic, group = walk.fresh(prefix)
                found = attempt(walk.server.port(), request, topic, group)
                assert found == expected(caller, row.operation, topic), request
