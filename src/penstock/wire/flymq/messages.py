"""The payloads of FlyMQ: requests and replies of every opcode, as structs that are their own layout.

layout.py says how a field is read and written. Which opcode has which of them is in opcodes.py. Requests and
replies that have a form of their own beside these are there too.
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
    LastFlag,
    LastOffset,
    LastPartition,
    LastText,
    Message,
    Mode,
    ShortText,
    Text,
    headed,
    sized,
)


class Nothing(Message, frozen=True):
    """No fields."""


class Ok(Message, frozen=True):
    """A success, or a failure that is no ERROR, with a text. The document's ERROR has this layout too."""

    success: FlagByte = True
    message: Text = "OK"


class SdkError(Message, frozen=True):
    """ERROR for SDKs, which read u32 and str; a reader of the document sees `false` and a text that has three
    bytes in front. `outer`: the length of `text` and those three."""

    success: FlagByte
    outer: U16
    code: U8
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


# --- schemas --------------------------------------------------------------------------------------


class RegisterSchema(Message, frozen=True):
    name: Text
    type: ShortText
    definition: Blob


class SchemaVersion(Message, frozen=True):
    """`version` 0: the latest for GET_SCHEMA, all for DELETE_SCHEMA."""

    name: Text
    version: U32


class SchemaRow(Message, frozen=True):
    name: Text
    type: ShortText
    version: U32


class SchemaRows(Message, frozen=True):
    schemas: list[SchemaRow]


class Schema(Message, frozen=True):
    """A list of one row, which is what the SDKs read, and behind it what they ignore."""

    schemas: list[SchemaRow]
    definition: Blob
    compatibility: ShortText
    created_ms: I64


class SchemaFilter(Message, frozen=True):
    """No name: all schemas."""

    name: LastText = ""


class ValidateSchema(Message, frozen=True):
    name: Text
    message: Blob


class Validity(Message, frozen=True):
    valid: FlagByte
    errors: list[Text]


class ProduceWithSchema(Message, frozen=True):
    """As the existing server has it. The Python and Java SDKs send the data before the schema."""

    topic: Text
    schema: Text
    data: Blob


class SdkProduceWithSchema(Message, frozen=True):
    topic: Text
    data: Blob
    schema: Text


# --- dead letters, delayed and expiring messages, transactions ------------------------------------


class FetchDeadLetters(Message, frozen=True):
    topic: Text
    max_messages: I32


class DeadLetter(Message, frozen=True):
    id: Text
    data: Blob
    error: Text
    retries: I32


class DeadLetters(Message, frozen=True):
    messages: list[DeadLetter]


class ReplayById(Message, frozen=True):
    topic: Text
    id: Text


class ReplayByOffset(Message, frozen=True):
    topic: Text
    offset: U64


class ProduceDelayed(Message, frozen=True):
    topic: Text
    data: Blob
    delay_ms: I64


class CancelDelayed(Message, frozen=True):
    id: Text


class CancelDelayedOf(Message, frozen=True):
    topic: Text
    id: U64


class ProduceWithTtl(Message, frozen=True):
    topic: Text
    data: Blob
    ttl_ms: I64


class Transaction(Message, frozen=True):
    id: Text


class TransactionDone(Message, frozen=True):
    id: Text
    success: FlagByte


class TransactionProduce(Message, frozen=True):
    id: Text
    topic: Text
    data: Blob


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


# --- access ---------------------------------------------------------------------------------------


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


class WhoAmI(Message, frozen=True):
    logged_in: FlagByte
    user: Text
    roles: list[Text]
    permissions: list[Text]


class UserRequest(Message, frozen=True):
    """USER_CREATE, USER_UPDATE and PASSWORD_CHANGE, each of which uses some of it."""

    user: Text
    password: Text
    old_password: Text
    roles: list[Text]
    enabled: LastFlag = False


class UserName(Message, frozen=True):
    user: Text


class User(Message, frozen=True):
    """Times are Unix seconds."""

    name: Text
    roles: list[Text]
    permissions: list[Text]
    enabled: FlagByte
    created_s: I64
    updated_s: I64


class Users(Message, frozen=True):
    users: list[User]


class SetRule(Message, frozen=True):
    topic: Text
    public: FlagByte
    users: list[Text]
    roles: list[Text]


class Rule(Message, frozen=True):
    """`default_public` is filled only where there is no rule."""

    topic: Text
    exists: FlagByte
    public: FlagByte
    default_public: FlagByte
    users: list[Text]
    roles: list[Text]


class RuleRow(Message, frozen=True):
    topic: Text
    exists: FlagByte
    public: FlagByte
    users: list[Text]
    roles: list[Text]


class Rules(Message, frozen=True):
    rules: list[RuleRow]
    default_public: FlagByte


class Role(Message, frozen=True):
    name: Text
    permissions: list[Text]
    description: Text


class Roles(Message, frozen=True):
    roles: list[Role]


# --- audit ----------------------------------------------------------------------------------------


class AuditQuery(Message, frozen=True):
    """Times are Unix seconds, 0 is open."""

    start_s: I64
    end_s: I64
    types: list[Text]
    user: Text
    resource: Text
    result: Text
    search: Text
    limit: I32
    offset: I32


class AuditDetail(Message, frozen=True):
    key: Text
    value: Text


class AuditEvent(Message, frozen=True):
    id: Text
    time_ms: I64
    type: Text
    user: Text
    client_address: Text
    resource: Text
    action: Text
    result: Text
    node_id: Text
    details: list[AuditDetail]


class AuditEvents(Message, frozen=True):
    events: list[Annotated[AuditEvent, sized(AuditEvent)]]
    total: I32
    has_more: FlagByte


class AuditExport(Message, frozen=True):
    query: Annotated[AuditQuery, sized(AuditQuery)]
    format: Text


class AuditExported(Message, frozen=True):
    format: Text
    data: Blob
