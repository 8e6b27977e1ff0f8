"""Ranges of offsets: how a limit is shared among them, and which task reads which of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

# Without minPartitions and maxRecordsPerPartition: a task of this size is a second of work or less, and a
# topic with one partition still keeps all cores busy. Ranges up to twice of it stay whole.
SPLIT_RECORDS: Final = 1_000_000
SPLIT_BYTES: Final = 256 << 20
# A task costs Spark some 70 ms of a core before its first row, so small ranges share one. As long as there
# are this many tasks, or more ...
SHARED_TASKS: Final = 16
# ... and down to this size, where the rows cost less than the task.
SHARED_RECORDS: Final = 10_000

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition from `start` up to `end`, which is not part of it.

    `record_bytes` is what a record of its topic takes on average, for how the work is divided.
    """

    topic: str
    partition: int
    start: int
    end: int
    created_us: int
    record_bytes: int = 0

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def work(self) -> int:
        """In records; large ones count as several."""
        return max(len(self), len(self) * self.record_bytes * SPLIT_RECORDS // SPLIT_BYTES)


# What a task reads, one after the other.
Ranges = tuple[Range, ...]


def share(limit: int, sizes: Mapping[K, int], turn: int = 0) -> dict[K, int]:
    """Divides a limit among queues; all of it is given out, to no queue more than it holds.

    Each queue that is not empty gets one, so that none starves beside a long one, and the rest is divided
    in proportion to their lengths. A limit that is too small for that goes to the queues from number `turn`
    on, in a cycle: if the turn grows by what is given out, every queue is served within one cycle.
    """
    if sum(sizes.values()) <= limit:
        return dict(sizes)
    keys = list(sizes)
    first = turn % len(keys)
    waiting = [key for key in keys[first:] + keys[:first] if sizes[key]]
    shares = dict.fromkeys(sizes, 0) | dict.fromkeys(waiting[:limit], 1)
    rest = limit - len(waiting)
    if rest > 0:
        more = _in_proportion(rest, {key: sizes[key] - 1 for key in keys if sizes[key]})
        for key, count in more.items():
            shares[key] += count
    return shares


def _in_proportion(limit: int, sizes: Mapping[K, int]) -> dict[K, int]:
    """The share of each partition, when the limit is less than all that waits."""
    total = sum(sizes.values())
    shares = {key: size * limit // total for key, size in sizes.items()}
    left = limit - sum(shares.values())
    # The largest remainders first; among equals in the order of the keys, so that it can be repeated.
    for key in sorted(sizes, key=lambda one: -(sizes[one] * limit % total))[:left]:
        shares[key] += 1
    return shares


def divide(
    ranges: Sequence[Range], min_partitions: int | None, max_records: int | None
) -> list[Ranges]:
    """The tasks for these ranges, in the same order. Empty ranges vanish.

    If the options set a number of tasks or their size, each piece is a task. If not, large ranges are cut
    into pieces and small ones share a task.
    """
    # Options may put an end before its beginning: that is nothing to read.
    ranges = [one for one in ranges if one.start < one.end]
    if min_partitions is None and max_records is None:
        counts = [min(max(1, one.work // SPLIT_RECORDS), len(one)) for one in ranges]
        return _together(_pieces(ranges, counts))
    counts = [1 if max_records is None else -(-len(one) // max_records) for one in ranges]
    if min_partitions is not None and ranges:
        total = sum(len(one) for one in ranges)
        for number, one in enumerate(ranges):
            # Rounded up: together they are never fewer than asked for, while there are records.
            wanted = -(-len(one) * min_partitions // total)
            counts[number] = max(counts[number], min(wanted, len(one)))
    return [(piece,) for piece in _pieces(ranges, counts)]


def _pieces(ranges: Sequence[Range], counts: Sequence[int]) -> list[Range]:
    return [piece for one, count in zip(ranges, counts, strict=True) for piece in _cut(one, count)]


def _together(pieces: Sequence[Range]) -> list[Ranges]:
    """Pieces end to end, and equal tasks beside them: a piece is of the task where its middle is."""
    total = sum(one.work for one in pieces)
    size = min(max(total // SHARED_TASKS, SHARED_RECORDS), SPLIT_RECORDS)
    count = max(1, total // size)
    tasks: dict[int, list[Range]] = {}
    before = 0
    for one in pieces:
        task = (2 * before + one.work) * count // (2 * total)
        tasks.setdefault(task, []).append(one)
        before += one.work
    return [tuple(one) for one in tasks.values()]


def _cut(whole: Range, count: int) -> list[Range]:
    size = len(whole)
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [replace(whole, start=edges[number], end=edges[number + 1]) for number in range(count)]
