"""Sets of offsets: which records of a partition a table has. Pure; needs numpy, which comes with Spark.

A set of fifty million offsets in a row takes kilobytes: it is kept in chunks of 65,536, a full one as a
mark, any other as one bit for each offset.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK: Final = 1 << 16
_FULL: Final = b""


@dataclass(slots=True)
class OffsetSet:
    """`count`: how many there are. `doubles`: how many were added again, and `first_double` the lowest."""

    count: int = 0
    doubles: int = 0
    first_double: int | None = None
    last: int = -1
    _chunks: dict[int, bytes] = field(default_factory=dict)

    def add(self, offsets: "NDArray[np.int64]") -> None:
        """In any order. One that is there already counts as a double."""
        import numpy as np

        if not len(offsets):
            return
        found = offsets
        if not (np.diff(found) > 0).all():  # most batches are in order
            found = np.sort(found)
            again = np.diff(found, prepend=found[0] - 1) == 0
            self._note_doubles(found[again])
            found = found[~again]
        self.last = max(self.last, int(found[-1]))
        for number, part in _by_chunk(found):
            bits = self._bits(number)
            self._note_doubles(part[bits[part % CHUNK]])
            before = int(bits.sum())
            bits[part % CHUNK] = True
            after = int(bits.sum())
            self.count += after - before
            self._chunks[number] = _FULL if after == CHUNK else np.packbits(bits).tobytes()

    def has(self, offsets: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """For each of these, which must be sorted, whether it is there."""
        import numpy as np

        found = [self._bits(number)[part % CHUNK] for number, part in _by_chunk(offsets)]
        return np.concatenate(found) if found else np.zeros(0, np.bool_)

    def arrays(self, first: int = 0) -> "Iterator[NDArray[np.int64]]":
        """All of them from `first` on, in order, a chunk at a time."""
        import numpy as np

        for number in sorted(self._chunks):
            part = np.flatnonzero(self._bits(number)).astype(np.int64) + number * CHUNK
            part = part[part >= first]
            if len(part):
                yield part

    def _bits(self, number: int) -> "NDArray[np.bool_]":
        import numpy as np

        packed = self._chunks.get(number)
        if packed is None:
            return np.zeros(CHUNK, np.bool_)
        if packed == _FULL:
            return np.ones(CHUNK, np.bool_)
        return np.unpackbits(np.frombuffer(packed, np.uint8)).view(np.bool_)

    def _note_doubles(self, again: "NDArray[np.int64]") -> None:
        if len(again):
            self.doubles += len(again)
            lowest = int(again.min())
            if self.first_double is None or lowest < self.first_double:
                self.first_double = lowest


# By topic and partition.
Positions = dict[tuple[str, int], OffsetSet]


def _by_chunk(offsets: "NDArray[np.int64]") -> "Iterator[tuple[int, NDArray[np.int64]]]":
    """Sorted offsets, cut where a chunk ends."""
    import numpy as np

    if not len(offsets):
        return
    numbers = offsets // CHUNK
    edges = np.flatnonzero(np.diff(numbers)) + 1
    for part in np.split(offsets, edges):
        yield int(part[0]) // CHUNK, part
