"""FNV-1a of keys: the published test values, and the column form equal to the single form."""

from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.records import partition_of

from penstock.log.batch.key_partition import FNV_OFFSET, partitions_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"", FNV_OFFSET), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968), (b"b", 0xE70C2DE5)],
)
def test_known_hashes(key: bytes, hashed: int) -> None:
    for partitions in (7, 10_000, 2**31 - 1):
        found = partitions_of(pack("<2i", 0, len(key)), key, partitions)
        assert unpack("<i", found) == (hashed % partitions,)
        assert partition_of(key, partitions) == hashed % partitions


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 10_000), st.integers(0, 5))
def test_a_column_is_as_its_keys(keys: list[bytes], partitions: int, before: int) -> None:
    ends = [before]
    for key in keys:
        ends.append(ends[-1] + len(key))
    offsets = pack(f"<{len(ends)}i", *ends)
    found = partitions_of(offsets, bytes(before) + b"".join(keys), partitions)
    expected = tuple(partition_of(key, partitions) for key in keys)
    assert unpack(f"<{len(keys)}i", found) == expected
