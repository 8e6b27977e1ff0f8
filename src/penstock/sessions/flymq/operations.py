"""What each opcode needs and does: its operation in the table of rights, and the function for it.

Every opcode of the wire's table (wire/flymq/opcodes.py) is here; tests/conformance/rights compares them.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.access.rights import Operation
from penstock.broker.port import Port
from penstock.sessions.flymq import (
    access,
    accounts,
    audit,
    dead_letters,
    delays,
    groups,
    reading,
    schemas,
    sharing,
    topics,
    transactions,
)
from penstock.sessions.flymq.conversation import Call, Conversation

Handle = Callable[[Conversation, Call, Any], None]


class Row(NamedTuple):
    """`without_topic`: the operation where the request names no topic. `own`: where it is about the account
    of the user who asks. `changes`: metadata or records. Such a request takes effect in its order without
    waiting, and only its answer waits for the disk. `right_first`: who lacks the right is told so
    whatever the payload is. `feature_first`: and then that what it is about is switched off."""

    operation: Operation
    handle: Handle | None
    without_topic: Operation | None = None
    changes: bool = False
    own: Operation | None = None
    right_first: bool = False
    feature_first: Callable[[Port], None] | None = None


def _admin(operation: Operation, handle: Handle) -> Row:
    return Row(operation, handle, right_first=True)


def _audit(handle: Handle) -> Row:
    return Row(Operation.READ_AUDIT, handle, right_first=True, feature_first=audit.require_enabled)


OPERATIONS: Final[dict[int, Row]] = {
    # PRODUCE and its kin come in runs, which have functions of their own.
    0x01: Row(Operation.PUBLISH, None),
    0x02: Row(Operation.READ_RECORDS, reading.consume),
    0x03: Row(Operation.CREATE_TOPIC, topics.create_topic, changes=True),
    0x04: Row(Operation.DESCRIBE_TOPIC, topics.metadata),
    0x05: Row(Operation.SUBSCRIBE, groups.subscribe),
    0x06: Row(Operation.COMMIT_OFFSETS, groups.commit, changes=True),
    0x07: Row(Operation.READ_RECORDS, reading.fetch),
    0x08: Row(Operation.LIST_TOPICS, topics.list_topics),
    0x09: Row(Operation.DELETE_TOPIC, topics.delete_topic),
    0x0A: Row(Operation.READ_RECORDS, reading.consume),
    0x0B: Row(Operation.READ_RECORDS, reading.fetch),
    0x10: Row(Operation.REGISTER_SCHEMA, schemas.register),
    0x11: Row(Operation.READ_SCHEMAS, schemas.get),
    0x12: Row(Operation.READ_SCHEMAS, schemas.list_schemas),
    0x13: Row(Operation.VALIDATE_MESSAGE, schemas.validate),
    0x14: Row(Operation.PUBLISH, schemas.produce, changes=True),
    0x15: Row(Operation.DELETE_SCHEMA, schemas.delete),
    0x20: Row(Operation.READ_DEAD_LETTERS, dead_letters.fetch),
    0x21: Row(Operation.REPLAY_DEAD_LETTER, dead_letters.replay),
    0x22: Row(Operation.PURGE_DEAD_LETTERS, dead_letters.purge),
    0x30: Row(Operation.PUBLISH, None),
    0x31: Row(Operation.CANCEL_DELAYED, delays.cancel),
    0x35: Row(Operation.PUBLISH, None),
    0x40: Row(Operation.OPEN_TRANSACTION, transactions.begin),
    0x41: Row(Operation.END_TRANSACTION, transactions.commit),
    0x42: Row(Operation.END_TRANSACTION, transactions.roll_back),
    0x43: Row(Operation.PUBLISH, None),
    0x50: Row(Operation.CHANGE_CLUSTER, topics.change_cluster),
    0x51: Row(Operation.CHANGE_CLUSTER, topics.change_cluster),
    0x52: Row(Operation.DESCRIBE_CLUSTER, topics.cluster_status),
    0x53: Row(Operation.DESCRIBE_TOPIC, topics.cluster_metadata, Operation.LIST_TOPICS),
    0x60: Row(Operation.READ_OFFSETS, groups.get_offset),
    0x61: Row(Operation.RESET_GROUP, groups.reset_offset, changes=True),
    0x62: Row(Operation.LIST_GROUPS, groups.list_groups),
    0x63: Row(Operation.READ_OFFSETS, groups.describe_group, Operation.LIST_GROUPS),
    0x64: Row(Operation.READ_OFFSETS, groups.get_lag),
    0x65: Row(Operation.DELETE_GROUP, groups.delete_group),
    0x66: Row(Operation.COMMIT_OFFSETS, groups.seek_to_timestamp),
    0x67: Row(Operation.SUBSCRIBE, sharing.join_group),
    0x68: Row(Operation.SUBSCRIBE, sharing.heartbeat),
    0x69: Row(Operation.SUBSCRIBE, sharing.leave_group),
    0x70: Row(Operation.LOG_IN, access.log_in),
    0x72: Row(Operation.KEEP_ALIVE, access.who_am_i),
    0x73: _admin(Operation.CREATE_USER, accounts.create_user),
    0x74: _admin(Operation.DELETE_USER, accounts.delete_user),
    0x75: _admin(Operation.CHANGE_USER, accounts.update_user),
    0x76: _admin(Operation.LIST_USERS, accounts.list_users),
    0x77: _admin(Operation.LIST_USERS, accounts.get_user),
    0x78: _admin(Operation.CHANGE_RULE, accounts.set_rule),
    0x79: _admin(Operation.LIST_RULES, accounts.get_rule),
    0x7A: _admin(Operation.CHANGE_RULE, accounts.delete_rule),
    0x7B: _admin(Operation.LIST_RULES, accounts.list_rules),
    0x7C: Row(
        Operation.CHANGE_PASSWORD, accounts.change_password, own=Operation.CHANGE_OWN_PASSWORD
    ),
    0x7D: Row(Operation.LIST_ROLES, accounts.list_roles),
    0x80: _audit(audit.query),
    0x81: _audit(audit.export),
}
