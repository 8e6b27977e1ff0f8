"""What each opcode needs and does: its operation in the table of rights, and the function for it.

An opcode of the wire's table (wire/flymq/opcodes.py) that is not here is decoded and answered with one
ERROR, "not supported yet by this version".
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.access.rights import Operation
from penstock.sessions.flymq import access, groups, reading, timed, topics
from penstock.sessions.flymq.conversation import Call, Conversation

Handle = Callable[[Conversation, Call, Any], None]


class Row(NamedTuple):
    """`without_topic`: the operation where the request names no topic. `changes`: metadata or records. Such
    a request takes effect in its order without waiting, and only its answer waits for the disk."""

    operation: Operation
    handle: Handle | None
    without_topic: Operation | None = None
    changes: bool = False


OPERATIONS: Final[dict[int, Row]] = {
    # PRODUCE comes in runs, which have a function of their own.
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
    0x35: Row(Operation.PUBLISH, timed.produce_with_ttl, changes=True),
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
    0x70: Row(Operation.LOG_IN, access.log_in),
    0x72: Row(Operation.KEEP_ALIVE, access.who_am_i),
}
