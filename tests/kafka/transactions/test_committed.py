"""Names of committed transactions in memory: found again, in little space, forgotten in the end."""

import pytest

from penstock.kafka.transactions.committed import FOLDED_AFTER_US, Committed, CommittedNames

LATER_US = 10 + FOLDED_AFTER_US + 1


@pytest.mark.parametrize(
    "order", [range(100), reversed(range(100)), [*range(0, 100, 2), *range(1, 100, 2)]]
)
def test_a_series_becomes_one_range(order: range) -> None:
    names = CommittedNames()
    for number in order:
        names.add(f"copy-{number}", Committed(number, 10))
    found = names.get("copy-7")
    assert found == Committed(7, 10)
    names.tidy(LATER_US, None)
    assert len(names) == 1
    assert names.get("copy-0") == names.get("copy-99") == Committed(None, 10)
    for other in ("copy-100", "copy-07", "copy-", "cop-7"):
        assert names.get(other) is None


def test_gaps_stay_gaps() -> None:
    names = CommittedNames()
    for number in (1, 2, 5, 7, 8):
        names.add(f"{number}", Committed(None, 10))
    names.add("plain", Committed(3, 10))
    names.tidy(LATER_US, None)
    assert len(names) == 4
    assert [number for number in range(10) if names.get(f"{number}")] == [1, 2, 5, 7, 8]
    assert names.get("plain") == Committed(3, 10)


def test_forgotten_in_the_end() -> None:
    names = CommittedNames()
    names.add("old", Committed(1, 10))
    names.add("n-1", Committed(1, 10))
    names.tidy(LATER_US, LATER_US)
    names.add("n-2", Committed(1, LATER_US))
    names.tidy(LATER_US + 1, LATER_US)
    assert names.get("old") is not None
    names.tidy(2 * LATER_US, LATER_US)
    assert names.get("old") is None
    # A range is as young as its youngest name.
    names.add("n-3", Committed(1, 2 * LATER_US))
    assert names.get("n-3") is not None
    names.tidy(9 * LATER_US, LATER_US)
    assert len(names) == 0
