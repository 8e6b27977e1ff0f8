"""The table of rights at the door of Arrow Flight: every call and action, with each key and without."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.rights.callers import (
    CALLERS,
    KNOWN,
    OTHER,
    OWN,
    STRANGER,
    Caller,
    Outcome,
    Walk,
    outcome,
    walking,
)
from kit.flight_client import FLIGHT
from pyarrow import flight

from penstock.broker.access.rights import Operation
from penstock.server.flight.service import ACTIONS, CALLS, FlightService

STAGING = "do_put in a transaction"


def operations() -> dict[str, Operation]:
    actions = {f"action {name}": row.operation for name, row in ACTIONS.items()}
    return {**CALLS, STAGING: Operation.STAGE_RECORDS, **actions}


def test_every_call_is_in_the_table() -> None:
    calls = {name for name in vars(FlightService) if hasattr(flight.FlightServerBase, name)}
    ours = {"shutdown"}  # of the server, no call of a peer
    assert {name for name in calls if not name.startswith("_")} - ours == {*CALLS, "do_action"}


def test_every_action_that_is_told_is_in_the_table(walk: Walk) -> None:
    client, options = connected(walk, KNOWN[0])
    with client:
        assert {action.type for action in client.list_actions(options)} == set(ACTIONS)


def connected(walk: Walk, caller: Caller) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    key = walk.key(caller)
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    location = f"grpc://127.0.0.1:{walk.server.port('flight')}"
    return flight.FlightClient(location), flight.FlightCallOptions(headers=headers)


def put(client: flight.FlightClient, options: flight.FlightCallOptions, **command: object) -> None:
    rows = pa.table({"value": pa.array([b"x"], pa.binary())})
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, _ = client.do_put(descriptor, rows.schema, options)
    with writer:
        writer.write_table(rows)


def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("x"), options)
    with writer:
        reader.read_all()


def attempt(walk: Walk, caller: Caller, name: str, topic: str, group: str) -> Outcome:
    client, options = connected(walk, caller)
    path = flight.FlightDescriptor.for_path(topic)
    ticket = flight.Ticket(json.dumps({"topic": topic, "partition": 0}).encode())
    place = {"topic": topic, "partition": 0, "offset": 0}
    bodies: dict[str, dict[str, object]] = {
        "topics": {},
        "offsets": {"topic": topic},
        "offsets_by_time": {"topic": topic, "time_us": 0},
        "schema": {"name": "rights"},
        "commit_group": {"group": group, "offsets": [place]},
        "begin": {"name": group},
        "commit": {"name": group, "tasks": []},
        "abort": {"name": group},
        "committed": {"group": group, "topic": topic},
    }
    calls: dict[str, Callable[[], object]] = {
        "list_flights": lambda: list(client.list_flights(b"", options)),
        "get_flight_info": lambda: client.get_flight_info(path, options),
        "get_schema": lambda: client.get_schema(path, options),
        "do_get": lambda: client.do_get(ticket, options).read_all(),
        "do_put": lambda: put(client, options, topic=topic),
        STAGING: lambda: put(client, options, topic=topic, transaction=group, task=0),
        "do_exchange": lambda: exchange(client, options),
        "list_actions": lambda: client.list_actions(options),
    }
    if name == "action schema":
        walk.server.server.broker.schemas.registry.register("rights", "json", b"{}")
    if name in (STAGING, "action commit"):
        _begin_as(walk, caller, group)
    with client:
        try:
            if name.startswith("action "):
                kind = name.removeprefix("action ")
                action = flight.Action(kind, json.dumps(bodies[kind]).encode())
                list(client.do_action(action, options))
            else:
                calls[name]()
        except (pa.ArrowException, OSError) as error:  # pyarrow has kinds for some calls only
            if "NOT_AUTHENTICATED" in str(error):
                return "unauthenticated"
            if "NOT_AUTHORIZED" in str(error):
                return "refused"
            assert name == "do_exchange" and "there is no DoExchange" in str(error), error
    return "allowed"


def _begin_as(walk: Walk, caller: Caller, name: str) -> None:
    """Opens a transaction for the caller, where it may have one."""
    client, options = connected(walk, caller)
    with client:
        try:
            list(
                client.do_action(
                    flight.Action("begin", json.dumps({"name": name}).encode()), options
                )
            )
        except (pa.ArrowException, OSError):
            assert outcome(caller, Operation.USE_TRANSACTIONS, "") != "allowed"


def expected(caller: Caller, operation: Operation, topic: str) -> Outcome:
    """Flight lets strangers in, as a principal without rights that they all share."""
    if caller is not STRANGER:
        # A wrong key is not overlooked, whatever the call.
        return outcome(caller, operation, topic) if caller.known else "unauthenticated"
    if caller.may(operation, topic):
        return "allowed"
    return "unauthenticated" if operation.needs_key else "refused"


@pytest.mark.parametrize("prefix", [OWN, OTHER])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_call_needs_the_right_of_the_table(walk: Walk, caller: Caller, prefix: str) -> None:
    for name, operation in operations().items():
        topic, group = walk.fresh(prefix)
        found = attempt(walk, caller, name, topic, group)
        assert found == expected(caller, operation, topic), (name, operation)


def test_what_rustlog_acts_as_is_no_right_of_flight(tmp_path: Path) -> None:
    """Not even where RustLog itself is off."""
    settings = {"listeners.rustlog": "off", "rustlog.principal": "admin", **FLIGHT}
    with walking(tmp_path, **settings) as walk:
        topic, group = walk.fresh(OTHER)
        for name in ("do_get", "do_put", "action commit_group", "get_flight_info"):
            assert attempt(walk, STRANGER, name, topic, group) == "refused"
        assert attempt(walk, STRANGER, "action begin", topic, group) == "unauthenticated"
