"""How long one callback may keep the event loop, and a dictionary whose growth fits into it.

Everybody waits while a callback runs. Work that may be much is done in turns: it stops when its turn is
over and continues in another callback, behind the others. Nothing here knows the event loop.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from mypy_extensions import i64

# Of one callback. With the step that passes it and a collection of garbage it stays below 5 ms.
TURN_S: Final = 0.002

# When a turn ends, if that is no time.
NOT_LOOKED_YET: Final = 0.0
OVER: Final = -1.0

# Parts of a GrowingDict, a power of two. A dictionary that is full is copied into a larger one: 7 ms with
# 100,000 entries, a few microseconds with one part of them.
PARTS: Final = 256
# The bits of a hash that choose the part; the part itself looks at the lowest ones first.
PART_SHIFT: Final = 40

Key = TypeVar("Key")
Value = TypeVar("Value")


class Turn:
    """The time of one callback. It counts from the first look, so that short work needs no clock."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._ends_s = NOT_LOOKED_YET

    def begin(self) -> None:
        self._ends_s = NOT_LOOKED_YET

    def end(self) -> None:
        """Until the next one begins, it is over: for callbacks that have a turn of their own already."""
        self._ends_s = OVER

    def over(self) -> bool:
        if self._ends_s == OVER:
            return True
        now_s = self._clock_s()
        if self._ends_s == NOT_LOOKED_YET:
            self._ends_s = now_s + TURN_S
            return False
        return now_s >= self._ends_s


class GrowingDict(Generic[Key, Value]):
    """A dictionary for the event loop: no insertion copies all entries. Without the order of insertion.

    Keys need hashes whose higher bits differ, as those of texts do. Any thread may look; `len` is right
    where one thread makes all changes.
    """

    def __init__(self) -> None:
        self._parts: list[dict[Key, Value]] = [{} for _ in range(PARTS)]
        self._count = 0

    def _part(self, key: Key) -> dict[Key, Value]:
        bits: i64 = hash(key)
        return self._parts[(bits >> PART_SHIFT) & (PARTS - 1)]

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return key in self._part(key)

    def __getitem__(self, key: Key) -> Value:
        return self._part(key)[key]

    def get(self, key: Key) -> Value | None:
        return self._part(key).get(key)

    def __setitem__(self, key: Key, value: Value) -> None:
        part = self._part(key)
        before = len(part)
        part[key] = value
        self._count += len(part) - before

    def pop(self, key: Key) -> Value | None:
        """None when there is no such key."""
        part = self._part(key)
        before = len(part)
        value = part.pop(key, None)
        self._count += len(part) - before
        return value

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Other threads may change it meanwhile: each part is as it is when its turn comes."""
        for part in self._parts:
            yield from list(part.items())

    def values(self) -> Iterator[Value]:
        for part in self._parts:
            yield from list(part.values())

    def __iter__(self) -> Iterator[Key]:
        for part in self._parts:
            yield from list(part)
