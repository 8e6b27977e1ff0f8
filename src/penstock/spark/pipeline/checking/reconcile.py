"""`penstock pipeline check`: compares the tables of a project with the log, record by record, and names the
first gap or double. Starts no Spark, changes nothing, and may run beside the pipeline.

What is compared: of every partition the offsets that the log has, from its earliest to where the flow of
the table has come, with the offsets in the files of the table. So nothing that retention, compaction or
expiry has removed from the log is a gap, and no day that `keep` has removed from the table.

    bronze                    has every one of them, once
    silver and dead letters   have each of them once, together, or it was left out: a deletion mark, a rule
                              that drops, the same event as another. Marks are counted. Rules and duplicates
                              are not told apart here: that would take the values of all records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.connection import Connection
from penstock.spark.pipeline.blocks.silver import DEAD_LETTER_TABLE, SILVER_TABLE
from penstock.spark.pipeline.checking.log_offsets import numbers, read_log, topic_of
from penstock.spark.pipeline.checking.problems import Kind, Problem
from penstock.spark.pipeline.checkpoints.reading import Landed, landed
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.tables.files import (
    last_batch,
    table_directory,
    table_files,
    table_names,
)
from penstock.spark.pipeline.tables.offsets import OffsetSet, Positions
from penstock.spark.pipeline.tables.positions import (
    BRONZE,
    LETTERS,
    SILVER,
    Found,
    Layout,
    TableChanged,
    layout_of,
    read_positions,
)
from penstock.spark.pipeline.upkeep.keep import keep_days

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# An update may land a batch while files are listed, or remove days while they are read: then they are
# looked up again.
MAX_LOOKS: Final = 5
_NOTHING: Final = OffsetSet()


@dataclass(frozen=True, slots=True)
class Checked:
    """`records`: those of the log up to where the table has come. `behind`: those that it has not reached
    yet. `left_out`: in neither table of a pair, `marks` of them as deletion marks. `note`: what was not
    compared, and why."""

    table: str
    rows: int
    records: int | None = None
    behind: int | None = None
    left_out: int = 0
    marks: int = 0
    problem: Problem | None = None
    note: str = ""


@dataclass(slots=True)
class _Table:
    """What is known of a table: its rows by position, and how far its flow has come."""

    name: str
    layout: Layout
    landed: Landed
    found: Found


@dataclass(slots=True)
class _Counts:
    records: int = 0
    behind: int = 0
    left_out: int = 0
    marks: int = 0


def check_tables(
    project: Project, connection: Connection, names: Sequence[str], today: date | None = None
) -> Iterator[Checked]:
    """In the order of the names; a silver table and its dead letters stand together. Raises TableChanged,
    BrokenProject, ClientError."""
    day = datetime.now(UTC).date() if today is None else today
    kept = {table.lower(): day - timedelta(days) for table, days in keep_days(project).items()}
    done: set[str] = set()
    for name in names:
        if name in done:
            continue
        table = _look(project, name)
        if isinstance(table, Checked):
            yield table
            continue
        pair = [table]
        other = _other_of(name, table.layout, table_names(project))
        if other is not None:
            found = _look(project, other)
            if isinstance(found, _Table):
                pair.append(found)
                done.add(other)
        yield from _check(connection, pair, kept)


def _other_of(name: str, layout: Layout, names: Sequence[str]) -> str | None:
    """The dead letters of a silver table, and the other way round."""
    if layout is SILVER:
        other = name.removesuffix(SILVER_TABLE) + DEAD_LETTER_TABLE
    elif layout is LETTERS:
        other = name.removesuffix(DEAD_LETTER_TABLE) + SILVER_TABLE
    else:
        return None
    return other if other in names and other != name else None


def _look(project: Project, name: str) -> _Table | Checked:
    """The files of one moment, and how far the flow was when it had written them."""
    directory = table_directory(project, name)
    for _ in range(MAX_LOOKS):
        try:
            batch = last_batch(directory)
            paths = [one.path for one in table_files(directory)]
            if last_batch(directory) != batch:
                continue
            layout = layout_of(paths)
            if layout is None:
                rows = _count(paths)
                return Checked(name, rows, note="made of other tables" if paths else "empty")
            reached = landed(project, name, batch)
            if reached is None:
                return Checked(name, _count(paths), note="it has no checkpoint of topics")
            return _Table(name, layout, reached, read_positions(paths, layout))
        except FileNotFoundError:
            continue
    raise TableChanged(name)


def _count(paths: Sequence[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in paths)


def _check(
    connection: Connection, tables: Sequence[_Table], kept: Mapping[str, date]
) -> Iterator[Checked]:
    problems: list[Problem] = []
    for table in tables:
        problems += _doubles(table)
    counts, notes = _Counts(), list[str]()
    for topic, (created_us, ends) in _ends(tables).items():
        there = topic_of(connection, topic)
        if there is None or there.created_us != created_us:
            what = "is gone from the log" if there is None else "was deleted and made anew"
            notes.append(f"topic {topic} {what}: its rows are not compared")
            continue
        for partition, end in sorted(ends.items()):
            earliest, latest = there.bounds[partition]
            counts.behind += max(0, latest - max(end, earliest))
            place = topic, partition
            if end > latest:
                problems.append(Problem(Kind.LOG_ENDS, tables[0].name, *place, latest))
            problems += _ahead(tables, place)
            start = max(earliest, _began(tables[0], place))
            problems += _compare(connection, tables, place, (start, end), kept, counts)
        counts.behind += sum(
            latest - first for n, (first, latest) in enumerate(there.bounds) if n not in ends
        )
    first = min(problems, key=lambda one: one.place, default=None)
    for table in tables:
        yield Checked(
            table=table.name,
            rows=table.found.rows,
            records=counts.records,
            behind=counts.behind,
            left_out=counts.left_out,
            marks=counts.marks,
            problem=first,
            note="; ".join(notes),
        )


def _ends(tables: Sequence[_Table]) -> dict[str, tuple[int, dict[int, int]]]:
    """Up to where all of the tables have come."""
    found: dict[str, tuple[int, dict[int, int]]] = {}
    for topic, one in tables[0].landed.progress.topics.items():
        others = [table.landed.progress.topics.get(topic) for table in tables[1:]]
        ends = {
            partition: min([end, *(o.partitions.get(partition, 0) for o in others if o)])
            for partition, end in one.partitions.items()
        }
        if all(o is not None and o.created_us == one.created_us for o in others):
            found[topic] = one.created_us, ends
    return found


def _began(table: _Table, place: tuple[str, int]) -> int:
    """A flow with another beginning than the earliest record has nothing before it."""
    began = table.landed.began
    topic = None if began is None else began.topics.get(place[0])
    return 0 if topic is None else topic.partitions.get(place[1], 0)


def _doubles(table: _Table) -> Iterator[Problem]:
    yield from _doubled(Kind.DOUBLE, table.name, table.found.positions)
    if table.layout is SILVER:
        yield from _doubled(Kind.REPLAYED_TWICE, table.name, table.found.origins)


def _doubled(kind: Kind, table: str, positions: Positions) -> Iterator[Problem]:
    for place, offsets in positions.items():
        if offsets.first_double is not None:
            yield Problem(kind, table, *place, offsets.first_double, offsets.doubles)


def _ahead(tables: Sequence[_Table], place: tuple[str, int]) -> Iterator[Problem]:
    for table in tables:
        reached = table.landed.planned.topics[place[0]].partitions.get(place[1], 0)
        offsets = table.found.positions.get(place, _NOTHING)
        if offsets.last >= reached:
            ahead = list(offsets.arrays(reached))
            count = sum(len(part) for part in ahead)
            yield Problem(Kind.AHEAD, table.name, *place, int(ahead[0][0]), count)


def _compare(
    connection: Connection,
    tables: Sequence[_Table],
    place: tuple[str, int],
    span: tuple[int, int],
    kept: Mapping[str, date],
    counts: _Counts,
) -> Iterator[Problem]:
    """One partition of the log, a batch of it at a time."""
    import numpy as np

    sets = [table.found.positions.get(place, _NOTHING) for table in tables]
    missing = both = 0
    first_missing = first_both = -1
    for batch in read_log(connection, place, *span):
        offsets = numbers(batch)
        counts.records += len(offsets)
        there = [one.has(offsets) for one in sets]
        if len(there) == 2 and (there[0] & there[1]).any():
            shared = offsets[there[0] & there[1]]
            first_both = int(shared[0]) if not both else first_both
            both += len(shared)
        gone = offsets[~np.logical_or.reduce(there)]
        if not len(gone):
            continue
        if tables[0].layout is not BRONZE:
            counts.left_out += len(gone)
            counts.marks += _marks(connection, place, gone)
            continue
        gone = _not_too_old(connection, place, gone, kept.get(tables[0].name))
        if len(gone):
            first_missing = int(gone[0]) if not missing else first_missing
            missing += len(gone)
    if missing:
        yield Problem(Kind.GAP, tables[0].name, *place, first_missing, missing)
    if both:
        names = " and ".join(table.name for table in tables)
        yield Problem(Kind.IN_BOTH, names, *place, first_both, both)


def _marks(connection: Connection, place: tuple[str, int], offsets: "NDArray[np.int64]") -> int:
    """How many of these records have no value."""
    import numpy as np

    found = 0
    span = int(offsets[0]), int(offsets[-1]) + 1
    for batch in read_log(connection, place, *span, ("offset", "value")):
        wanted = np.isin(numbers(batch), offsets)
        found += int(
            (batch.column("value").is_null().to_numpy(zero_copy_only=False) & wanted).sum()
        )
    return found


def _not_too_old(
    connection: Connection,
    place: tuple[str, int],
    offsets: "NDArray[np.int64]",
    first_kept: date | None,
) -> "NDArray[np.int64]":
    """Those whose day the table still keeps."""
    import numpy as np

    if first_kept is None:
        return offsets
    midnight = np.datetime64(datetime(first_kept.year, first_kept.month, first_kept.day), "us")
    young = []
    span = int(offsets[0]), int(offsets[-1]) + 1
    for batch in read_log(connection, place, *span, ("offset", "timestamp")):
        times = batch.column("timestamp").to_numpy(zero_copy_only=False).astype("datetime64[us]")
        found = numbers(batch)
        young.append(found[np.isin(found, offsets) & (times >= midnight)])
    return np.concatenate(young) if young else np.zeros(0, np.int64)
