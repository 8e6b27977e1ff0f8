"""SUBSCRIBE, COMMIT and the group operations 0x60 to 0x66.

A FlyMQ group is a group id on a topic. Its offsets are the engine's, the same for every protocol; a
SUBSCRIBE makes its connection a member, which is counted and gets no partitions assigned.
"""

from penstock.broker.errors import BrokerError, Code
from penstock.broker.groups import GroupRow
from penstock.log.engine import Pending
from penstock.names import MAX_NAME_BYTES
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.topics import OK
from penstock.wire.flymq import messages as m

# The log counts offsets in an i64; the wire has a u64.
MAX_OFFSET = (1 << 63) - 1
MILLISECOND_US = 1_000


def subscribe(session: Conversation, call: Call, request: m.Subscribe) -> None:
    session.check_partition(request.topic, request.partition)
    earliest, latest = session.port.offsets(request.topic, request.partition)
    if request.mode == "earliest":
        start = earliest
    elif request.mode in ("latest", ""):
        start = latest
    elif request.mode == "commit":
        committed = _committed(session, request)
        start = earliest if committed is None else committed
    else:
        raise BrokerError(Code.INVALID_REQUEST, f"unknown subscribe mode: {request.mode}")
    if request.group:
        check_group(request.group)
        session.port.join_group(session, request.group, request.topic)
    session.reply(call, m.Offset(start))


def commit(session: Conversation, call: Call, request: m.Commit) -> None:
    _check_offset(request.offset)
    check_group(request.group)
    session.check_partition(request.topic, request.partition)
    change = session.port.commit_offset(
        session.principal, request.group, request.topic, request.partition, request.offset
    )
    assert change is not None  # the partition exists
    session.reply_when_durable(call, change, OK)


def get_offset(session: Conversation, call: Call, request: m.GroupPartition) -> None:
    _group(session, request)
    session.reply(call, m.Offset(_committed(session, request) or 0))


def reset_offset(session: Conversation, call: Call, request: m.ResetOffset) -> None:
    check_group(request.group)
    session.check_partition(request.topic, request.partition)
    earliest, latest = session.port.offsets(request.topic, request.partition)
    if request.mode == "earliest":
        target = earliest
    elif request.mode == "latest":
        target = latest
    elif request.mode == "offset":
        if request.offset is None:
            raise BrokerError(Code.INVALID_REQUEST, "the reset mode offset needs an offset")
        target = request.offset
    else:
        raise BrokerError(Code.INVALID_REQUEST, f"unknown reset mode: {request.mode}")
    _check_offset(target)
    change = session.port.reset_offset(
        session.principal, request.group, request.topic, request.partition, target
    )
    session.reply_when_durable(call, change, OK)


def list_groups(session: Conversation, call: Call, request: m.Nothing) -> None:
    principal = session.principal
    session.reply_aside(
        call, lambda: m.GroupRows([_row(one) for one in session.port.groups(principal)])
    )


def describe_group(session: Conversation, call: Call, request: m.Group) -> None:
    """Without a topic: on the first one of the group."""
    found = session.port.group(session.principal, request.group, request.topic or None)
    session.reply(call, _row(found))


def get_lag(session: Conversation, call: Call, request: m.GroupPartition) -> None:
    session.check_partition(request.topic, request.partition)
    _group(session, request)
    committed = _committed(session, request) or 0
    latest = session.port.offsets(request.topic, request.partition)[1]
    session.reply(call, m.Lag(committed, committed, latest, max(latest - committed, 0)))


def delete_group(session: Conversation, call: Call, request: m.Group) -> None:
    """Without a topic: on all of them."""
    change = session.port.delete_group(session.principal, request.group, request.topic or None)
    session.reply_when_durable(call, change, OK)


def seek_to_timestamp(session: Conversation, call: Call, request: m.SeekToTimestamp) -> None:
    """The first offset of that time or later; committed for the group, where one is named."""
    session.check_partition(request.topic, request.partition)
    if request.group:
        check_group(request.group)
    time_us = min(max(request.timestamp_ms, 0), MAX_OFFSET // MILLISECOND_US) * MILLISECOND_US
    looked_up = session.port.offset_at_time(request.topic, request.partition, time_us)

    def found(done: Pending[int]) -> None:
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        offset = done.result()
        if not request.group:
            session.reply_later(call, m.Offset(offset))
            return
        try:
            change = session.port.commit_offset(
                session.principal, request.group, request.topic, request.partition, offset
            )
        except BrokerError as error:  # the key may be revoked by now
            session.refuse_later(call, error)
            return
        if change is None:
            session.refuse_later(call, BrokerError(Code.UNKNOWN_PARTITION))
        else:
            session.reply_when_durable(call, change, m.Offset(offset))

    looked_up.on_done(session.guarded(found))


def _group(session: Conversation, request: m.GroupPartition) -> GroupRow:
    """Raises UNKNOWN_GROUP: a group is there once it has a member or an offset on the topic."""
    return session.port.group(session.principal, request.group, request.topic)


def _committed(session: Conversation, request: m.GroupPartition | m.Subscribe) -> int | None:
    place = request.group, request.topic, request.partition
    return session.port.committed_offset(*place, anywhere=False)


def _row(found: GroupRow) -> m.GroupRow:
    offsets = [m.CommittedOffset(*one) for one in found.offsets]
    return m.GroupRow(found.topic, found.group, found.members, offsets)


def check_group(group: str) -> None:
    size = len(group.encode())
    if not 0 < size <= MAX_NAME_BYTES:
        detail = f"a group has a name of 1 to {MAX_NAME_BYTES} bytes, not {size}"
        raise BrokerError(Code.INVALID_REQUEST, detail)


def _check_offset(offset: int) -> None:
    if offset > MAX_OFFSET:
        detail = f"offset {offset} is above the largest, {MAX_OFFSET}"
        raise BrokerError(Code.INVALID_REQUEST, detail)
