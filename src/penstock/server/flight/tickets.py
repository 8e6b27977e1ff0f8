"""What Flight peers send as JSON: tickets, commands of descriptors, bodies of actions.

Strict: an unknown field is an error that names it. README and docs show them; a ticket that
GetFlightInfo gives out is one of these too, so that anybody can write one by hand.
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec
import pyarrow as pa

from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.arrow import ALL_COLUMNS, SCHEMA, SCHEMA_WITH_HEADERS

MAX_OFFSET: Final = (1 << 63) - 1
# Requests are names and numbers.
MAX_REQUEST_BYTES: Final = 1024 * 1024

Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
# Without NUL, where SQLite would see the end of a name.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern="^[^\\x00]*$")]
TimeoutS = Annotated[int, msgspec.Meta(ge=1, le=7 * 24 * 3600)]
KeepS = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 24 * 3600)]
Group = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to read of a topic. `to_time_us` is the first time that is no longer wanted."""

    topic: str
    start: Natural | None = None
    end: Natural | None = None
    columns: tuple[str, ...] | None = None
    headers: bool = False
    from_time_us: Natural | None = None
    to_time_us: Natural | None = None


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A query of one partition. Without `start` from the first record kept, without `end` up to the
    last one that is durable when the read begins. `created_us`: not of another topic of this name.
    `whole`: refused unless every offset from `start` to `end` is there."""

    topic: str
    partition: Natural = 0
    start: Natural | None = None
    end: Natural | None = None
    columns: tuple[str, ...] | None = None
    headers: bool = False
    from_time_us: Natural | None = None
    to_time_us: Natural | None = None
    created_us: Natural | None = None
    whole: bool = False


class Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Makes a write idempotent: batch n of the stream has `sequence` + n."""

    id: Natural
    epoch: U32
    sequence: U32


class Put(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A write. Without `topic` the rows must have a column of that name."""

    topic: str | None = None
    partition: Natural | None = None
    producer: Producer | None = None
    create: bool = False
    # Staged in this transaction instead of appended; `task` tells the parts of it apart.
    transaction: Name | None = None
    task: Natural = 0
    # Makes staging idempotent: batch n of the stream has `sequence` + n within its task.
    sequence: U32 | None = None


class OffsetsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partitions: tuple[Natural, ...] | None = None


class OffsetsByTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    time_us: Natural
    partitions: tuple[Natural, ...] | None = None


class SchemaBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Version 0 is the latest."""

    name: Name
    version: U32 = 0


class GroupOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: Natural
    offset: Natural


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`keep_s`: the group only shows progress, and is forgotten so long after its last commit."""

    group: Group
    offsets: tuple[GroupOffset, ...]
    keep_s: KeepS | None = None


class CommittedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: Group
    topic: str


class FenceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a series of transactions. The newest run that was seen counts; earlier ones are refused."""

    series: Name
    run: Name


class BeginBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without another call the transaction ends after `timeout_s`."""

    name: Name
    timeout_s: TimeoutS = 3600
    fence: FenceBody | None = None


class CommitTransactionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commits what these tasks staged, and drops what others staged. With `batches`, the number of batches
    that each task has staged, nothing is committed unless all of them are there. `rows` is told to whoever
    begins the name again."""

    name: Name
    tasks: tuple[Natural, ...]
    batches: tuple[U32, ...] | None = None
    rows: Natural | None = None
    fence: FenceBody | None = None


class AbortBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without fields."""


T = TypeVar("T")


def invalid(detail: str) -> BrokerError:
    return BrokerError(Code.INVALID_REQUEST, detail)


def parse(data: bytes, kind: type[T], what: str) -> T:
    """Raises INVALID_REQUEST with what is wrong and where."""
    if len(data) > MAX_REQUEST_BYTES:
        raise invalid(f"{what} has {len(data)} bytes, {MAX_REQUEST_BYTES} at most")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(f"{what}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"{what} is no JSON: {error}") from None


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def ticket_of(query: Query, partition: int, start: int, end: int) -> Ticket:
    return Ticket(
        query.topic,
        partition,
        start,
        end,
        query.columns,
        query.headers,
        query.from_time_us,
        query.to_time_us,
    )


def schema_of(columns: tuple[str, ...] | None, headers: bool) -> pa.Schema:
    """The schema that a read gives. Raises INVALID_REQUEST."""
    if columns is None:
        return SCHEMA_WITH_HEADERS if headers else SCHEMA
    known = ALL_COLUMNS.names
    for name in columns:
        if name not in known:
            raise invalid(f"columns: no column {name!r}; there are {', '.join(known)}")
    if not columns or len(set(columns)) < len(columns):
        raise invalid("columns: name at least one, and each only once")
    return pa.schema([ALL_COLUMNS.field(name) for name in columns])
