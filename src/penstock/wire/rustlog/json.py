"""RustLog dialect J: reads requests (server) and replies (client).

Schemas as in the protocol document: one outer key names the kind, its value holds the fields in any
order. Unknown fields are ignored, a known field that is repeated or missing is an error; only `group_id`
of a Fetch may be missing or null. Extensions of ours: CreateTopic; ListTopics, Metrics and Ping,
which have no fields and are bare strings (`"Ping"`; `{"Ping":null}` is the same).
Writing is in json_encode.py.
"""

from typing import Final, final

from mypy_extensions import i64

from penstock.wire.primitives import U32_MAX, U64_MAX
from penstock.wire.rustlog.frames import (
    CreateTopic,
    CreateTopicReply,
    ErrorReply,
    Fetch,
    FetchReply,
    ListTopics,
    ListTopicsReply,
    Metrics,
    MetricsReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    Ping,
    PongReply,
    Produce,
    ProduceReply,
    Reply,
    Request,
)
from penstock.wire.rustlog.json_reader import JsonReader

# An error text quotes at most this much of a name that the peer sent.
MAX_QUOTED_CHARACTERS: Final = 64
_QUOTE: Final = 0x22

# The fields of requests as bits. Numbers are u32 (partitions) or u64, group_id a string; in a Fetch
# it is optional.
_TOPIC: Final = 1
_PARTITION: Final = 2
_RECORDS: Final = 4
_OFFSET: Final = 8
_MAX_BYTES: Final = 16
_GROUP: Final = 32
_COUNT: Final = 64
_OPTIONAL_GROUP: Final = 128

_FIELDS: Final = {
    "topic": _TOPIC,
    "partition": _PARTITION,
    "records": _RECORDS,
    "offset": _OFFSET,
    "max_bytes": _MAX_BYTES,
    "group_id": _GROUP | _OPTIONAL_GROUP,
    "partition_count": _COUNT,
}

_SCHEMAS: Final = {
    "Produce": _TOPIC | _PARTITION | _RECORDS,
    "Fetch": _TOPIC | _PARTITION | _OFFSET | _MAX_BYTES | _OPTIONAL_GROUP,
    "OffsetCommit": _TOPIC | _PARTITION | _GROUP | _OFFSET,
    "OffsetFetch": _TOPIC | _PARTITION | _GROUP,
    "CreateTopic": _TOPIC | _COUNT,
}


def decode_request(buffer: bytes, start: i64, end: i64) -> Request:
    """The one request in bytes `start` to `end`."""
    reader = JsonReader(buffer, start, end, "failed to parse request")
    request: Request
    if reader.peek() == _QUOTE:
        request = _bare_request(reader, reader.read_string())
    else:
        reader.open_object()
        if not reader.more_keys(True):
            raise reader.error("expected the name of a request")
        request = _keyed_request(reader, reader.read_key())
        if reader.more_keys(False):
            raise reader.error("expected exactly one key")
    reader.finish()
    return request


def _bare_request(reader: JsonReader, kind: str) -> Request:
    if kind == "Ping":
        return Ping()
    if kind == "ListTopics":
        return ListTopics()
    if kind == "Metrics":
        return Metrics()
    if kind in _SCHEMAS:
        raise reader.error(f"{kind} needs fields")
    raise _unknown(reader, kind)


def _keyed_request(reader: JsonReader, kind: str) -> Request:
    schema: i64 = _SCHEMAS.get(kind, 0)
    if schema == 0:
        request = _bare_request(reader, kind)
        if not reader.take_null():
            raise reader.error(f"{kind} takes null")
        return request
    fields = _Fields()
    fields.read(reader, schema)
    if kind == "Produce":
        return Produce(fields.topic, fields.partition, fields.records)
    if kind == "Fetch":
        return Fetch(
            fields.topic, fields.partition, fields.offset, fields.max_bytes, fields.group_id
        )
    if kind == "OffsetCommit":
        return OffsetCommit(fields.topic, fields.partition, fields.group_id or "", fields.offset)
    if kind == "OffsetFetch":
        return OffsetFetch(fields.topic, fields.partition, fields.group_id or "")
    return CreateTopic(fields.topic, fields.partition_count)


def _unknown(reader: JsonReader, kind: str) -> Exception:
    return reader.error(f"unknown request `{kind[:MAX_QUOTED_CHARACTERS]}`")


@final
class _Fields:
    """The fields of every request; a schema says which of them count."""

    def __init__(self) -> None:
        self.topic = ""
        self.partition = 0
        self.records: list[bytes] = []
        self.offset = 0
        self.max_bytes = 0
        self.group_id: str | None = None
        self.partition_count = 0

    def read(self, reader: JsonReader, schema: i64) -> None:
        seen: i64 = 0
        reader.open_object()
        first = True
        while reader.more_keys(first):
            first = False
            name = reader.read_key()
            field: i64 = _FIELDS.get(name, 0)
            field &= schema
            if field == 0:
                reader.skip_value()
                continue
            if seen & field:
                raise reader.error(f"duplicate field `{name}`")
            seen |= field
            self._read_field(reader, field)
        missing: i64 = schema & ~seen & ~_OPTIONAL_GROUP
        if missing:
            raise reader.error(f"missing field `{_name_of(missing)}`")

    def _read_field(self, reader: JsonReader, field: i64) -> None:
        if field == _TOPIC:
            self.topic = reader.read_string()
        elif field == _PARTITION:
            self.partition = reader.read_unsigned(U32_MAX)
        elif field == _RECORDS:
            self.records = reader.read_byte_lists()
        elif field == _OFFSET:
            self.offset = reader.read_unsigned(U64_MAX)
        elif field == _MAX_BYTES:
            self.max_bytes = reader.read_unsigned(U64_MAX)
        elif field == _COUNT:
            self.partition_count = reader.read_unsigned(U32_MAX)
        elif field == _GROUP or not reader.take_null():
            self.group_id = reader.read_string()


