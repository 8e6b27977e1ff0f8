"""Names of records that are made of parts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.records import join_name, prefix_of, split_name


@given(st.lists(st.lists(st.text(), min_size=1, max_size=3), unique_by=tuple))
def test_names_of_parts(lists: list[list[str]]) -> None:
    joined = [join_name(*parts) for parts in lists]
    assert len(set(joined)) == len(lists)
    assert [split_name(name) for name in joined] == lists
    for name, parts in zip(joined, lists, strict=True):
        assert name.startswith(prefix_of(*parts[:-1]))
        assert [n for n in joined if n.startswith(prefix_of(*parts))] == [
            join_name(*other)
            for other in lists
            if other[: len(parts)] == parts and len(other) > len(parts)
        ]
