"""Which records a bronze table holds: behind its last one of each partition, from the statistics of its
Parquet files.

A row group of one partition is told by its footer alone. Of others only the columns that name a record
are read.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("topic", "partition", "offset", "timestamp")
_DAY_US: Final = 86_400_000_000

Offsets = dict[str, dict[int, int]]


def landed_offsets(files: Iterable[Path], created_us: Mapping[str, int]) -> Offsets:
    """Per topic and partition the offset behind the last record that the files hold.

    Of topics that `created_us` does not name nothing is told. It says when a topic was made: the rows
    before are those of one that had the same name and was deleted. The broker's time never goes back, so
    that none of them is later.
    """
    import pyarrow.parquet as pq

    found: Offsets = {}
    for path in files:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for number in range(file.metadata.num_row_groups):
                ends = _told(file.metadata.row_group(number), created_us)
                if ends is None:
                    rows = file.read_row_group(number, columns=list(COLUMNS))
                    ends = _counted(rows, created_us)
                for (topic, partition), end in ends.items():
                    known = found.setdefault(topic, {})
                    known[partition] = max(end, known.get(partition, 0))
    return found


Ends = dict[tuple[str, int], int]


def _told(group: Any, created_us: Mapping[str, int]) -> Ends | None:
    """What the statistics tell. None: nothing that is sure."""
    columns = [group.column(number) for number in range(group.num_columns)]
    limits: dict[str, tuple[Any, Any]] = {
        one.path_in_schema: (one.statistics.min, one.statistics.max)
        for one in columns
        if one.is_stats_set and one.statistics.has_min_max
    }
    if not {"topic", "partition", "offset"} <= limits.keys():
        return None
    (topic, last_topic), (partition, last_partition) = limits["topic"], limits["partition"]
    if topic != last_topic or partition != last_partition:
        return None
    if topic not in created_us:
        return {}
    first_us, last_us = _times_us(limits)
    if first_us is None or last_us is None:
        return None
    if last_us < created_us[topic]:
        return {}
    return {(topic, partition): limits["offset"][1] + 1} if first_us >= created_us[topic] else None


def _times_us(limits: Mapping[str, tuple[Any, Any]]) -> tuple[int | None, int | None]:
    """Between which times the rows are. The kind of timestamp that Spark writes if nobody asks for
    another has no statistics: then the day tells, which may be that of any time zone."""
    if "timestamp" in limits:
        first, last = (_us(one) for one in limits["timestamp"])
        return first, last
    if "day" in limits and isinstance(limits["day"][0], date):
        first, last = (_us(datetime.combine(one, time(), UTC)) for one in limits["day"])
        return first - _DAY_US, last + 2 * _DAY_US
    return None, None


def _us(when: datetime) -> int:
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _counted(rows: "pa.Table", created_us: Mapping[str, int]) -> Ends:
    import pyarrow as pa
    import pyarrow.compute as pc

    times_us = rows["timestamp"].cast(pa.timestamp("us")).cast(pa.int64())
    found: Ends = {}
    for topic, made_us in created_us.items():
        wanted = pc.and_(pc.equal(rows["topic"], topic), pc.greater_equal(times_us, made_us))
        ends = rows.filter(wanted).group_by("partition").aggregate([("offset", "max")])
        for one in ends.to_pylist():
            found[topic, one["partition"]] = one["offset_max"] + 1
    return found
