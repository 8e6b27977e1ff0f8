"""From Arrow columns to a batch for the log, without a loop over rows: one copy of the bytes, no more.

The opposite way is arrow.py. Chooses no partition, gives no offsets and no times.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.batch.arrow import HEADER_TYPE
from penstock.log.batch.format import (
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULLS,
    Batch,
    BatchError,
    check_counts,
)
from penstock.log.batch.key_partition import partitions_of

# Larger record batches are cut: a batch is held in memory by the server until it is durable, and
# appending costs its event loop nothing per byte, but something per row of very large batches.
MAX_APPEND_BYTES = 8 * 1024 * 1024
_BINARY = pa.binary()
_EMPTY = pa.scalar(b"", _BINARY)
_ZERO = pa.scalar(0, pa.int32())
_HEADERS = pa.list_(HEADER_TYPE)

Parts = list[bytes | pa.Buffer]


def batch_from_arrow(
    values: pa.Array, keys: pa.Array | None, headers: pa.Array | None, time_us: int
) -> Batch:
    """One batch of all rows. Raises BatchError."""
    count = len(values)
    if count == 0:
        raise BatchError("a batch needs at least one record")
    flags = 0
    parts: Parts = []
    values = as_binary(values, "value")
    _add_column(parts, _filled(values))
    if values.null_count:
        flags |= FLAG_NULLS
        _add(parts, _validity(values))
    if keys is not None and keys.null_count < count:
        flags |= FLAG_KEYS
        keys = as_binary(keys, "key")
        _add_column(parts, _filled(keys), _validity(keys))
    if headers is not None and headers.null_count < count:
        flags |= FLAG_HEADERS
        _add_headers(parts, _as_headers(headers))
    body = b"".join(parts)
    check_counts(count, len(body))
    return Batch(body, count, flags, time_us, time_us)


def as_binary(column: pa.Array, name: str) -> pa.Array:
    """Binary with 32-bit offsets, whatever kind of bytes or text it was. Raises BatchError."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if kind == _BINARY:
        return column
    if pa.types.is_null(kind):
        return pa.nulls(len(column), _BINARY)
    if not _is_bytes(kind):
        raise BatchError(f"column {name} is {kind}; it must be binary or string")
    try:
        return column.cast(_BINARY)
    except pa.ArrowInvalid as error:
        raise BatchError(f"column {name}: {error}") from None


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        any(is_text(kind) for is_text in (types.is_string, types.is_large_string))
        or any(is_raw(kind) for is_raw in (types.is_large_binary, types.is_fixed_size_binary))
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def _as_headers(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind == _HEADERS:
        return column
    if not _are_headers(kind):
        wanted = "list<struct<key: string, value: binary>>"
        raise BatchError(f"column headers is {kind}; it must be {wanted}")
    try:
        return column.cast(_HEADERS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BatchError(f"column headers: {error}") from None


def _are_headers(kind: pa.DataType) -> bool:
    """Accepts exactly these two fields: a cast would silently leave others empty."""
    types = pa.types
    if types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    pair = kind.value_type
    if types.is_null(pair):
        return True
    return (
        types.is_struct(pair)
        and sorted(field.name for field in pair) == ["key", "value"]
        and all(_is_plain(field.type) for field in pair)
    )


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    checks = types.is_string, types.is_binary, types.is_large_string, types.is_large_binary
    return types.is_null(kind) or any(check(kind) for check in checks)


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, _EMPTY) if column.null_count else column


def _validity(column: pa.Array) -> pa.Buffer:
    return pc.is_valid(column).buffers()[1].slice(0, (len(column) + 7) >> 3)


def _add(parts: Parts, part: bytes | pa.Buffer) -> None:
    parts.append(part)
    if len(part) & 7:
        parts.append(bytes(-len(part) & 7))


def _add_column(parts: Parts, column: pa.Array, validity: pa.Buffer | None = None) -> None:
    """Offsets from 0 on, the validity bits where they are given, and the bytes, each padded."""
    offsets, content = _offsets_and_bytes(column)
    _add(parts, offsets)
    if validity is not None:
        _add(parts, validity)
    _add(parts, content)


def _offsets_and_bytes(column: pa.Array) -> tuple[pa.Buffer, pa.Buffer]:
    """Of just the rows of the array, which may be a part of larger buffers."""
    count = len(column)
    _, offsets_buffer, content = column.buffers()
    if count == 0 or offsets_buffer is None:
        return pa.py_buffer(bytes(4)), pa.py_buffer(b"")
    offsets = pa.Array.from_buffers(
        pa.int32(), count + 1, [None, offsets_buffer], offset=column.offset
    )
    first, last = offsets[0], offsets[count].as_py()
    start = first.as_py()
    if start:
        offsets = pc.subtract(offsets, first)
    if content is None:
        content = pa.py_buffer(b"")
    numbers = offsets.buffers()[1].slice(4 * offsets.offset, 4 * (count + 1))
    return numbers, content.slice(start, last - start)


def _add_headers(parts: Parts, lists: pa.Array) -> None:
    lengths = pc.fill_null(pc.list_value_length(lists), _ZERO)
    counted = pc.cumulative_sum(lengths)
    _add(parts, pa.concat_arrays([pa.array([0], pa.int32()), counted]).buffers()[1])
    names, contents = lists.flatten().flatten()
    _add_column(parts, _filled(names.cast(_BINARY)))
    _add_column(parts, _filled(contents))


def pieces(batch: pa.RecordBatch, max_bytes: int = MAX_APPEND_BYTES) -> Iterator[pa.RecordBatch]:
    """The batch in parts of about `max_bytes` at most; a single row is never cut."""
    if batch.num_rows <= 1 or batch.nbytes <= max_bytes:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), max_bytes)
    yield from pieces(batch.slice(half), max_bytes)


def key_partitions(keys: pa.Array, partitions: int) -> pa.Array:
    """The partition of each key; null where there is no key."""
    offsets, content = _offsets_and_bytes(_filled(as_binary(keys, "key")))
    numbers = partitions_of(offsets.to_pybytes(), content.to_pybytes(), partitions)
    found = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(numbers)])
    if not keys.null_count:
        return found
    return pc.if_else(pc.is_valid(keys), found, pa.scalar(None, pa.int32()))
