"""Sets of offsets against Python's own sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.tables.offsets import CHUNK, OffsetSet

# Around the edges of chunks, where it matters.
OFFSETS = st.one_of(
    st.integers(0, 40), st.integers(CHUNK - 5, CHUNK + 5), st.integers(5 * CHUNK, 5 * CHUNK + 3)
)


@given(st.lists(st.lists(OFFSETS, max_size=20), max_size=6))
def test_it_is_a_set_that_counts_what_came_again(parts: list[list[int]]) -> None:
    found, plain, doubles = OffsetSet(), set[int](), list[int]()
    for part in parts:
        found.add(np.array(part, np.int64))
        for one in part:
            if one in plain:
                doubles.append(one)
            plain.add(one)
    assert found.count == len(plain) and found.last == max(plain, default=-1)
    assert (found.doubles, found.first_double) == (len(doubles), min(doubles, default=None))
    asked = np.arange(0, CHUNK + 40, dtype=np.int64)
    assert set(asked[found.has(asked)].tolist()) == {one for one in plain if one < CHUNK + 40}
    listed = [int(one) for part in found.arrays(10) for one in part]
    assert listed == sorted(one for one in plain if one >= 10)


def test_a_long_row_takes_little_memory() -> None:
    found = OffsetSet()
    for start in range(0, 3_000_000, 250_000):
        found.add(np.arange(start, start + 250_000, dtype=np.int64))
    assert found.count == 3_000_000 and found.doubles == 0
    assert sum(len(chunk) for chunk in found._chunks.values()) <= CHUNK // 8
    assert found.has(np.array([0, 2_999_999, 3_000_000])).tolist() == [True, True, False]
