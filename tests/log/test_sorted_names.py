"""Names in order: pages that begin anywhere."""

import pytest

from penstock.log.sorted_names import SortedNames


def test_pages_are_in_order_and_meet_no_name_twice() -> None:
    names = SortedNames(["b", "a"])
    for name in ("d", "c", "é", "aa"):
        names.add(name)
    assert names.page(None, 10) == ["a", "aa", "b", "c", "d", "é"]
    found: list[str] = []
    while page := names.page(found[-1] if found else None, 2):
        found += page
    assert found == names.page(None, 10)


@pytest.mark.parametrize(("after", "first"), [(None, "a"), ("", "a"), ("a", "c"), ("b", "c")])
def test_a_page_begins_behind_a_name_that_need_not_be_there(after: str | None, first: str) -> None:
    assert SortedNames(["a", "c", "d"]).page(after, 1) == [first]


def test_what_is_discarded_is_gone_and_twice_is_fine() -> None:
    names = SortedNames(["a", "b"])
    for _ in range(2):
        names.discard("a")
    names.discard("zz")
    assert names.page(None, 9) == ["b"]
