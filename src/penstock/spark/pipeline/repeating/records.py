"""Rows of a table as records for a topic: key, value, headers, and where they were at first.

    bronze, dead letters   the record as it came
    silver, all others     the row as a JSON object, without the columns that say where it came from

The header penstock-origin has topic/partition/offset of the record. One that is there already stays:
it is the copy of a copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.blocks.silver import ORIGIN_HEADER
from penstock.spark.pipeline.tables.positions import READ_ROWS, SILVER, Layout

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of a typed table that are Python objects at a time.
TYPED_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows. Times in microseconds, `until_us` is not part of it. `offsets`: by partition, the first
    and the one behind the last."""

    topic: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    offsets: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)

    @property
    def everything(self) -> bool:
        return self == Wanted()


def chosen_rows(
    path: Path, layout: Layout | None, wanted: Wanted, columns: Sequence[str] | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of a file, a part at a time. `columns`: only these, all if not given. Without a layout
    everything must be wanted. Raises OSError."""
    import pyarrow.parquet as pq

    rows = READ_ROWS if columns is not None else TYPED_ROWS
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        for batch in file.iter_batches(rows, columns=None if columns is None else list(columns)):
            found = batch if layout is None else batch.filter(_mask(batch, layout, wanted))
            if found.num_rows:
                yield found


def asked_columns(layout: Layout) -> list[str]:
    """Those that a choice goes by."""
    return [*layout.columns, layout.timestamp]


def _mask(batch: "pa.RecordBatch", layout: Layout, wanted: Wanted) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.repeat(pa.scalar(True), batch.num_rows)
    if wanted.topic is not None:
        found = pc.and_(found, pc.equal(batch.column(layout.topic), wanted.topic))
    times = batch.column(layout.timestamp).cast(pa.timestamp("us")).cast(pa.int64())
    if wanted.since_us is not None:
        found = pc.and_(found, pc.greater_equal(times, wanted.since_us))
    if wanted.until_us is not None:
        found = pc.and_(found, pc.less(times, wanted.until_us))
    if wanted.offsets:
        partitions, offsets = batch.column(layout.partition), batch.column(layout.offset)
        inside = pa.repeat(pa.scalar(False), batch.num_rows)
        for partition, spans in wanted.offsets.items():
            here = pc.equal(partitions, partition)
            for first, end in spans:
                span = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end))
                inside = pc.or_(inside, pc.and_(here, span))
        found = pc.and_(found, inside)
    return found


# --- from rows to records --------------------------------------------------------------------------

Convert = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


def schema(layout: Layout | None, partitions: bool) -> "pa.Schema":
    """`partitions`: records go to the partition that they were in."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fields: list[Any] = [("key", pa.binary()), ("value", pa.binary())]
    fields.append(("headers", pa.list_(header)))
    return pa.schema([*fields, *([("partition", pa.int32())] if partitions and layout else [])])


def converter(path: Path, layout: Layout | None, partitions: bool) -> Convert:
    """For the rows of a file."""
    made = schema(layout, partitions)
    if layout is None or layout is SILVER:
        return partial(_typed, layout=layout, made=made, zoned=_zoned(path))
    return partial(_as_it_came, layout=layout, made=made)


def _as_it_came(batch: "pa.RecordBatch", layout: Layout, made: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    headers = batch.column("headers").cast(made.field("headers").type)
    columns = [
        batch.column("key"),
        batch.column("value"),
        _with_origin(headers, _origins(batch, layout)),
    ]
    if "partition" in made.names:
        columns.append(batch.column(layout.partition))
    return pa.record_batch(columns, schema=made)


def _origins(batch: "pa.RecordBatch", layout: Layout) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    if layout.origin is not None:
        return batch.column(layout.origin).cast(pa.string())
    parts = [batch.column(name).cast(pa.string()) for name in layout.columns]
    return pc.binary_join_element_wise(*parts, "/")


def _with_origin(headers: "pa.ListArray", origins: "pa.Array") -> "pa.ListArray":
    """One more header for each row that has no such one."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    flat = headers.flatten()
    counts = np.array(pc.fill_null(pc.list_value_length(headers), 0), dtype=np.int64)
    rows = np.repeat(np.arange(len(headers)), counts)
    known = np.array(pc.equal(flat.field("key"), ORIGIN_HEADER).fill_null(False), dtype=bool)
    lacking = np.ones(len(headers), dtype=bool)
    lacking[rows[known]] = False
    keys = pa.repeat(pa.scalar(ORIGIN_HEADER), int(lacking.sum()))
    added = pa.StructArray.from_arrays(
        [keys, origins.filter(pa.array(lacking)).cast(pa.binary())], names=["key", "value"]
    )
    # The new one stands behind those of its row.
    owners = np.concatenate([rows, np.flatnonzero(lacking)])
    order = np.argsort(owners, kind="stable")
    every = pa.concat_arrays([flat, added.cast(flat.type)]).take(pa.array(order))
    ends = np.cumsum(counts + lacking)
    starts = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(starts, every)


def _typed(
    batch: "pa.RecordBatch", layout: Layout | None, made: "pa.Schema", zoned: frozenset[str]
) -> "pa.RecordBatch":
    import msgspec
    import pyarrow as pa

    encoder = msgspec.json.Encoder(decimal_format="number")
    names = [name for name in batch.schema.names if layout is None or not name.startswith("_")]
    columns_of = {
        name: [
            _plain(one, name in zoned)
            for one in batch.column(name).to_pylist(maps_as_pydicts="strict")
        ]
        for name in names
    }
    values = [
        encoder.encode(_without_nulls(dict(zip(names, row, strict=True))))
        for row in zip(*columns_of.values(), strict=True)
    ]
    headers = pa.nulls(batch.num_rows, made.field("headers").type)
    columns = [pa.nulls(batch.num_rows, pa.binary()), pa.array(values, pa.binary()), headers]
    if layout is not None:
        columns[2] = _with_origin(headers, _origins(batch, layout))
        if "partition" in made.names:
            columns.append(batch.column(layout.partition))
    return pa.record_batch(columns, schema=made)


def _zoned(path: Path) -> frozenset[str]:
    """Columns whose times are of UTC and do not say so: Spark's INT96."""
    import pyarrow.parquet as pq

    found = pq.read_metadata(path).schema
    columns = [found.column(number) for number in range(len(found))]
    return frozenset(one.path.split(".")[0] for one in columns if one.physical_type == "INT96")


def _plain(value: Any, in_utc: bool) -> Any:
    if isinstance(value, datetime) and in_utc:
        return value.replace(tzinfo=UTC)
    if isinstance(value, list):
        return [_plain(one, in_utc) for one in value]
    if isinstance(value, dict):
        return _without_nulls({name: _plain(one, in_utc) for name, one in value.items()})
    return value


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """As Spark's to_json has it: a schema that lets a field be missing seldom lets it be null."""
    return {name: value for name, value in fields.items() if value is not None}
