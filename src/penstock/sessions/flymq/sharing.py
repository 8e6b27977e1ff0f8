"""JOIN_GROUP, HEARTBEAT and LEAVE_GROUP: members of a group share the partitions of a topic.

Opcodes of ours, for clients that want it; a SUBSCRIBE with an explicit partition is in no assignment. The
id of a member outlives its connection, so that a client can reconnect and go on.
"""

from penstock.broker.sharing import Assignment
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.groups import check_group
from penstock.sessions.flymq.topics import OK
from penstock.wire.flymq import messages as m


def join_group(session: Conversation, call: Call, request: m.JoinGroup) -> None:
    check_group(request.group)
    partitions = session.topic(request.topic).partitions
    owner, member = session.principal.name, request.member
    place = request.group, request.topic, partitions
    session.port.join_group(session, request.group, request.topic)
    sharing = session.port.sharing
    found = sharing.join(*place, owner, member, request.timeout_ms)
    ready = sharing.ready(request.group, request.topic)
    if ready is None:
        session.reply(call, _told(found))
        return

    session.blocking = True

    def shared(done: Pending[object]) -> None:
        session.blocking = False
        try:
            done.result()
            # Its time counts from now on, however long that took.
            again = sharing.join(*place, owner, found.member, request.timeout_ms)
        except PenstockError as error:
            session.refuse_later(call, error)
        else:
            session.reply_later(call, _told(again))

    ready.on_done(session.guarded(shared))


def heartbeat(session: Conversation, call: Call, request: m.Heartbeat) -> None:
    """The generation of the request is for servers that fence by it; the answer has the current one."""
    place = request.group, request.topic, session.topic(request.topic).partitions
    found = session.port.sharing.heartbeat(*place, session.principal.name, request.member)
    session.port.join_group(session, request.group, request.topic)  # it may be a new connection
    session.reply(call, _told(found))


def leave_group(session: Conversation, call: Call, request: m.LeaveGroup) -> None:
    place = request.group, request.topic, session.topic(request.topic).partitions
    session.port.sharing.leave(*place, session.principal.name, request.member)
    session.port.leave_group(session, request.group, request.topic)
    session.reply(call, OK)


def _told(found: Assignment) -> m.Assignment:
    return m.Assignment(found.member, found.generation, found.partitions)
