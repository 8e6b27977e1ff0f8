"""Parquet files of Spark rewritten without Spark: several into one, or one without some of its rows.

The columns and what Spark notes about them stay as they are. One row group is held in memory at a time,
and those of the new file are gathered up to a size.
"""

import os
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipeline.tables.moments import schema_with_zones

if TYPE_CHECKING:
    import pyarrow as pa

# Of the new file, in memory. Larger ones are read no faster, and every reader holds one.
ROW_GROUP_BYTES: Final = 64 << 20
DAY: Final = "day"
# Dates and times of these files are counted by another calendar: only Spark should read them.
_OLD_CALENDAR: Final = frozenset(
    {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
)

Rows = Callable[["pa.Table"], "pa.Table"]


def kind_of(path: Path) -> str | None:
    """The same for files that can be one. None: for Spark alone."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    known = schema.metadata or {}
    if _OLD_CALENDAR & known.keys():
        return None
    return f"{schema.to_string(show_schema_metadata=False)} {sorted(known.items())}"


def days_of(path: Path) -> tuple[date, date] | None:
    """Between which days the rows of a file are: by its directory, or by its statistics."""
    import pyarrow.parquet as pq

    if path.parent.name.startswith(f"{DAY}="):
        try:
            day = date.fromisoformat(path.parent.name.removeprefix(f"{DAY}="))
        except ValueError:
            return None
        return day, day
    known = pq.read_metadata(path)
    number = known.schema.names.index(DAY) if DAY in known.schema.names else None
    found: list[date] = []
    for group in range(known.num_row_groups):
        told = None if number is None else known.row_group(group).column(number).statistics
        if told is None or not told.has_min_max or not isinstance(told.min, date):
            return None
        found += [told.min, told.max]
    return (min(found), max(found)) if found else None


def from_day(first: date) -> Rows:
    """Only the rows of this day and later ones."""

    def kept(rows: "pa.Table") -> "pa.Table":
        import pyarrow.compute as pc

        return rows.filter(pc.greater_equal(rows[DAY], first))

    return kept


def rewrite(sources: Iterable[Path], target: Path, rows: Rows | None = None) -> int:
    """The rows of the sources, in their order, durable in a new file; gives how many. The sources are of
    one kind."""
    import pyarrow.parquet as pq

    writer: Any = None
    waiting: list[Any] = []
    count = waiting_bytes = 0

    def flush() -> None:
        import pyarrow as pa

        nonlocal waiting, waiting_bytes
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
        waiting, waiting_bytes = [], 0

    try:
        for source in sources:
            with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
                schema = schema_with_zones(file)
                if writer is None:
                    writer = pq.ParquetWriter(
                        target, schema, compression=_compression(file), store_schema=False
                    )
                    # Among them how Spark calls the types of the columns.
                    writer.add_key_value_metadata(schema.metadata or {})
                for number in range(file.num_row_groups):
                    found = file.read_row_group(number).cast(schema)
                    found = found if rows is None else rows(found)
                    count += found.num_rows
                    waiting.append(found)
                    waiting_bytes += found.nbytes
                    if waiting_bytes >= ROW_GROUP_BYTES:
                        flush()
        flush()
    finally:
        if writer is not None:
            writer.close()
    for path in (target, target.parent):
        _sync(path)
    return count


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _compression(file: Any) -> str:
    known = file.metadata
    if not known.num_row_groups or not known.num_columns:
        return "snappy"
    codec = known.row_group(0).column(0).compression.lower()
    return "none" if codec == "uncompressed" else str(codec)
