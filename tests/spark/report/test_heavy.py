"""Counters of the most frequent: exact while there are few, then too low by the slack at most."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.report.heavy import HeavyHitters


def test_few_are_exact() -> None:
    found: HeavyHitters[str] = HeavyHitters(4)
    found.add([("a", 2), ("b", 1)])
    found.add([("a", 3)])
    assert (found.counts(), found.slack) == ({"a": 5, "b": 1}, 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=300))
def test_bounds(counted: list[tuple[int, int]]) -> None:
    capacity = 5
    found: HeavyHitters[int] = HeavyHitters(capacity)
    exact: Counter[int] = Counter()
    for what, number in counted:
        found.add([(what, number)])
        exact[what] += number
    counts = found.counts()
    assert len(counts) <= capacity
    for what, number in exact.items():
        assert number - found.slack <= counts.get(what, 0) <= number
    # As Misra and Gries promise: nothing frequent is missed.
    assert found.slack <= exact.total() / (capacity + 1)
