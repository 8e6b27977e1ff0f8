"""Records for tests of the log: random ones with every column, and comparing them with views."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from penstock.log.batch.arrow import SCHEMA, SCHEMA_WITH_HEADERS, join_views
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import Batch, check_batch
from penstock.log.batch.view import BatchView, Record, view_body

I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """What a record holds, without its offset."""

    value: bytes
    time_us: int = 0
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    expiry_us: int = 0
    null: bool = False


SHORT = st.binary(max_size=20)
ROWS = st.builds(
    lambda value, **rest: Row(value or b"", **rest, null=value is None),
    value=st.one_of(SHORT, st.none()),
    time_us=st.one_of(st.just(7), I64),
    key=st.one_of(st.none(), SHORT),
    headers=st.lists(st.tuples(SHORT, SHORT), max_size=3).map(tuple),
    expiry_us=st.one_of(st.just(0), st.integers(0, (1 << 63) - 1)),
)
# Around multiples of eight, where padding and validity bits have their edges.
SOME_ROWS = st.lists(ROWS, min_size=1, max_size=18)


def build(rows: Sequence[Row], offsets: Sequence[int] | None = None) -> Batch:
    builder = BatchBuilder()
    for number, row in enumerate(rows):
        offset = offsets[number] if offsets is not None else -1
        value = None if row.null else row.value
        builder.add(value, row.time_us, row.key, list(row.headers), row.expiry_us, offset)
    return builder.build()


def stored(batch: Batch, base_offset: int = 0, durable_offset: int = 0, salt: int = 0) -> bytes:
    """The batch as it lies in a file."""
    return batch.stamp(base_offset, durable_offset, salt) + batch.body


def view_batch(buffer: bytes, position: int) -> BatchView:
    """A view of a stored batch whose checksum is right. Raises BatchError."""
    header = check_batch(buffer, position)
    return view_body(header, buffer, position + header.size)


def record_batch(
    view: BatchView, topic: str, partition: int, *, headers: bool = False
) -> pa.RecordBatch:
    """The rows of one view, as Flight sends them."""
    return join_views([view], topic, partition, SCHEMA_WITH_HEADERS if headers else SCHEMA)


def partition_of(key: bytes, partitions: int) -> int:
    """FNV-1a, 32 bits, as it is published; modulo the number of partitions."""
    hashed = 2166136261
    for byte in key:
        hashed = (hashed ^ byte) * 16777619 % 2**32
    return hashed % partitions


def row_of(record: Record) -> Row:
    headers = tuple(record.headers)
    null = record.value is None
    return Row(record.value or b"", record.time_us, record.key, headers, record.expiry_us, null)


def rows_of(views: Sequence[BatchView]) -> list[Row]:
    return [row_of(record) for view in views for record in view.records()]


def offsets_of(views: Sequence[BatchView]) -> list[int]:
    return [record.offset for view in views for record in view.records()]
