"""Turns what was read into Arrow record batches. Copies no value, key or header bytes.

The columns carry the names of Spark's Kafka source. Does not read the log and knows no transport.
"""

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.view import BatchView

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

# As in Kafka: 1 is the time at which the broker appended the record.
APPEND_TIME = 1


@lru_cache(maxsize=64)
def _row_numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


@lru_cache(maxsize=1024)
def _repeated_topic(topic: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), count)


@lru_cache(maxsize=1024)
def _repeated_int(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)


def to_record_batch(
    view: BatchView, topic: str, partition: int, *, headers: bool = False
) -> pa.RecordBatch:
    """One record batch for the rows of one view."""
    count = len(view)
    buffer = pa.py_buffer(view.buffer)
    columns = [
        _keys(view, buffer, count),
        _binary(view, buffer, view.value_offsets_at, view.values_at, None, pa.binary()),
        _repeated_topic(topic, count),
        _repeated_int(partition, count),
        _offsets(view, buffer, count),
        _times(view, buffer, count),
        _repeated_int(APPEND_TIME, count),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns.append(_headers(view, buffer, count))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


def _binary(
    view: BatchView,
    buffer: pa.Buffer,
    offsets_at: int,
    bytes_at: int,
    validity: pa.Buffer | None,
    kind: pa.DataType,
) -> pa.Array:
    return pa.Array.from_buffers(
        kind,
        len(view),
        [validity, buffer.slice(offsets_at), buffer.slice(bytes_at)],
        offset=view.first_row,
    )


def _keys(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    if not view.keys_at:
        return pa.nulls(count, pa.binary())
    validity = buffer.slice(view.key_validity_at)
    return _binary(view, buffer, view.key_offsets_at, view.keys_at, validity, pa.binary())


def _numbers(view: BatchView, buffer: pa.Buffer, at: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(view), [None, buffer.slice(at)], offset=view.first_row
    )


def _offsets(view: BatchView, buffer: pa.Buffer, count: int) -> pa.Array:
    if view.offsets_at:
        return _numbers(view, buffer, view.offsets_at)
    return pc.add(_row_numbers(count), view.first_offset())


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
    names = pa.Array.from_buffers(
        pa.string(),
        total,
        [None, buffer.slice(view.name_offsets_at), buffer.slice(view.names_at)],
    )
    contents = pa.Array.from_buffers(
        pa.binary(),
        total,
        [None, buffer.slice(view.content_offsets_at), buffer.slice(view.contents_at)],
    )
    pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
    return pa.Array.from_buffers(
        kind,
        count,
        [None, buffer.slice(view.header_offsets_at)],
        offset=view.first_row,
        children=[pairs],
    )
