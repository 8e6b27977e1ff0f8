"""Turns what was read into Arrow record batches. Copies no value, key or header bytes (but header
names that are no UTF-8).

The columns carry the names of Spark's Kafka source. Does not read the log and knows no transport.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.batch.format import BatchError
from penstock.log.batch.origin import door_of
from penstock.log.batch.view import BatchView

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", pa.list_(HEADER_TYPE)))
# Everything that can be asked for by name. `protocol`: by which door a record came in, where that is known.
ALL_COLUMNS = SCHEMA_WITH_HEADERS.append(pa.field("protocol", pa.string()))

# As in Kafka: 1 is the time at which the broker appended the record.
APPEND_TIME = 1
_STRING = pa.string()
_INT = pa.int32()
_LONG = pa.int64()
_ZERO = pa.scalar(0, _INT)


# Constant columns are kept and sliced, for batches up to this many rows: a column costs more than all
# else of a small batch. 32 of them with the longest topic name are 64 MiB, with usual names 4 MiB.
KEPT_ROWS = 8192
KEPT_COLUMNS = 32
# As many as a joined batch has; making them anew would take milliseconds each time.
KEPT_ROW_NUMBERS = 65_536


@lru_cache(maxsize=1)
def _kept_row_numbers() -> pa.Array:
    return pa.array(range(KEPT_ROW_NUMBERS), pa.int64())


@lru_cache(maxsize=KEPT_COLUMNS)
def _kept(constant: str | int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(constant, kind), KEPT_ROWS)


def _repeated(constant: str | int, kind: pa.DataType, count: int) -> pa.Array:
    if count <= KEPT_ROWS:
        return _kept(constant, kind).slice(0, count)
    return pa.repeat(pa.scalar(constant, kind), count)


def _row_numbers(count: int) -> pa.Array:
    if count <= KEPT_ROW_NUMBERS:
        return _kept_row_numbers().slice(0, count)
    return pa.array(range(count), pa.int64())


def join_views(
    views: Sequence[BatchView], topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """One record batch for the rows of several views of a partition, with the columns of `schema`.

    One view is not copied; several are put together. Raises BatchError for columns with wrong offsets.
    """
    count = sum(map(len, views))
    constants: dict[str, tuple[str | int, pa.DataType]] = {
        "topic": (topic, _STRING),
        "partition": (partition, _INT),
        "timestampType": (APPEND_TIME, _INT),
    }
    buffers = [pa.py_buffer(view.buffer) for view in views]
    columns = []
    for name in schema.names:
        if name in constants:
            columns.append(_repeated(*constants[name], count))
            continue
        make = _MAKERS[name]
        parts = [make(view, b, len(view)) for view, b in zip(views, buffers, strict=True)]
        columns.append(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _binary(
    view: BatchView,
    buffer: pa.Buffer,
    offsets_at: int,
    bytes_at: int,
    first_row: int,
    count: int,
    validity: pa.Buffer | None = None,
) -> pa.Array:
    size = view.body_end - bytes_at
    array = pa.Array.from_buffers(
        pa.binary(),
        count,
        [validity, buffer.slice(offsets_at), buffer.slice(bytes_at, size)],
        offset=first_row,
    )
    try:
        # Arrow does not check offsets: wrong ones would read beyond the buffer. Takes a nanosecond each.
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BatchError(str(error)) from None
    return array


def _keys(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    if not view.keys_at:
        return pa.nulls(count, pa.binary())
    validity = buffer.slice(view.key_validity_at)
    first = view.first_row
    return _binary(view, buffer, view.key_offsets_at, view.keys_at, first, count, validity)


def _values(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    validity = buffer.slice(view.value_validity_at) if view.value_validity_at else None
    first = view.first_row
    return _binary(view, buffer, view.value_offsets_at, view.values_at, first, count, validity)


def _numbers(view: BatchView, buffer: pa.Buffer, at: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(view), [None, buffer.slice(at)], offset=view.first_row
    )


def _offsets(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    if view.offsets_at:
        return _numbers(view, buffer, view.offsets_at)
    # An Arrow scalar: for a Python number pyarrow looks for numpy on the disk, each time anew.
    return pc.add(_row_numbers(count), pa.scalar(view.first_offset(), _LONG))


def _times(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    kind = SCHEMA.field("timestamp").type
    if view.times_at:
        return _numbers(view, buffer, view.times_at).view(kind)
    same = view.header.first_time_us.to_bytes(8, "little", signed=True) * count
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(same)])


def _headers(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    kind = pa.list_(HEADER_TYPE)
    if not view.header_offsets_at:
        return pa.nulls(count, kind)
    total = view.header_count()
    names = _text(_binary(view, buffer, view.name_offsets_at, view.names_at, 0, total))
    contents = _binary(view, buffer, view.content_offsets_at, view.contents_at, 0, total)
    pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
    offsets = buffer.slice(view.header_offsets_at + 4 * view.first_row)
    lists = pa.Array.from_buffers(kind, count, [None, offsets], children=[pairs])
    try:
        lists.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BatchError(str(error)) from None
    # As in Spark's Kafka source: a record without headers has null, not an empty list.
    present = pc.greater(pc.list_value_length(lists), _ZERO).buffers()[1]
    return pa.Array.from_buffers(kind, count, [present, offsets], children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Header names are bytes in the log and text in Spark; what is no UTF-8 is replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _protocols(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    door = door_of(view.flags)
    return _repeated(door, _STRING, count) if door else pa.nulls(count, _STRING)


_MAKERS: dict[str, Callable[[BatchView, pa.Buffer, int], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "offset": _offsets,
    "timestamp": _times,
    "headers": _headers,
    "protocol": _protocols,
}
