"""What stands in the topic: keys that differ, and bytes that nobody of us has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.metadata.layout import (
    FORMAT,
    MARK_KEY,
    MAX_SPACE_BYTES,
    Mark,
    NotOurs,
    mark_value,
    read_mark,
    record_key,
    split_key,
    version_headers,
    version_of,
)
from penstock.log.errors import TooLarge

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(TEXTS, TEXTS), unique=True))
def test_every_space_and_name_has_a_key_of_its_own(pairs: list[tuple[str, str]]) -> None:
    keys = [record_key(space, name) for space, name in pairs]
    assert len(set(keys)) == len(pairs) and MARK_KEY not in keys
    assert [split_key(key) for key in keys] == pairs


@given(st.binary())
def test_any_key_is_read_or_refused(key: bytes) -> None:
    try:
        space, name = split_key(key)
    except NotOurs:
        return
    assert record_key(space, name) == key


def test_the_layout_is_as_the_table_says() -> None:
    assert record_key("ab", "\u00fc") == b"\x01\x00\x02ab\xc3\xbc"
    assert MARK_KEY == b"\x00"
    assert version_headers(258) == [("version", bytes(6) + b"\x01\x02")]
    assert mark_value(Mark(3, b"i" * 16)) == b"\x00\x01" + bytes(7) + b"\x03" + b"i" * 16


def test_marks() -> None:
    mark = Mark(2**63, bytes(range(16)))
    assert read_mark(mark_value(mark)) == mark and mark.format == FORMAT
    newer = Mark(7, bytes(16), FORMAT + 1)
    assert read_mark(mark_value(newer) + b"more") == newer
    for bad in (None, b"", mark_value(mark)[:-1]):
        with pytest.raises(NotOurs):
            read_mark(bad)


@pytest.mark.parametrize(
    "headers", [[], [("version", b"")], [("version", None)], [("other", bytes(8))]]
)
def test_a_record_without_a_version_is_not_ours(
    headers: list[tuple[str, bytes | str | None]],
) -> None:
    with pytest.raises(NotOurs):
        version_of(headers)
    assert version_of([*headers, *version_headers(5)]) == 5


def test_the_name_of_a_space_has_a_limit() -> None:
    assert split_key(record_key("s" * MAX_SPACE_BYTES, "")) == ("s" * MAX_SPACE_BYTES, "")
    with pytest.raises(TooLarge):
        record_key("s" * (MAX_SPACE_BYTES + 1), "")
