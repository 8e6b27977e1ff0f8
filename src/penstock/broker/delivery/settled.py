"""Which offsets of a partition are done with: everything below a floor, and ranges above it."""

from bisect import bisect_left, bisect_right

# Ranges that are written down. More means a consumer that acknowledges at random over a long backlog;
# what is left out is delivered again after a restart, which at-least-once allows.
MAX_STORED_RANGES = 10_000


class Settled:
    """Ranges are half open, sorted, and never touch each other or the floor."""

    __slots__ = ("_ends", "_starts", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        if start <= self.floor:
            self.floor = max(self.floor, end)
        else:
            first = bisect_left(self._ends, start)
            last = bisect_right(self._starts, end)
            if first < last:
                start = min(start, self._starts[first])
                end = max(end, self._ends[last - 1])
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]
        done = bisect_right(self._starts, self.floor)
        if done:
            self.floor = max(self.floor, self._ends[done - 1])
            del self._starts[:done]
            del self._ends[:done]

    @property
    def has_gaps(self) -> bool:
        """Whether something above the floor is settled too."""
        return bool(self._starts)

    def open_ranges(self, end: int) -> list[tuple[int, int]]:
        """What is not settled below `end`."""
        found = []
        position = self.floor
        for start, stop in zip(self._starts, self._ends, strict=True):
            if start >= end:
                break
            found.append((position, start))
            position = stop
        if position < end:
            found.append((position, end))
        return found

    def encode(self) -> list[int]:
        """The floor, then start and end of each range."""
        numbers = [self.floor]
        for start, end in zip(
            self._starts[:MAX_STORED_RANGES], self._ends[:MAX_STORED_RANGES], strict=True
        ):
            numbers += (start, end)
        return numbers

    @classmethod
    def decode(cls, numbers: list[int]) -> "Settled":
        settled = cls(numbers[0])
        for start, end in zip(numbers[1::2], numbers[2::2], strict=True):
            settled.add(start, end)
        return settled


def union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as sorted ranges that do not overlap."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