def _name_of(missing: i64) -> str:
    """The first of the missing fields."""
    for name, field in _FIELDS.items():
        if missing & field:
            return name
    raise AssertionError(f"no field has a bit of {missing}")


# ---- replies -------------------------------------------------------------------------------------


def decode_reply(buffer: bytes, start: i64, end: i64) -> Reply:
    """The one reply in bytes `start` to `end`."""
    reader = JsonReader(buffer, start, end, "failed to parse reply")
    if reader.peek() == _QUOTE:
        if reader.read_string() != "Pong":
            raise reader.error("expected `Pong`")
        reader.finish()
        return PongReply()
    reader.open_object()
    if not reader.more_keys(True):
        raise reader.error("expected the name of a reply")
    reply = _keyed_reply(reader, reader.read_key())
    if reader.more_keys(False):
        raise reader.error("expected exactly one key")
    reader.finish()
    return reply


def _keyed_reply(reader: JsonReader, kind: str) -> Reply:
    if kind == "Produce":
        _seek(reader, "offsets")
        produced = ProduceReply(_read_offsets(reader))
        _rest(reader, "offsets")
        return produced
    if kind == "Fetch":
        return _read_fetch_reply(reader)
    if kind == "OffsetFetch":
        _seek(reader, "offset")
        committed = OffsetFetchReply(None if reader.take_null() else reader.read_unsigned(U64_MAX))
        _rest(reader, "offset")
        return committed
    if kind in ("OffsetCommit", "CreateTopic"):
        _seek(reader, "success")
        success = reader.read_bool()
        _rest(reader, "success")
        return OffsetCommitReply(success) if kind == "OffsetCommit" else CreateTopicReply(success)
    if kind in ("Error", "Metrics"):
        name = "message" if kind == "Error" else "text"
        _seek(reader, name)
        text = reader.read_string()
        _rest(reader, name)
        return ErrorReply(0, text) if kind == "Error" else MetricsReply(text)
    if kind == "ListTopics":
        _seek(reader, "topics")
        topics = ListTopicsReply(_read_topics(reader))
        _rest(reader, "topics")
        return topics
    raise reader.error(f"unknown reply `{kind[:MAX_QUOTED_CHARACTERS]}`")


def _seek(reader: JsonReader, name: str) -> None:
    """Move to the value of the only known field, past unknown fields."""
    reader.open_object()
    first = True
    while reader.more_keys(first):
        if reader.read_key() == name:
            return
        reader.skip_value()
        first = False
    raise reader.error(f"missing field `{name}`")


def _rest(reader: JsonReader, name: str) -> None:
    """Move past the fields after the known one."""
    while reader.more_keys(False):
        if reader.read_key() == name:
            raise reader.error(f"duplicate field `{name}`")
        reader.skip_value()


def _read_offsets(reader: JsonReader) -> list[int]:
    offsets: list[int] = []
    reader.open_list()
    first = True
    while reader.more_items(first):
        offsets.append(reader.read_unsigned(U64_MAX))
        first = False
    return offsets


def _read_topics(reader: JsonReader) -> list[tuple[str, int]]:
    topics: list[tuple[str, int]] = []
    fields = _Fields()
    reader.open_list()
    first = True
    while reader.more_items(first):
        fields.read(reader, _TOPIC | _COUNT)
        topics.append((fields.topic, fields.partition_count))
        first = False
    return topics


def _read_fetch_reply(reader: JsonReader) -> FetchReply:
    offsets: list[int] = []
    payloads: list[bytes] = []
    next_offset = 0
    seen_records = False
    seen_next = False
    reader.open_object()
    first = True
    while reader.more_keys(first):
        first = False
        name = reader.read_key()
        if name == "records":
            if seen_records:
                raise reader.error("duplicate field `records`")
            seen_records = True
            _read_records(reader, offsets, payloads)
        elif name == "next_offset":
            if seen_next:
                raise reader.error("duplicate field `next_offset`")
            seen_next = True
            next_offset = reader.read_unsigned(U64_MAX)
        else:
            reader.skip_value()
    if not seen_records or not seen_next:
        raise reader.error(f"missing field `{'next_offset' if seen_records else 'records'}`")
    return FetchReply(offsets, payloads, next_offset)


def _read_records(reader: JsonReader, offsets: list[int], payloads: list[bytes]) -> None:
    reader.open_list()
    first = True
    while reader.more_items(first):
        first = False
        offset = -1
        payload: bytes | None = None
        reader.open_object()
        first_key = True
        while reader.more_keys(first_key):
            first_key = False
            name = reader.read_key()
            if name == "offset":
                if offset >= 0:
                    raise reader.error("duplicate field `offset`")
                offset = reader.read_unsigned(U64_MAX)
            elif name == "payload":
                if payload is not None:
                    raise reader.error("duplicate field `payload`")
                payload = reader.read_byte_list()
            else:
                reader.skip_value()
        if offset < 0 or payload is None:
            raise reader.error(f"missing field `{'offset' if offset < 0 else 'payload'}`")
        offsets.append(offset)
        payloads.append(payload)
