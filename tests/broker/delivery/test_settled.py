"""Settled offsets as ranges, against a plain set of numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.delivery.settled import MAX_STORED_RANGES, Settled, union

END = 40
RANGES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=30)


def expand(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


def build(floor: int, ranges: list[tuple[int, int]]) -> tuple[Settled, set[int]]:
    settled = Settled(floor)
    for start, end in ranges:
        settled.add(start, end)
    return settled, set(range(floor)) | expand(ranges)


@given(st.integers(0, 10), RANGES, st.integers(0, END + 5))
def test_what_is_open_is_what_was_not_added(
    floor: int, ranges: list[tuple[int, int]], end: int
) -> None:
    settled, model = build(floor, ranges)
    opened = settled.open_ranges(end)
    assert expand(opened) == set(range(end)) - model
    assert opened == union(opened), "sorted, and none touches another"


@given(st.integers(0, 10), RANGES)
def test_the_floor_is_the_first_open_offset(floor: int, ranges: list[tuple[int, int]]) -> None:
    settled, model = build(floor, ranges)
    assert settled.floor == min(set(range(END + 2)) - model)


@given(st.integers(0, 10), RANGES)
def test_encoding_keeps_everything_and_has_no_empty_ranges(
    floor: int, ranges: list[tuple[int, int]]
) -> None:
    settled, _ = build(floor, ranges)
    numbers = settled.encode()
    assert numbers == sorted(set(numbers)), "the floor and all ends rise, so no range is empty"
    again = Settled.decode(numbers)
    assert again.encode() == numbers
    assert again.open_ranges(END) == settled.open_ranges(END)


def test_too_many_ranges_are_not_written_down_all() -> None:
    settled = Settled(0)
    for number in range(MAX_STORED_RANGES + 10):
        settled.add(2 * number + 1, 2 * number + 2)
    stored = Settled.decode(settled.encode())
    end = 2 * MAX_STORED_RANGES + 30
    # What is left out is open again: delivered twice, never lost.
    assert expand(stored.open_ranges(end)) > expand(settled.open_ranges(end))
    assert len(settled.encode()) == 1 + 2 * MAX_STORED_RANGES


@given(RANGES)
def test_union(ranges: list[tuple[int, int]]) -> None:
    proper = [(start, end) for start, end in ranges if start < end]
    merged = union(proper)
    assert expand(merged) == expand(proper)
    assert all(left[1] < right[0] for left, right in pairwise(merged))
