"""Which partition a key belongs to: FNV-1a, 32 bits, modulo the number of partitions.

The same key goes to the same partition whoever writes it. Hot: compiled by mypyc, runs uncompiled too.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i32_le
from mypy_extensions import i32, i64

FNV_OFFSET: Final = 2166136261
FNV_PRIME: Final = 16777619
_MASK: Final = 0xFFFFFFFF


def partition_of(key: bytes, partitions: i64) -> int:
    """For one key."""
    hashed: i64 = FNV_OFFSET
    for byte in key:
        hashed = ((hashed ^ i64(byte)) * FNV_PRIME) & _MASK
    return hashed % partitions


def partitions_of(offsets: bytes, keys: bytes, partitions: i64) -> bytes:
    """For a whole column: i32 offsets (one more than rows) into `keys`. Gives i32 little-endian."""
    rows: i64 = (len(offsets) >> 2) - 1
    found = BytesWriter()
    row: i64 = 0
    at: i64 = i64(read_i32_le(offsets, 0))
    while row < rows:
        row += 1
        end: i64 = i64(read_i32_le(offsets, 4 * row))
        hashed: i64 = FNV_OFFSET
        while at < end:
            hashed = ((hashed ^ i64(keys[at])) * FNV_PRIME) & _MASK
            at += 1
        write_i32_le(found, i32(hashed % partitions))
    return found.getvalue()
