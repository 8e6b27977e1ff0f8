"""Partitions for tests: opened on any file layer, appended to inline, without threads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.records import Row, build, row_of
from penstock.log.batch.format import Batch
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import FileSystem
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.reader import read


@dataclass(slots=True)
class Clock:
    """A wall clock in microseconds that stands still until it is moved."""

    now_us: int = 1_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass(slots=True)
class Bench:
    """One partition on a work bench."""

    files: FileSystem
    directory: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    clock: Clock = field(default_factory=Clock)
    cache_bytes: int = 0

    def open(self) -> Partition:
        pool = HandlePool(self.files, 16)
        return Partition(
            self.directory, self.settings, pool, BatchCache(self.cache_bytes), self.clock
        )


def append_now(partition: Partition, batch: Batch) -> AppendToken:
    token = partition.append(batch)
    deliver(partition.write_pending())
    if partition.has_rolls:
        deliver(partition.finish_rolls())
    return token


def append_rows(partition: Partition, batches: Sequence[Sequence[Row]]) -> None:
    for rows in batches:
        append_now(partition, build(rows)).result(0)


# Later than any record.
DOOMSDAY_US = 1 << 63


def roll(partition: Partition, row: Row) -> None:
    """Seals the active segment; the row is the first one of the next."""
    partition.roll(DOOMSDAY_US)
    append_rows(partition, [[row]])


def read_all(partition: Partition, max_bytes: int = 1 << 20) -> list[tuple[int, Row]]:
    """Offset and content of every visible record."""
    found: list[tuple[int, Row]] = []
    offset = partition.start_offset
    while offset < partition.visible_offset:
        result = read(partition, offset, max_bytes)
        for view in result.views:
            for record in view.records():
                found.append((record.offset, row_of(record)))
        assert result.next_offset > offset
        offset = result.next_offset
    return found
