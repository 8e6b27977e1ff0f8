"""The table itself: the words of its refusals, and docs/rights.md, which shows it."""

import re
from pathlib import Path

import pytest
from conformance.rights import test_cli, test_flight, test_http
from conformance.rights.callers import ROLES

from penstock.broker.access.rights import ROLE_ACTIONS, Operation, needed, refusal
from penstock.server.protocols import PROTOCOLS
from penstock.sessions.blipmq import session as blipmq
from penstock.sessions.felix import session as felix
from penstock.sessions.flymq import operations as flymq
from penstock.sessions.fujin import conversation as fujin
from penstock.sessions.rustlog import session as rustlog
from penstock.wire.blipmq import frames
from penstock.wire.flymq.opcodes import OPCODES
from penstock.wire.fujin.commands import NAMES

SECURITY = Path(__file__).parents[3] / "docs" / "security.md"
RIGHTS = SECURITY.with_name("rights.md")
FRAMES = {
    getattr(frames, name): name
    for name in ("HELLO", "AUTH", "PUBLISH", "SUBSCRIBE", "ACK", "NACK", "PING", "PONG", "POLL")
}


def names_at(operation: Operation) -> dict[str, list[str]]:
    """What each door calls the operation."""
    http = [
        f"{method} {path.removeprefix('/api/v1/')}"
        for method, path, one in test_http.calls()
        if one is operation
    ]
    return {
        "BlipMQ": [FRAMES[kind] for kind, one in blipmq.OPERATIONS.items() if one is operation],
        "RustLog": [
            kind.__name__ for kind, row in rustlog.REQUESTS.items() if row.operation is operation
        ],
        "FlyMQ": [
            OPCODES[number].name
            for number, row in flymq.OPERATIONS.items()
            if operation in (row.operation, row.without_topic, row.own)
        ],
        "Felix": [name for name, one in felix.OPERATIONS.items() if one is operation],
        "Fujin": [NAMES[opcode] for opcode, one in fujin.OPERATIONS.items() if one is operation],
        "Flight": [
            name.removeprefix("action ")
            for name, one in test_flight.operations().items()
            if one is operation
        ],
        "HTTP": http,
        "command": [name for name, (one, _) in test_cli.COMMANDS.items() if one is operation],
    }


def open_doors(operation: Operation) -> dict[str, list[str]]:
    """The same at the doors that a server opens: a protocol has a row in its table."""
    closed = {"Felix", "Fujin"} - {protocol.title for protocol in PROTOCOLS}
    return {door: names for door, names in names_at(operation).items() if door not in closed}


def row(operation: Operation) -> str:
    cells = [operation.words, needed(operation)]
    for names in open_doors(operation).values():
        cells.append(", ".join(f"`{name}`" for name in names) or "-")
    return f"| {' | '.join(cells)} |"


def test_the_documents_show_the_table() -> None:
    shown = RIGHTS.read_text().splitlines()
    reached = [operation for operation in Operation if any(open_doors(operation).values())]
    missing = [row(operation) for operation in reached if row(operation) not in shown]
    assert not missing, "docs/rights.md lacks:\n" + "\n".join(missing)


def test_the_documents_show_the_roles() -> None:
    assert {role: set(actions) for role, actions in ROLE_ACTIONS.items()} == ROLES
    text = SECURITY.read_text()
    for role, actions in ROLES.items():
        cells = [("yes" if right in actions else "no") for right in ("read", "write", "admin")]
        assert f"| `{role}` | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_is_one_of_a_door(operation: Operation) -> None:
    assert any(names_at(operation).values())


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("name", ["", "orders"])
def test_the_words_of_a_refusal(operation: Operation, name: str) -> None:
    text = refusal("ops", operation, name)
    assert re.fullmatch(r"ops may not [a-zA-Z ]+( '\w*')?: that needs .+", text)
    assert "admin topic" not in text and "topic ''" not in refusal("ops", operation, "orders")
