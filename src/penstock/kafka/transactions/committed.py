"""The names of committed transactions in memory: many names in little space.

A stream commits a transaction for every batch, named by query and number. Some time after its commit a name
that ends with a number becomes part of a range of such names; how many rows it had is forgotten then. Every
gateway builds this anew from the marks in Kafka. Not thread-safe: the journal is.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

# As long as clients may repeat calls for a transaction, all is known; after that its name is enough.
FOLDED_AFTER_US: Final = 3600 * 1_000_000

# The longest number at the end, without zeros before it, that fits 64 bits: stem + number is the name.
_NUMBERED: Final = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Committed:
    """`rows`: as the commit has told; None where it has not, or it is long ago."""

    rows: int | None
    time_us: int


@dataclass(slots=True)
class _Range:
    first: int
    last: int
    time_us: int


class CommittedNames:
    """A range is as young as its youngest name."""

    def __init__(self) -> None:
        # In the order of their commits, nearly: those of several gateways may be mixed.
        self._recent: dict[str, Committed] = {}
        self._ranges: dict[str, list[_Range]] = {}

    def __len__(self) -> int:
        """Entries that take memory."""
        return len(self._recent) + sum(map(len, self._ranges.values()))

    def add(self, name: str, one: Committed) -> None:
        self._recent[name] = one

    def get(self, name: str) -> Committed | None:
        found = self._recent.get(name)
        if found is not None or (parts := _split(name)) is None:
            return found
        stem, number = parts
        ranges = self._ranges.get(stem, [])
        at = bisect_right(ranges, number, key=lambda one: one.first) - 1
        if at >= 0 and number <= ranges[at].last:
            return Committed(None, ranges[at].time_us)
        return None

    def tidy(self, now_us: int, memory_us: int | None) -> None:
        """Folds what is old, forgets what is older than the memory."""
        for name, one in [*self._recent.items()]:
            if memory_us is not None and one.time_us < now_us - memory_us:
                del self._recent[name]
            elif one.time_us < now_us - FOLDED_AFTER_US and (parts := _split(name)) is not None:
                del self._recent[name]
                self._fold(*parts, one.time_us)
        if memory_us is None:
            return
        for stem, ranges in [*self._ranges.items()]:
            self._ranges[stem] = [one for one in ranges if one.time_us >= now_us - memory_us]
            if not self._ranges[stem]:
                del self._ranges[stem]

    def _fold(self, stem: str, number: int, time_us: int) -> None:
        ranges = self._ranges.setdefault(stem, [])
        at = bisect_right(ranges, number, key=lambda one: one.first)
        before = ranges[at - 1] if at else None
        after = ranges[at] if at < len(ranges) else None
        if before is not None and number <= before.last + 1:
            before.last = max(before.last, number)
            before.time_us = max(before.time_us, time_us)
        elif after is not None and after.first == number + 1:
            after.first = number
            after.time_us = max(after.time_us, time_us)
            return
        else:
            ranges.insert(at, _Range(number, number, time_us))
            return
        if after is not None and after.first == before.last + 1:
            before.last = after.last
            before.time_us = max(before.time_us, after.time_us)
            del ranges[at]


def _split(name: str) -> tuple[str, int] | None:
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found is not None else None
