"""The payloads of FlyMQ beside records and groups: schemas, dead letters, transactions, users, audit.

In the same language as messages.py.
"""

from typing import Annotated

from penstock.wire.flymq.layout import (
    I32,
    I64,
    U32,
    U64,
    Blob,
    FlagByte,
    LastFlag,
    LastText,
    Message,
    ShortText,
    Text,
    sized,
)

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


# --- users and rules ------------------------------------------------------------------------------


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

    start_s: I64 = 0
    end_s: I64 = 0
    types: list[Text] = []  # noqa: RUF012  # msgspec makes a new one for each
    user: Text = ""
    resource: Text = ""
    result: Text = ""
    search: Text = ""
    limit: I32 = 0
    offset: I32 = 0


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
