"""CREATE_TOPIC, DELETE_TOPIC, LIST_TOPICS, METADATA, and the cluster of one: 0x50 to 0x53."""

from typing import Final

from penstock.broker.cluster import CLUSTER_ID, EPOCH, NODE_ID, NODE_NUMBER, ONLINE
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.engine import Pending, TopicInfo
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import messages as m

OK: Final = m.Ok(True, "OK")

_ONE_NODE: Final = (
    "this server is a cluster of one: its log is the embedded engine's; more than one node needs "
    "Apache Kafka as the engine, which this version does not have yet"
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
    raise BrokerError(Code.INVALID_REQUEST, _ONE_NODE)


def cluster_status(session: Conversation, call: Call, request: m.Nothing) -> None:
    node = m.Node(NODE_ID, session.address, "", ONLINE, True)
    session.reply(call, m.ClusterStatus(CLUSTER_ID, NODE_ID, EPOCH, [node]))


def cluster_metadata(session: Conversation, call: Call, request: m.ClusterMetadataOf) -> None:
    """Of one topic, or of all that the principal may use."""
    address, principal = session.address, session.principal
    one = session.topic(request.topic) if request.topic else None

    def make() -> m.ClusterMetadata:
        pages = session.port.topics(principal) if one is None else [[one]]
        rows = [_described(info, address) for page in pages for info in page]
        return m.ClusterMetadata(CLUSTER_ID, rows)

    if one is not None and one.partitions <= DESCRIBED_AT_ONCE:
        session.reply(call, make())
    else:
        session.reply_aside(call, make)


def _described(info: TopicInfo, address: str) -> m.ClusterTopic:
    partitions = [
        m.ClusterPartition(number, NODE_ID, address, EPOCH, ONLINE, [NODE_ID], [NODE_ID])
        for number in range(info.partitions)
    ]
    return m.ClusterTopic(info.name, partitions)
