"""Checks record batches that peers send: size and validity; converts them to plain columns.

Arrow does not check offsets and indices that it receives. Wrong ones would read beyond a buffer, or would
be written to the log and fail every reader. A dictionary or a view can pack gigabytes into few bytes: its
unpacked size counts. Chooses no partition and writes nothing.
"""

import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.errors import BrokerError, Code
from penstock.server.flight.tickets import invalid

# Text has the layout of bytes. As text it would be checked to be UTF-8, which the log does not ask for.
_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def plain(batch: pa.RecordBatch, limit_bytes: int) -> pa.RecordBatch:
    """The same rows, without dictionaries, views and extensions. Raises BrokerError."""
    _check_size(batch, batch.nbytes, limit_bytes)
    columns = [
        _checked(column, name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    unpacked_bytes = sum(_unpacked_bytes(column) for column in columns)
    _check_size(batch, unpacked_bytes, limit_bytes)
    return pa.RecordBatch.from_arrays(
        [_unpacked(column) for column in columns], names=batch.schema.names
    )


def _check_size(batch: pa.RecordBatch, size: int, limit_bytes: int) -> None:
    """A single record has a limit of its own."""
    if size > limit_bytes and batch.num_rows > 1:
        text = f"a record batch of {size} bytes, {limit_bytes} at most: send smaller ones"
        raise BrokerError(Code.RECORD_TOO_LARGE, text)


def _checked(column: pa.Array, name: str) -> pa.Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _checked(column.dictionary, name)
        column = pa.DictionaryArray.from_arrays(column.indices, values, safe=False)
    elif kind in _AS_BYTES:
        column = column.view(_AS_BYTES[kind])
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise invalid(f"column {name} is malformed: {error}") from None
    return column


def _unpacked_bytes(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_binary_view(kind):
        return _sum(_view_lengths(column))
    if pa.types.is_dictionary(kind) and _is_bytes(kind.value_type):
        lengths = _lengths(column.dictionary)
        return _sum(lengths) + _sum(lengths.take(column.indices))
    return int(column.nbytes)


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    checks = types.is_binary, types.is_large_binary, types.is_binary_view
    return any(check(kind) for check in checks)


def _lengths(column: pa.Array) -> pa.Array:
    view = pa.types.is_binary_view(column.type)
    return _view_lengths(column) if view else pc.binary_length(column)


def _view_lengths(column: pa.Array) -> pa.Array:
    """The first of the four numbers that a view is made of."""
    count = len(column)
    numbers = pa.Array.from_buffers(
        pa.int32(), 4 * count, [None, column.buffers()[1]], offset=4 * column.offset
    )
    lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4), 0)
    return pc.if_else(column.is_valid(), lengths, pa.scalar(None, pa.int32()))


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(numbers.cast(pa.int64())).as_py() or 0)


def _unpacked(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_dictionary(kind) and _is_bytes(kind.value_type):
        return _unpacked(column.dictionary).take(column.indices)
    return column
