"""Every operation of FlyMQ has a call of the HTTP API, with the same row of the table of rights.

What each of them does is tested where it is: here an opcode that nobody gave a call fails.
"""

import pytest

from penstock.broker.access.rights import Operation
from penstock.server.http.calls import CALLS
from penstock.sessions.flymq.operations import OPERATIONS
from penstock.wire.flymq.opcodes import OPCODES

# By the name of the opcode: method and path. Some calls do what several opcodes do: the form of the answer
# (FETCH_BINARY), a field of the body (a time to live, a delay, a schema), or a place to read from.
CALL_OF = {
    "PRODUCE": "POST topics/{name}/records",
    "PRODUCE_WITH_SCHEMA": "POST topics/{name}/records",
    "PRODUCE_WITH_TTL": "POST topics/{name}/records",
    "PRODUCE_DELAYED": "POST topics/{name}/records",
    "CONSUME": "GET topics/{name}/records",
    "CONSUME_ZERO_COPY": "GET topics/{name}/records",
    "FETCH": "GET topics/{name}/records",
    "FETCH_BINARY": "GET topics/{name}/records",
    "CREATE_TOPIC": "POST topics",
    "LIST_TOPICS": "GET topics",
    "METADATA": "GET topics/{name}",
    "CLUSTER_METADATA": "GET topics/{name}",
    "DELETE_TOPIC": "DELETE topics/{name}",
    "REGISTER_SCHEMA": "POST schemas",
    "LIST_SCHEMAS": "GET schemas",
    "GET_SCHEMA": "GET schemas/{name}",
    "VALIDATE_SCHEMA": "POST schemas/{name}/validate",
    "DELETE_SCHEMA": "DELETE schemas/{name}",
    "FETCH_DLQ": "GET topics/{name}/dead-letters",
    "REPLAY_DLQ": "POST topics/{name}/dead-letters/replay",
    "PURGE_DLQ": "DELETE topics/{name}/dead-letters",
    "CANCEL_DELAYED": "DELETE delayed/{name}",
    "TXN_BEGIN": "POST transactions",
    "TXN_PRODUCE": "POST transactions/{name}/records",
    "TXN_COMMIT": "POST transactions/{name}/commit",
    "TXN_ROLLBACK": "DELETE transactions/{name}",
    "CLUSTER_STATUS": "GET cluster",
    "LIST_GROUPS": "GET groups",
    "DESCRIBE_GROUP": "GET groups/{name}",
    "GET_OFFSET": "GET groups/{name}",
    "GET_LAG": "GET groups/{name}",
    "DELETE_GROUP": "DELETE groups/{name}",
    "RESET_OFFSET": "POST groups/{name}/reset",
    "COMMIT": "POST groups/{name}/commit",
    "SEEK_TO_TIMESTAMP": "POST groups/{name}/commit",
    "SUBSCRIBE": "POST groups/{name}/join",
    "JOIN_GROUP": "POST groups/{name}/join",
    "HEARTBEAT": "POST groups/{name}/heartbeat",
    "LEAVE_GROUP": "POST groups/{name}/leave",
    "WHOAMI": "GET whoami",
    "USER_CREATE": "POST users",
    "USER_LIST": "GET users",
    "USER_GET": "GET users/{name}",
    "USER_UPDATE": "PATCH users/{name}",
    "USER_DELETE": "DELETE users/{name}",
    "PASSWORD_CHANGE": "POST users/{name}/password",
    "ROLE_LIST": "GET roles",
    "ACL_LIST": "GET acls",
    "ACL_GET": "GET acls/{name}",
    "ACL_SET": "PUT acls/{name}",
    "ACL_DELETE": "DELETE acls/{name}",
    "AUDIT_QUERY": "GET audit",
    "AUDIT_EXPORT": "GET audit/export",
}
# With the reason.
NO_CALL = {
    "AUTH": "every request carries its login",
    "CLUSTER_JOIN": "the embedded engine is a cluster of one, and refuses it",
    "CLUSTER_LEAVE": "the same",
}
# A group on all its topics needs the right to list groups, and shows those that the caller may read; the
# opcodes name one topic.
BY_GROUP = {Operation.READ_OFFSETS: Operation.LIST_GROUPS}


def test_every_opcode_has_a_call_or_a_reason() -> None:
    names = {opcode.name for opcode in OPCODES.values()}
    assert names == CALL_OF.keys() | NO_CALL.keys()
    assert not CALL_OF.keys() & NO_CALL.keys()


@pytest.mark.parametrize("name", CALL_OF)
def test_it_is_the_same_operation(name: str) -> None:
    method, _, path = CALL_OF[name].partition(" ")
    call = CALLS[path][method]
    (number,) = [number for number, opcode in OPCODES.items() if opcode.name == name]
    wanted = OPERATIONS[number].operation
    assert call.operation is BY_GROUP.get(wanted, wanted)
