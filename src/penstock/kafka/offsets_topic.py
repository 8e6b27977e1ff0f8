"""The records of Kafka's own topic `__consumer_offsets`, as far as they are committed offsets. Decodes,
reads nothing.

key     i16 version 0 or 1, string group, string topic, i32 partition; other versions are other records
value   i16 version, i64 offset, then by version
        0, 2    string metadata, i64 time
        1       string metadata, i64 time, i64 expiry
        3       i32 leader epoch, string metadata, i64 time
        4       i32 leader epoch, compact string metadata, i64 time, tagged fields
string  i16 length, bytes; -1 is null. compact: varint length + 1, 0 is null. time in milliseconds
"""

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
OFFSET_KEYS: Final = (0, 1)


@dataclass(frozen=True, slots=True)
class Committed:
    """`offset` is None where the commit was taken back."""

    group: str
    topic: str
    partition: int
    offset: int | None
    time_ms: int


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, layout: Struct) -> int:
        (found,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return int(found)

    def text(self) -> str:
        return self._bytes(self.number(_I16)).decode("utf-8", "replace")

    def compact_text(self) -> str:
        size = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._bytes(size - 1).decode("utf-8", "replace")

    def _bytes(self, size: int) -> bytes:
        found = self.data[self.at : self.at + max(size, 0)]
        self.at += max(size, 0)
        return found


def decode(key: bytes | None, value: bytes | None) -> Committed | None:
    """None for records of another kind, and of a version that is not known."""
    try:
        return _decoded(key or b"", value)
    except (StructError, IndexError):
        return None


def _decoded(key: bytes, value: bytes | None) -> Committed | None:
    place = _Cursor(key)
    if place.number(_I16) not in OFFSET_KEYS:
        return None
    group, topic, partition = place.text(), place.text(), place.number(_I32)
    if value is None:
        return Committed(group, topic, partition, None, 0)
    content = _Cursor(value)
    version, offset = content.number(_I16), content.number(_I64)
    if version > 4:
        return None
    if version >= 3:
        content.number(_I32)
    if version == 4:
        content.compact_text()
    else:
        content.text()
    return Committed(group, topic, partition, offset, content.number(_I64))
