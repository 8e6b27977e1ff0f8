"""The sparse index: where to start walking, its file, and what a damaged file gets."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.storage.index import INDEX_STRIDE_BYTES, NO_TIME, IndexDamaged, SparseIndex

BATCHES = st.lists(
    st.tuples(st.integers(8, 2 * INDEX_STRIDE_BYTES), st.integers(1, 50), st.integers(0, 1000)),
    min_size=1,
    max_size=40,
)


def index_of(
    batches: list[tuple[int, int, int]], base: int = 100
) -> tuple[SparseIndex, list[tuple[int, int, int]]]:
    """The index, and (offset, position, time) of every batch."""
    index = SparseIndex(base)
    places = []
    offset, position = base, 0
    for length, count, time_us in batches:
        places.append((offset, position, time_us))
        index.add(offset, position, length, offset + count, time_us)
        offset, position = offset + count, position + length
    return index, places


@given(BATCHES, st.integers(0, 2500))
def test_a_walk_starts_before_the_offset_and_within_one_stride(
    batches: list[tuple[int, int, int]], offset: int
) -> None:
    index, places = index_of(batches)
    start = index.position_of(offset)
    holder = max(bisect_right([o for o, _, _ in places], offset) - 1, 0)
    assert start in [position for _, position, _ in places]
    assert start <= places[holder][1] < start + INDEX_STRIDE_BYTES + 2 * INDEX_STRIDE_BYTES


@given(BATCHES, st.integers(-1, 1001))
def test_a_walk_for_a_time_misses_nothing(
    batches: list[tuple[int, int, int]], time_us: int
) -> None:
    index, places = index_of(batches)
    start = index.position_of_time(time_us)
    assert all(time < time_us for _, position, time in places if position < start)


@given(BATCHES)
def test_the_file_holds_everything(batches: list[tuple[int, int, int]]) -> None:
    index, places = index_of(batches)
    again = SparseIndex.decode(index.encode(), 100, index.size)
    assert again.encode() == index.encode()
    assert (again.size, again.next_offset) == (index.size, index.next_offset)
    assert again.max_time_us == max(time for _, _, time in places)
    assert [again.position_of(o) for o, _, _ in places] == [
        index.position_of(o) for o, _, _ in places
    ]


def test_an_empty_segment() -> None:
    index = SparseIndex.decode(SparseIndex(7).encode(), 7, 0)
    assert (index.size, index.next_offset, index.max_time_us) == (0, 7, NO_TIME)
    assert (index.position_of(7), index.position_of_time(0)) == (0, 0)


def test_entries_are_a_stride_apart() -> None:
    index, _ = index_of([(8192, 1, 0)] * 64)
    starts = {index.position_of(100 + batch) for batch in range(64)}
    assert starts == set(range(0, 64 * 8192, INDEX_STRIDE_BYTES))


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    index, _ = index_of([(INDEX_STRIDE_BYTES, 3, 5)] * 3)
    data = index.encode()
    for size in range(len(data)):
        with pytest.raises(IndexDamaged):
            SparseIndex.decode(data[:size], 100, index.size)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        with pytest.raises(IndexDamaged):
            SparseIndex.decode(bytes(damaged), 100, index.size)


def test_an_index_of_another_size_is_not_used() -> None:
    index, _ = index_of([(800, 3, 5)])
    with pytest.raises(IndexDamaged, match="made for 800 bytes, the segment has 808"):
        SparseIndex.decode(index.encode(), 100, 808)


@given(st.binary(max_size=200))
def test_any_bytes_raise_our_error(data: bytes) -> None:
    with pytest.raises(IndexDamaged):
        SparseIndex.decode(data, 0, 0)
