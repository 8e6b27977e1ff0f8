"""The opcodes of FlyMQ as one table: number, name, request and reply in each dialect.

Decoding and encoding follow from the structs (messages.py), for a server and for a client. Which right an
opcode needs and what it does is in the session. 0x67 to 0x69 are ours; docs/flymq.md shows them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import ERROR, SDK, SPEC, FlyMQProtocolError, framed
from penstock.wire.flymq.layout import Message, Reader, read_message, write_message

M = TypeVar("M", bound=Message)

AUTH: Final = 0x70
AUTH_REPLY: Final = 0x71
FETCH: Final = 0x07
FETCH_BINARY: Final = 0x0B
CLUSTER_METADATA: Final = 0x53

# Of one list in a request, which the event loop decodes: some milliseconds. No user has as many roles, and
# no rule may name as many users.
MAX_REQUEST_ELEMENTS: Final = 4_096

# An SDK shows a text of any length in a terminal; a request may quote a name of 64 KiB.
MAX_ERROR_BYTES: Final = 1000


class Decoded(NamedTuple):
    """`sdk`: only an SDK sends such a request, so that its connection speaks their dialect from now on."""

    request: Message
    sdk: bool


@dataclass(frozen=True, slots=True)
class Opcode:
    """`read` decodes requests that have more than one form. `sdk_reply`: where the dialects differ."""

    number: int
    name: str
    request: type[Message]
    reply: type[Message]
    sdk_reply: type[Message] | None = None
    read: Callable[[bytes], Decoded] | None = None

    def reply_in(self, dialect: int) -> type[Message]:
        return self.sdk_reply if self.sdk_reply is not None and dialect == SDK else self.reply

    def decode_request(self, payload: bytes) -> Decoded:
        """Raises FlyMQProtocolError."""
        if self.read is not None:
            return self.read(payload)
        reader = Reader(payload, MAX_REQUEST_ELEMENTS)
        request = read_message(self.request, reader)
        sdk = reader.sdk and self.number != FETCH_BINARY  # which no SDK sends
        return Decoded(request, sdk or self.number == CLUSTER_METADATA)


# --- requests with two forms ----------------------------------------------------------------------


def _parsed(message: type[Message], payload: bytes) -> tuple[Message, bool] | None:
    """The message and whether it ends where the payload does; None when it does not parse."""
    reader = Reader(payload)
    try:
        return read_message(message, reader), not reader.left
    except FlyMQProtocolError:
        return None


def _read_produce_with_schema(payload: bytes) -> Decoded:
    """Topic, then schema and data in either order: the one that ends with the payload. If both do, it is
    that of the Python SDK."""
    for form, sdk in ((a.SdkProduceWithSchema, True), (a.ProduceWithSchema, False)):
        found = _parsed(form, payload)
        if found is not None and found[1]:
            return Decoded(found[0], sdk)
    raise Reader(payload).error("topic, schema and data do not end where the payload does")


def _read_replay(payload: bytes) -> Decoded:
    """An id is a text. Eight bytes that are no text of six bytes are an offset."""
    reader = Reader(payload)
    read_message(m.Topic, reader)
    by_offset = reader.left == 8 and reader.take(2, "id") != b"\x00\x06"
    form = a.ReplayByOffset if by_offset else a.ReplayById
    return Decoded(read_message(form, Reader(payload)), False)


def _read_cancel(payload: bytes) -> Decoded:
    """The id that PRODUCE_DELAYED answered, as a text, or as a number behind the topic."""
    found = _parsed(a.CancelDelayed, payload)
    if found is not None and not found[1]:
        longer = _parsed(a.CancelDelayedOf, payload)
        found = found if longer is None else longer
    if found is None:
        return Decoded(read_message(a.CancelDelayed, Reader(payload)), False)
    return Decoded(found[0], False)


# --- the table ------------------------------------------------------------------------------------

_ROWS: Final = (
    Opcode(0x01, "PRODUCE", m.Produce, m.RecordMetadata),
    Opcode(0x02, "CONSUME", m.Consume, m.Consumed),
    Opcode(0x03, "CREATE_TOPIC", m.CreateTopic, m.Ok),
    Opcode(0x04, "METADATA", m.Topic, m.TopicMetadata),
    Opcode(0x05, "SUBSCRIBE", m.Subscribe, m.Offset),
    Opcode(0x06, "COMMIT", m.Commit, m.Ok),
    Opcode(FETCH, "FETCH", m.Fetch, m.Fetched, m.SdkFetched),
    Opcode(0x08, "LIST_TOPICS", m.Nothing, m.Names),
    Opcode(0x09, "DELETE_TOPIC", m.Topic, m.Ok),
    Opcode(0x0A, "CONSUME_ZERO_COPY", m.Consume, m.Consumed),
    Opcode(FETCH_BINARY, "FETCH_BINARY", m.Fetch, m.SdkFetched),
    Opcode(0x10, "REGISTER_SCHEMA", a.RegisterSchema, a.SchemaRow),
    Opcode(0x11, "GET_SCHEMA", a.SchemaVersion, a.Schema),
    Opcode(0x12, "LIST_SCHEMAS", a.SchemaFilter, a.SchemaRows),
    Opcode(0x13, "VALIDATE_SCHEMA", a.ValidateSchema, a.Validity),
    Opcode(
        0x14,
        "PRODUCE_WITH_SCHEMA",
        a.ProduceWithSchema,
        m.RecordMetadata,
        read=_read_produce_with_schema,
    ),
    Opcode(0x15, "DELETE_SCHEMA", a.SchemaVersion, m.Ok),
    Opcode(0x20, "FETCH_DLQ", a.FetchDeadLetters, a.DeadLetters),
    Opcode(0x21, "REPLAY_DLQ", a.ReplayById, m.Ok, read=_read_replay),
    Opcode(0x22, "PURGE_DLQ", m.Topic, m.Ok),
    Opcode(0x30, "PRODUCE_DELAYED", a.ProduceDelayed, m.RecordMetadata),
    Opcode(0x31, "CANCEL_DELAYED", a.CancelDelayed, m.Ok, read=_read_cancel),
    Opcode(0x35, "PRODUCE_WITH_TTL", a.ProduceWithTtl, m.RecordMetadata),
    Opcode(0x40, "TXN_BEGIN", m.Nothing, a.TransactionDone),
    Opcode(0x41, "TXN_COMMIT", a.Transaction, a.TransactionDone),
    Opcode(0x42, "TXN_ROLLBACK", a.Transaction, a.TransactionDone),
    Opcode(0x43, "TXN_PRODUCE", a.TransactionProduce, m.RecordMetadata),
    Opcode(0x50, "CLUSTER_JOIN", m.ClusterJoin, m.Ok),
    Opcode(0x51, "CLUSTER_LEAVE", m.Nothing, m.Ok),
    Opcode(0x52, "CLUSTER_STATUS", m.Nothing, m.ClusterStatus),
    Opcode(CLUSTER_METADATA, "CLUSTER_METADATA", m.ClusterMetadataOf, m.ClusterMetadata),
    Opcode(0x60, "GET_OFFSET", m.GroupPartition, m.Offset),
    Opcode(0x61, "RESET_OFFSET", m.ResetOffset, m.Ok),
    Opcode(0x62, "LIST_GROUPS", m.Nothing, m.GroupRows),
    Opcode(0x63, "DESCRIBE_GROUP", m.Group, m.GroupRow),
    Opcode(0x64, "GET_LAG", m.GroupPartition, m.Lag),
    Opcode(0x65, "DELETE_GROUP", m.Group, m.Ok),
    Opcode(0x66, "SEEK_TO_TIMESTAMP", m.SeekToTimestamp, m.Offset),
    Opcode(0x67, "JOIN_GROUP", m.JoinGroup, m.Assignment),
    Opcode(0x68, "HEARTBEAT", m.Heartbeat, m.Assignment),
    Opcode(0x69, "LEAVE_GROUP", m.LeaveGroup, m.Ok),
    Opcode(AUTH, "AUTH", m.Auth, m.AuthReply, m.SdkAuthReply),
    Opcode(0x72, "WHOAMI", m.Nothing, m.WhoAmI),
    Opcode(0x73, "USER_CREATE", a.UserRequest, a.User),
    Opcode(0x74, "USER_DELETE", a.UserName, m.Ok),
    Opcode(0x75, "USER_UPDATE", a.UserRequest, m.Ok),
    Opcode(0x76, "USER_LIST", m.Nothing, a.Users),
    Opcode(0x77, "USER_GET", a.UserName, a.User),
    Opcode(0x78, "ACL_SET", a.SetRule, m.Ok),
    Opcode(0x79, "ACL_GET", m.Topic, a.Rule),
    Opcode(0x7A, "ACL_DELETE", m.Topic, m.Ok),
    Opcode(0x7B, "ACL_LIST", m.Nothing, a.Rules),
    Opcode(0x7C, "PASSWORD_CHANGE", a.UserRequest, m.Ok),
    Opcode(0x7D, "ROLE_LIST", m.Nothing, a.Roles),
    Opcode(0x80, "AUDIT_QUERY", a.AuditQuery, a.AuditEvents),
    Opcode(0x81, "AUDIT_EXPORT", a.AuditExport, a.AuditExported),
)
# By number. AUTH_RESPONSE and ERROR are no requests, and so unknown opcodes.
OPCODES: Final[dict[int, Opcode]] = {row.number: row for row in _ROWS}


# --- whole frames ---------------------------------------------------------------------------------


def encode_request(number: int, request: Message) -> bytes:
    return framed(number, write_message(request))


def encode_reply(number: int, reply: Message) -> bytes:
    """A reply has the number of its request, but AUTH has one of its own."""
    return framed(AUTH_REPLY if number == AUTH else number, write_message(reply))


def encode_error(dialect: int, code: int, text: str) -> bytes:
    """`code`: 1 to 127, for SDKs; the document has none."""
    raw = text.encode("utf-8", "replace")[:MAX_ERROR_BYTES]
    text = raw.decode("utf-8", "ignore")
    if dialect == SPEC:
        return framed(ERROR, write_message(m.Ok(False, text)))
    # A reader of the document takes code and length for three characters of the text, so each of these
    # bytes is one of ASCII. Where the low byte of the length would not be, blanks make the text longer.
    size = len(text.encode())
    if size & 0x80:
        text += " " * ((size | 0xFF) + 1 - size)
        size = (size | 0xFF) + 1
    return framed(ERROR, write_message(m.SdkError(False, size + 3, code, text)))


def decode_error(payload: bytes) -> tuple[int, str]:
    """Code and text of an ERROR in any of its forms: those of our two dialects, and of the existing server
    u32 and str, or the text alone. The code is 0 where there is none."""
    for form in (m.SdkError, m.CodedError, m.Ok):
        found = _parsed(form, payload)
        if found is None or not found[1]:
            continue
        error = found[0]
        if isinstance(error, m.SdkError) and error.outer == len(error.text.encode()) + 3:
            return error.code, error.text.rstrip()
        if isinstance(error, m.CodedError):
            return error.code, error.text
        if isinstance(error, m.Ok) and not error.success:
            return 0, error.message
    return 0, payload.decode("utf-8", "replace")


def read_reply(kind: type[M], payload: bytes) -> M:
    """The reply that an opcode has (`OPCODES[number].reply_in(dialect)`). Raises FlyMQProtocolError."""
    return read_message(kind, Reader(payload))
