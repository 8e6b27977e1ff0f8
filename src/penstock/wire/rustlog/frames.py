"""RustLog: frames, which dialect a frame speaks, and the requests and replies both dialects share.

A frame is a u32 big-endian length and that many bytes. The payload is JSON (dialect J, the protocol
document; json.py) or a binary layout (dialect B, the existing programs; binary.py).
Knows nothing of topics or groups, and does not define what a request does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from mypy_extensions import i64, mypyc_attr

from penstock.wire.errors import PeerError
from penstock.wire.primitives import LENGTH_BYTES, U16_MAX, read_u32

# The document's cap on a frame's payload, in both directions.
MAX_FRAME_BYTES: Final = 10_485_760

JSON: Final = 0
BINARY: Final = 1
# No frame has shown the dialect of the connection yet. Answers are JSON until one does.
UNTOLD: Final = -1

# Error codes of dialect B that arise from bytes alone. Dialect J has no codes.
FRAME_ERROR: Final = 1
DECODE_ERROR: Final = 2

# The first byte of a payload. A tab is in two of these rows: it is the Metrics request of B as well.
JSON_OPENERS: Final = b'{"'
BINARY_TYPES: Final = b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\xff"
BLANKS: Final = b" \t\n\r"
_FLYMQ_MAGIC: Final = 0xAF


@mypyc_attr(native_class=False)
class RustLogProtocolError(PeerError):
    """`what` is the whole text of the Error reply, as `dialect` words it. `code` is for dialect B;
    J carries none."""

    def __init__(
        self, what: str, position: int, code: int | None = None, dialect: int = JSON
    ) -> None:
        super().__init__(what, position, code)
        self.args = (what, position, code, dialect)
        self.dialect = dialect


# ---- requests ------------------------------------------------------------------------------------


# Produce and Frame are made for every request. The __init__ that a dataclass makes by itself is not
# compiled, and a frozen one sets each field by name. Without that, and with a quicker look at the size of
# the reply, a request of one record took 3.6 instead of 5.2 us of CPU.
@final
@dataclass(init=False, slots=True)
class Produce:
    topic: str
    partition: int
    records: list[bytes]

    def __init__(self, topic: str, partition: int, records: list[bytes]) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records


@final
@dataclass(frozen=True, slots=True)
class Fetch:
    """`group_id` None or empty: no consumer group."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    group_id: str | None


@final
@dataclass(frozen=True, slots=True)
class OffsetCommit:
    topic: str
    partition: int
    group_id: str
    offset: int


@final
@dataclass(frozen=True, slots=True)
class OffsetFetch:
    topic: str
    partition: int
    group_id: str


@final
@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partition_count: int


@final
@dataclass(frozen=True, slots=True)
class ListTopics:
    """No fields."""


@final
@dataclass(frozen=True, slots=True)
class DescribeTopic:
    """Dialect B only."""

    topic: str


@final
@dataclass(frozen=True, slots=True)
class DescribePartition:
    """Dialect B only."""

    topic: str
    partition: int


@final
@dataclass(frozen=True, slots=True)
class Metrics:
    """No fields."""


@final
@dataclass(frozen=True, slots=True)
class Ping:
    """No fields."""


Request: TypeAlias = (
    Produce
    | Fetch
    | OffsetCommit
    | OffsetFetch
    | CreateTopic
    | ListTopics
    | DescribeTopic
    | DescribePartition
    | Metrics
    | Ping
)


# ---- replies -------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class ProduceReply:
    """One offset for each record, in order."""

    offsets: Sequence[int]


@final
@dataclass(frozen=True, slots=True)
class FetchReply:
    """`offsets` and `payloads` side by side. B sends no offsets: they are taken as dense."""

    offsets: Sequence[int]
    payloads: list[bytes]
    next_offset: int


@final
@dataclass(frozen=True, slots=True)
class OffsetCommitReply:
    success: bool


@final
@dataclass(frozen=True, slots=True)
class OffsetFetchReply:
    offset: int | None


@final
@dataclass(frozen=True, slots=True)
class CreateTopicReply:
    success: bool


@final
@dataclass(frozen=True, slots=True)
class ListTopicsReply:
    """(name, partition count), sorted by name."""

    topics: list[tuple[str, int]]


@final
@dataclass(frozen=True, slots=True)
class DescribeTopicReply:
    """`partitions`: (id, high watermark)."""

    topic: str
    partition_count: int
    partitions: list[tuple[int, int]]


@final
@dataclass(frozen=True, slots=True)
class DescribePartitionReply:
    topic: str
    partition: int
    high_watermark: int


@final
@dataclass(frozen=True, slots=True)
class MetricsReply:
    text: str


@final
@dataclass(frozen=True, slots=True)
class PongReply:
    """No fields."""


