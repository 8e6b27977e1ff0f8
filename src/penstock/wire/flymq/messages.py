"""The payloads of FlyMQ for records, topics, groups and logins, as structs that are their own layout.

layout.py says how a field is read and written. The other payloads are in
administration.py. Which opcode has which of them is in opcodes.py.
"""

from typing import Annotated

from penstock.wire.flymq.layout import (
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Blob,
    Filter,
    FlagByte,
    LastOffset,
    LastPartition,
    LastText,
    Message,
    Mode,
    ShortText,
    Text,
    headed,
)


class Nothing(Message, frozen=True):
    """No fields."""


class Ok(Message, frozen=True):
    """A success, or a failure that is no ERROR, with a text. The document's ERROR has this layout too."""

    success: FlagByte = True
    message: Text = "OK"


class Done(Message, frozen=True):
    """The same as read by a client: some servers send the flag alone."""

    success: FlagByte
    message: LastText = ""


class SdkError(Message, frozen=True):
    """ERROR for SDKs, which read u32 and str; a reader of the document sees `false` and a text that has
    three bytes in front. `outer`: the length of `text` and those three."""

    success: FlagByte
    outer: U16
    code: U8
    text: Text


class CodedError(Message, frozen=True):
    """ERROR as the existing server sends some."""

    code: U32
    text: Text


# --- core -----------------------------------------------------------------------------------------


class Topic(Message, frozen=True):
    topic: Text


class Produce(Message, frozen=True):
    """An empty key is none. Partition -1, or none at all: the server chooses."""

    topic: Text
    key: Blob
    value: Blob
    partition: LastPartition = -1


class RecordMetadata(Message, frozen=True):
    """`key_size` is -1 where there is no key."""

    topic: Text
    partition: I32
    offset: U64
    timestamp_ms: I64
    key_size: I32
    value_size: I32


class Consume(Message, frozen=True):
    topic: Text
    partition: I32
    offset: U64


class Consumed(Message, frozen=True):
    key: Blob
    value: Blob


class CreateTopic(Message, frozen=True):
    topic: Text
    partitions: I32


class PartitionEnds(Message, frozen=True):
    """`newest`: the offset after the last record."""

    partition: I32
    leader: I32
    oldest: U64
    newest: U64


class TopicMetadata(Message, frozen=True):
    topic: Text
    partitions: list[PartitionEnds]


class Subscribe(Message, frozen=True):
    topic: Text
    group: Text
    partition: I32
    mode: Mode


class Offset(Message, frozen=True):
    offset: U64


class Commit(Message, frozen=True):
    topic: Text
    group: Text
    partition: I32
    offset: U64


class Fetch(Message, frozen=True):
    topic: Text
    partition: I32
    offset: U64
    max_messages: I32
    filter: Filter = None


class FetchedMessage(Message, frozen=True):
    """As the SDKs have it; the document has the offset last."""

    offset: U64
    key: Blob
    value: Blob


class SpecFetchedMessage(Message, frozen=True):
    key: Blob
    value: Blob
    offset: U64


class Fetched(Message, frozen=True):
    """As the document has it. The server encodes replies with fetch.py."""

    messages: list[SpecFetchedMessage]
    next_offset: U64


class FetchedAt(Message, frozen=True):
    """What stands between the count of messages and the messages."""

    next_offset: U64


class SdkFetched(Message, frozen=True):
    """As the SDKs and FETCH_BINARY have it: next_offset is between the count and the messages."""

    fetched: Annotated[tuple[FetchedAt, list[FetchedMessage]], headed(FetchedAt, FetchedMessage)]


class Names(Message, frozen=True):
    names: list[Text]


# --- cluster --------------------------------------------------------------------------------------


class ClusterJoin(Message, frozen=True):
    peer_address: Text


class Node(Message, frozen=True):
    id: Text
    client_address: Text
    cluster_address: Text
    status: Text
    leader: FlagByte


class ClusterStatus(Message, frozen=True):
    cluster_id: Text
    leader_id: Text
    term: U64
    nodes: list[Node]


class ClusterMetadataOf(Message, frozen=True):
    """No topic: all of them."""

    topic: LastText = ""


class ClusterPartition(Message, frozen=True):
    partition: I32
    leader_id: Text
    leader_address: Text
    epoch: U64
    state: Text
    replicas: list[Text]
    in_sync: list[Text]


class ClusterTopic(Message, frozen=True):
    topic: Text
    partitions: list[ClusterPartition]


class ClusterMetadata(Message, frozen=True):
    cluster_id: Text
    topics: list[ClusterTopic]


# --- groups ---------------------------------------------------------------------------------------


class GroupPartition(Message, frozen=True):
    topic: Text
    group: Text
    partition: I32


class ResetOffset(Message, frozen=True):
    """`offset` belongs to the mode "offset"; some clients always send it."""

    topic: Text
    group: Text
    partition: I32
    mode: Mode
    offset: LastOffset = None


class CommittedOffset(Message, frozen=True):
    partition: I32
    offset: U64


class GroupRow(Message, frozen=True):
    topic: Text
    group: Text
    members: U32
    offsets: list[CommittedOffset]


class GroupRows(Message, frozen=True):
    groups: list[GroupRow]


class Group(Message, frozen=True):
    topic: Text
    group: Text


class Lag(Message, frozen=True):
    current: U64
    committed: U64
    latest: U64
    lag: U64


class SeekToTimestamp(Message, frozen=True):
    topic: Text
    group: Text
    partition: I32
    timestamp_ms: I64


class JoinGroup(Message, frozen=True):
    """No member: a new one."""

    topic: Text
    group: Text
    member: Text
    timeout_ms: U32


class Assignment(Message, frozen=True):
    member: Text
    generation: U32
    partitions: list[I32]


class Heartbeat(Message, frozen=True):
    topic: Text
    group: Text
    member: Text
    generation: U32


class LeaveGroup(Message, frozen=True):
    topic: Text
    group: Text
    member: Text


# --- login ---------------------------------------------------------------------------------------


class Auth(Message, frozen=True):
    user: Text
    password: Text


class AuthReply(Message, frozen=True):
    """As the document has it; a refusal has this layout for SDKs too."""

    success: FlagByte
    error: Text
    user: Text
    roles: list[Text]


class SdkAuthReply(Message, frozen=True):
    success: FlagByte
    user: Text
    roles: list[ShortText]
    error: Text


class SdkOpenAuthReply(Message, frozen=True):
    """A success without roles, which SDKs and readers of the document parse: `behind` is empty too, and for
    the latter it is the end of the roles."""

    success: FlagByte
    user: Text
    roles: list[ShortText]
    error: Text
    behind: Text


class WhoAmI(Message, frozen=True):
    logged_in: FlagByte
    user: Text
    roles: list[Text]
    permissions: list[Text]
