"""The sparse index of one segment: from an offset or a time to a place in the file.

Kept in memory for the active segment, written once at seal. Always rebuildable from the segment, so a
missing or damaged index file costs time, never data. Does not read segments: scan.py does.
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from crc32c import crc32c

# One entry for about this many bytes: a look-up then walks at most one such stretch, which costs
# microseconds, and 256 MiB need 4,096 entries of 24 bytes.
INDEX_STRIDE_BYTES = 64 * 1024

# The file, little-endian:
#    0 4s magic      4 u32 crc32c of all that follows
#    8 i64 segment size    16 i64 next offset    24 i64 max time    32 i64 entries
#   40 offsets i64[entries], positions i64[entries], earlier max times i64[entries]
_PREFIX = Struct("<4sI")
_SUMMARY = Struct("<qqqq")
_MAGIC = b"PSIX"
NO_TIME = -(1 << 63)


class IndexDamaged(Exception):
    """The index file cannot be used; rebuild it from its segment."""


class SparseIndex:
    """Entries in file order, and what is known of the segment as a whole."""

    def __init__(self, base_offset: int) -> None:
        self.size = 0
        self.next_offset = base_offset
        self.max_time_us = NO_TIME
        self._offsets = array("q")
        self._positions = array("q")
        # The highest time of all records before the entry: times need not rise in a log.
        self._earlier_max = array("q")

    def add(self, offset: int, position: int, length: int, next_offset: int, max_time: int) -> None:
        """Takes note of a batch at the end of the segment."""
        if not self._positions or position - self._positions[-1] >= INDEX_STRIDE_BYTES:
            self._offsets.append(offset)
            self._positions.append(position)
            self._earlier_max.append(self.max_time_us)
        self.size = position + length
        self.next_offset = next_offset
        self.max_time_us = max(self.max_time_us, max_time)

    def position_of(self, offset: int) -> int:
        """Where to start walking to find `offset`."""
        entry = bisect_right(self._offsets, offset) - 1
        return self._positions[entry] if entry >= 0 else 0

    def position_of_time(self, time_us: int) -> int:
        """Where to start walking to find the first record at `time_us` or later."""
        entry = bisect_left(self._earlier_max, time_us) - 1
        return self._positions[entry] if entry >= 0 else 0

    def encode(self) -> bytes:
        body = _SUMMARY.pack(self.size, self.next_offset, self.max_time_us, len(self._offsets))
        for column in (self._offsets, self._positions, self._earlier_max):
            body += column.tobytes()
        return _PREFIX.pack(_MAGIC, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes, base_offset: int, segment_size: int) -> "SparseIndex":
        """Raises IndexDamaged, also when the index was made for a segment of another size."""
        if len(data) < _PREFIX.size + _SUMMARY.size:
            raise IndexDamaged("too short")
        magic, checksum = _PREFIX.unpack_from(data)
        body = data[_PREFIX.size :]
        if magic != _MAGIC or crc32c(body) != checksum:
            raise IndexDamaged("checksum does not match")
        index = cls(base_offset)
        index.size, index.next_offset, index.max_time_us, entries = _SUMMARY.unpack_from(body)
        if index.size != segment_size:
            raise IndexDamaged(f"made for {index.size} bytes, the segment has {segment_size}")
        columns = array("q")
        columns.frombytes(body[_SUMMARY.size :])
        if len(columns) != 3 * entries:
            raise IndexDamaged("wrong number of entries")
        index._offsets = columns[:entries]
        index._positions = columns[entries : 2 * entries]
        index._earlier_max = columns[2 * entries :]
        return index
