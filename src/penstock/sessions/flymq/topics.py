"""CREATE_TOPIC, DELETE_TOPIC, LIST_TOPICS, METADATA, and the cluster of one: 0x50 to 0x53."""

from collections.abc import Sequence
from typing import Final

from penstock.broker.cluster import EPOCH, NODE_NUMBER, ONLINE
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.engine import Pending, TopicInfo
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import messages as m

OK: Final = m.Ok(True, "OK")

_NOBODY_JOINS: Final = (
    "nodes neither join nor leave by this call: the log of one machine is a cluster of one, and "
    "gateways of Kafka are members as long as they run (penstock serve --engine kafka)"
)


def create_topic(session: Conversation, call: Call, request: m.CreateTopic) -> None:
    """A topic that is there stays as it is; 0 partitions are 1."""
    if session.port.topic(request.topic) is not None:
        session.reply(call, OK)
        return
    count = request.partitions or 1
    change = session.port.create_topic(session.principal, request.topic, count)
    if change is None:
        session.reply(call, OK)
    else:
        session.reply_when_durable(call, change, OK)


def delete_topic(session: Conversation, call: Call, request: m.Topic) -> None:
    """One that is not there is deleted already."""
    if session.port.topic(request.topic) is None:
        session.reply(call, OK)
        return
    change = session.port.delete_topic(session.principal, request.topic)
    session.blocking = True  # a PRODUCE behind it makes the topic anew

    def gone(done: Pending[object]) -> None:
        session.blocking = False
        error = done.error
        if error is None or from_exception(error).code is Code.UNKNOWN_TOPIC:
            session.reply_later(call, OK)
        else:
            session.refuse_later(call, error)

    change.on_done(session.guarded(gone))


def list_topics(session: Conversation, call: Call, request: m.Nothing) -> None:
    principal = session.principal

    def make() -> m.Names:
        return m.Names([info.name for page in session.port.topics(principal) for info in page])

    session.reply_aside(call, make)


def metadata(session: Conversation, call: Call, request: m.Topic) -> None:
    info = session.topic(request.topic)

    def make() -> m.TopicMetadata:
        ends = [session.port.offsets(info.name, number) for number in range(info.partitions)]
        rows = [m.PartitionEnds(n, NODE_NUMBER, *both) for n, both in enumerate(ends)]
        return m.TopicMetadata(info.name, rows)

    if info.partitions <= DESCRIBED_AT_ONCE:
        session.reply(call, make())
    else:
        session.reply_aside(call, make)


# --- the cluster ----------------------------------------------------------------------------------


def change_cluster(session: Conversation, call: Call, request: object) -> None:
    raise BrokerError(Code.INVALID_REQUEST, _NOBODY_JOINS)


def cluster_status(session: Conversation, call: Call, request: m.Nothing) -> None:
    """Any node serves every partition: the one that is asked is the leader for who asks."""
    view = session.port.cluster()
    nodes = [
        m.Node(
            node.id,
            session.address if node.id == view.this else node.address,
            node.cluster_address,
            ONLINE,
            node.id == view.this,
        )
        for node in view.nodes
    ]
    session.reply(call, m.ClusterStatus(view.id, view.this, EPOCH, nodes))


def cluster_metadata(session: Conversation, call: Call, request: m.ClusterMetadataOf) -> None:
    """Of one topic, or of all that the principal may use."""
    address, principal = session.address, session.principal
    one = session.topic(request.topic) if request.topic else None

    def make() -> m.ClusterMetadata:
        pages = session.port.topics(principal) if one is None else [[one]]
        view = session.port.cluster()
        rows = [
            _described(info, view.this, address, session.port.replicas(info.name))
            for page in pages
            for info in page
        ]
        return m.ClusterMetadata(view.id, rows)

    if one is not None and one.partitions <= DESCRIBED_AT_ONCE:
        session.reply(call, make())
    else:
        session.reply_aside(call, make)


def _described(
    info: TopicInfo,
    this: str,
    address: str,
    replicas: Sequence[tuple[Sequence[str], Sequence[str]]],
) -> m.ClusterTopic:
    """Clients connect to the leader of a partition: it is the node that they are connected to."""
    partitions = [
        m.ClusterPartition(number, this, address, EPOCH, ONLINE, list(kept_by), list(in_sync))
        for number, (kept_by, in_sync) in enumerate(replicas)
    ]
    return m.ClusterTopic(info.name, partitions)
