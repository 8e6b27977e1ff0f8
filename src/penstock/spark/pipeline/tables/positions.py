"""Which records of the log a table has: topic, partition and offset of its rows, read from its files a
part at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.tables.offsets import OffsetSet, Positions

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

# Rows that are held at a time.
READ_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a kind of table that say where its rows come from."""

    kind: str
    topic: str
    partition: str
    offset: str
    timestamp: str
    origin: str | None
    others: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.topic, self.partition, self.offset)


_PLAIN: Final = ("topic", "partition", "offset", "timestamp")
_RECORD: Final = ("key", "value", "headers")
BRONZE: Final = Layout("bronze", *_PLAIN, None, (*_RECORD, "protocol"))
LETTERS: Final = Layout("dead letters", *_PLAIN, "origin", (*_RECORD, "reason"))
SILVER: Final = Layout("silver", "_topic", "_partition", "_offset", "_timestamp", "_origin")
LAYOUTS: Final = (LETTERS, BRONZE, SILVER)


class TableChanged(PipelineError):
    """Days were removed, or the table was made anew."""

    table: str

    line = "the files of table {table} were replaced while it was read; run this again"


def layout_of(files: Sequence[Path]) -> Layout | None:
    """None where the rows do not say where they come from. Raises OSError."""
    import pyarrow.parquet as pq

    if not files:
        return None
    names = set(pq.read_schema(files[-1]).names)
    for one in LAYOUTS:
        wanted = {*one.columns, one.timestamp, *one.others, *([one.origin] if one.origin else [])}
        if wanted <= names:
            return one
    return None


@dataclass(slots=True)
class Found:
    """`origins`: where the rows were at first. For a row that was never replayed, that is its
    position."""

    rows: int = 0
    positions: Positions = field(default_factory=dict)
    origins: Positions = field(default_factory=dict)


def read_positions(files: Iterable[Path], layout: Layout) -> Found:
    """Raises OSError for a file that is gone."""
    found = Found()
    wanted = [*layout.columns, *([layout.origin] if layout.origin else [])]
    for path in files:
        for batch in _batches(path, wanted, layout.topic):
            found.rows += batch.num_rows
            _add(batch.columns[:3], found.positions)
            if layout.origin is not None:
                _add_origins(batch, found.origins)
    return found


def _batches(path: Path, columns: Sequence[str], topic: str) -> "Iterator[pa.RecordBatch]":
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=[topic]) as file:
        for batch in file.iter_batches(READ_ROWS, columns=list(columns)):
            yield batch.select(list(columns))


def _add(columns: "Sequence[pa.Array]", positions: Positions) -> None:
    import numpy as np

    topics, partitions, offsets = columns
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = codes << 32 | partitions.to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = offsets.to_numpy(zero_copy_only=False)
    for place, part in _grouped(places, numbers):
        topic = topics.dictionary[place >> 32].as_py()
        positions.setdefault((topic, place & 0xFFFFFFFF), OffsetSet()).add(part)


def _grouped(
    places: "NDArray[np.int64]", numbers: "NDArray[np.int64]"
) -> "Iterator[tuple[int, NDArray[np.int64]]]":
    import numpy as np

    if not len(places):
        return
    order = np.argsort(places, kind="stable")
    places, numbers = places[order], numbers[order]
    edges = np.flatnonzero(np.diff(places)) + 1
    firsts = places[np.concatenate([[0], edges])]
    for place, part in zip(firsts, np.split(numbers, edges), strict=True):
        yield int(place), part


def _add_origins(batch: "pa.RecordBatch", origins: Positions) -> None:
    """Most rows are where they were at first; the others say so in a text."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    topics, partitions, offsets, texts = batch.columns
    here = pc.binary_join_element_wise(
        topics.dictionary_decode(), partitions.cast(pa.string()), offsets.cast(pa.string()), "/"
    )
    same = pc.equal(here, texts.cast(pa.string()))
    native = batch.filter(same)
    _add(native.columns[:3], origins)
    for text in texts.filter(pc.invert(same)).to_pylist():
        topic, partition, offset = [*str(text).rsplit("/", 2), "", ""][:3]
        # A peer may write anything there.
        if partition.isdigit() and offset.isdigit() and len(offset) < 19:
            place = topic, int(partition)
            origins.setdefault(place, OffsetSet()).add(np.array([int(offset)], np.int64))
