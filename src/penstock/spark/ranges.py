"""Ranges of offsets: how a limit is shared among them, and how they are cut for parallel tasks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

# Without minPartitions and maxRecordsPerPartition: a task of this size is seconds of work, and a topic
# with one partition still keeps all cores busy. Ranges up to twice of it stay whole.
SPLIT_RECORDS: Final = 1_000_000

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition from `start` up to `end`, which is not part of it."""

    topic: str
    partition: int
    start: int
    end: int
    created_us: int

    def __len__(self) -> int:
        return self.end - self.start


def share(limit: int, sizes: Mapping[K, int]) -> dict[K, int]:
    """Divides a limit in proportion to what waits; all of it is given out, to nobody more than waits."""
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    shares = {key: size * limit // total for key, size in sizes.items()}
    left = limit - sum(shares.values())
    # The largest remainders first; among equals in the order of the keys, so that it can be repeated.
    for key in sorted(sizes, key=lambda one: -(sizes[one] * limit % total)):
        if not left:
            break
        if shares[key] < sizes[key]:
            shares[key] += 1
            left -= 1
    return shares


def split(
    ranges: Sequence[Range], min_partitions: int | None, max_records: int | None
) -> list[Range]:
    """Cuts ranges into pieces of about equal size, in the same order. Empty ranges vanish."""
    # Options may put an end before its beginning: that is nothing to read.
    ranges = [one for one in ranges if one.start < one.end]
    if min_partitions is None and max_records is None:
        return [piece for one in ranges for piece in _cut(one, max(1, len(one) // SPLIT_RECORDS))]
    counts = [1 if max_records is None else -(-len(one) // max_records) for one in ranges]
    if min_partitions is not None and ranges:
        total = sum(len(one) for one in ranges)
        for number, one in enumerate(ranges):
            # Rounded up: together they are never fewer than asked for, while there are records.
            wanted = -(-len(one) * min_partitions // total)
            counts[number] = max(counts[number], min(wanted, len(one)))
    return [piece for one, count in zip(ranges, counts, strict=True) for piece in _cut(one, count)]


def _cut(whole: Range, count: int) -> list[Range]:
    size = len(whole)
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [replace(whole, start=edges[number], end=edges[number + 1]) for number in range(count)]
