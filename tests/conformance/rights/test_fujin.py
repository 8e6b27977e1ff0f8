"""The table of rights at the door of Fujin: every command, as the principal of the listener with each role.

Fujin has no login: all its peers act as `fujin.principal`, and where that is nobody, they may do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.quic import Wire
from conformance.rights.callers import KNOWN, OTHER, OWN, STRANGER, Caller, Walk, make_keys
from kit.live_server import LiveServer
from sessions.fujin.peer import WRITER, connect_reader, fetch, write

from penstock.broker.access.rights import Operation
from penstock.sessions.fujin.conversation import OPERATIONS
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.reading import encode_settle

REFUSED = b" may not "


@contextmanager
def acting_as(data: Path, keys: dict[str, str], caller: Caller) -> Iterator[Walk]:
    settings = {} if caller is STRANGER else {"fujin.principal": caller.name}
    with LiveServer(data, settings) as server:
        yield Walk(server, keys)


def refused(walk: Walk, opcode: int, topic: str) -> bool:
    """Whether the server has said so. What a reader does is asked of one that may connect."""
    client = Wire(walk.server, ["fujin"])
    writer = WRITER if opcode != wire.CONNECT_READER else b""
    name = topic.encode()
    sent = {
        wire.CONNECT_WRITER: WRITER,
        wire.CONNECT_READER: connect_reader(topic),
        wire.WRITE: writer + write(1, b"x", name),
        wire.BEGIN: writer + b"\4\0\0\0\1",
        wire.COMMIT: writer + b"\4\0\0\0\1\5\0\0\0\2",
        wire.ROLLBACK: writer + b"\4\0\0\0\1\6\0\0\0\2",
        wire.FETCH: connect_reader(topic, push=False) + fetch(1),
        wire.ACK: connect_reader(topic) + encode_settle(wire.ACK, 1, [b"x"]),
        wire.NACK: connect_reader(topic) + encode_settle(wire.NACK, 1, [b"x"]),
        wire.DISCONNECT: b"",
    }[opcode]
    # The end of the stream brings all answers.
    answers = client.rest(client.open(sent + bytes([wire.DISCONNECT])))
    client.close()
    return REFUSED in answers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("fujin-rights") / "data"
    with LiveServer(path) as server:
        return path, make_keys(server)


@pytest.mark.parametrize("caller", (STRANGER, *KNOWN), ids=lambda caller: caller.name)
def test_every_command_needs_the_right_of_the_table(
    data: tuple[Path, dict[str, str]], caller: Caller
) -> None:
    with acting_as(*data, caller) as walk:
        for prefix in (OWN, OTHER):
            for opcode, operation in OPERATIONS.items():
                topic, _ = walk.fresh(prefix)
                found = refused(walk, opcode, topic)
                assert found is not may(caller, operation, topic), (wire.NAMES[opcode], topic)


def may(caller: Caller, operation: Operation, topic: str) -> bool:
    return caller.may(operation, topic)