@final
@dataclass(frozen=True, slots=True)
class ErrorReply:
    """`code` is 0 in dialect J, which has none."""

    code: int
    message: str


Reply: TypeAlias = (
    ProduceReply
    | FetchReply
    | OffsetCommitReply
    | OffsetFetchReply
    | CreateTopicReply
    | ListTopicsReply
    | DescribeTopicReply
    | DescribePartitionReply
    | MetricsReply
    | PongReply
    | ErrorReply
)


# ---- frames --------------------------------------------------------------------------------------


@final
@dataclass(init=False, slots=True)
class Frame:
    """A complete payload: bytes `start` to `end` of the buffer that was split."""

    dialect: int
    start: int
    end: int

    def __init__(self, dialect: int, start: int, end: int) -> None:
        self.dialect = dialect
        self.start = start
        self.end = end


Split: TypeAlias = tuple[list[Frame], int, RustLogProtocolError | None]


def split_frames(
    buffer: bytes,
    start: i64,
    end: i64,
    dialect: i64 = UNTOLD,
    max_bytes: i64 = MAX_FRAME_BYTES,
) -> Split:
    """All complete frames: (frames, where the rest begins, error).

    `dialect` is the one this connection used last. An error means: answer the frames, answer the
    error in its dialect, close. A length is checked as soon as its four bytes are there; on a connection
    that has used no dialect yet, the first byte of the payload decides, if it came with them.
    """
    frames: list[Frame] = []
    position = start
    while end - position >= LENGTH_BYTES:
        length = read_u32(buffer, position)
        payload: i64 = position + LENGTH_BYTES
        if length == 0 or length > max_bytes:
            if dialect == UNTOLD:
                told = length > 0 and payload < end
                dialect = dialect_of(buffer, payload, end, dialect) if told else JSON
            return frames, position, _bad_length(length, position, dialect, max_bytes)
        if payload + length > end:
            break
        position = payload + length
        dialect = dialect_of(buffer, payload, position, dialect)
        frames.append(Frame(dialect, payload, position))
    return frames, position, None


def dialect_of(buffer: bytes, start: i64, end: i64, last: i64) -> i64:
    """The dialect of one payload, by its first byte; `last` if that byte is ambiguous.

    Blank space is JSON when the first thing behind it opens a JSON request. If not, a tab is the
    Metrics request of B, and other blanks are ambiguous.
    """
    first: int = buffer[start]
    if first in JSON_OPENERS:
        return JSON
    if first in BLANKS:
        position = start
        while position < end and buffer[position] in BLANKS:
            position += 1
        if position < end and buffer[position] in JSON_OPENERS:
            return JSON
    if first in BINARY_TYPES:
        return BINARY
    return JSON if last == UNTOLD else last


def _bad_length(length: i64, position: i64, dialect: i64, max_bytes: i64) -> RustLogProtocolError:
    if length == 0:
        what = (
            "Frame error: invalid protocol: zero-length frame"
            if dialect == BINARY
            else "failed to parse request: zero-length frame"
        )
    elif dialect == BINARY:
        what = f"Frame error: frame too large: {length} bytes (max: {max_bytes})"
    else:
        what = f"max frame size exceeded: {length} bytes (max: {max_bytes})"
    return RustLogProtocolError(what, position, FRAME_ERROR, dialect)


def begins(head: bytes) -> bool | None:
    """Whether a connection that begins with these bytes speaks RustLog. None while there are too few.

    u32 length, then { " or blank space                dialect J
    u32 length, then 01 to 09 or ff                    dialect B
    00 00 00 00                                        there is an answer for it
    u32 length above the cap, not text (20 to 7e)      there is an answer for it
    text (GET, SSH-), then { " 01 to 08 or ff          a length above the cap too
    af                                                 no: the first byte of FlyMQ
    """
    if head and head[0] == _FLYMQ_MAGIC:
        return False
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head[:LENGTH_BYTES], "big")
    too_long = length > MAX_FRAME_BYTES
    text = 0x20 <= head[0] <= 0x7E
    if length == 0 or (too_long and not text):
        return True
    if len(head) == LENGTH_BYTES:
        return None
    first: int = head[LENGTH_BYTES]
    # After four letters of a text protocol a blank is ambiguous: HTTP has "POST " and "HEAD ".
    if first in BLANKS:
        return not too_long
    return first in JSON_OPENERS or first in BINARY_TYPES


def framed(payload: bytes) -> bytes:
    """The payload with its length prefix. A payload above the cap is a ValueError."""
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(payload)} bytes, the most is {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def bounded_message(message: str) -> str:
    """An error text cut to what dialect B's u16 length can say; it may quote a very long topic."""
    raw = message.encode("utf-8", "replace")
    return raw[:U16_MAX].decode("utf-8", "ignore")
