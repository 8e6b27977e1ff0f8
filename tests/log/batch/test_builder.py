"""The builder: just the columns that are needed, sizes, limits, copying stored rows."""

import pytest
from hypothesis import given
from kit.records import SOME_ROWS, Row, build, rows_of, stored, view_batch

from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import (
    FLAG_EXPIRIES,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_OFFSETS,
    FLAG_TIMES,
    MAX_BATCH_BYTES,
    BatchError,
)


@pytest.mark.parametrize(
    ("rows", "flags"),
    [
        ([Row(b"a", 5), Row(b"b", 5)], 0),
        ([Row(b"a", key=b""), Row(b"b")], FLAG_KEYS),
        ([Row(b"a"), Row(b"b", headers=((b"", b""),))], FLAG_HEADERS),
        ([Row(b"a", 5), Row(b"b", 6)], FLAG_TIMES),
        ([Row(b"a"), Row(b"b", expiry_us=1)], FLAG_EXPIRIES),
    ],
)
def test_only_columns_that_are_needed(rows: list[Row], flags: int) -> None:
    batch = build(rows)
    assert batch.flags == flags
    assert rows_of([view_batch(stored(batch), 0)]) == rows


def test_an_empty_key_is_not_a_missing_key() -> None:
    view = view_batch(stored(build([Row(b"", key=b""), Row(b"", key=None), Row(b"", key=b"k")])), 0)
    assert [view.key(row) for row in range(3)] == [b"", None, b"k"]


@pytest.mark.parametrize(("offsets", "flag"), [([7, 8, 9], 0), ([7, 9, 10], FLAG_OFFSETS)])
def test_offsets_are_stored_where_they_have_gaps(offsets: list[int], flag: int) -> None:
    assert build([Row(b"")] * 3, offsets).flags == flag


def test_times_of_the_batch() -> None:
    batch = build([Row(b"", 5), Row(b"", 9), Row(b"", 1)])
    assert (batch.first_time_us, batch.max_time_us) == (5, 9)


@given(SOME_ROWS)
def test_copied_rows_are_the_same_and_keep_their_offsets(rows: list[Row]) -> None:
    view = view_batch(stored(build(rows), 20), 0)
    kept = list(range(0, len(rows), 2))
    builder = BatchBuilder()
    for row in kept:
        builder.add_row(view, row)
    assert len(builder) == len(kept)
    assert (builder.first_offset(), builder.last_offset()) == (20, 20 + kept[-1])
    copy = view_batch(stored(builder.build(), builder.first_offset()), 0)
    assert rows_of([copy]) == [rows[row] for row in kept]
    assert [record.offset for record in copy.records()] == [20 + row for row in kept]


@given(SOME_ROWS)
def test_the_size_is_never_less_than_the_body(rows: list[Row]) -> None:
    builder = BatchBuilder()
    for row in rows:
        builder.add(row.value, row.time_us, row.key, list(row.headers), row.expiry_us, 0)
    # Each of the ten columns may end in padding and has one offset more than rows.
    assert len(builder.build().body) <= builder.size() + 10 * 12


def test_nothing_is_no_batch() -> None:
    with pytest.raises(BatchError, match="at least one record"):
        BatchBuilder().build()


def test_too_much_is_no_batch() -> None:
    builder = BatchBuilder()
    builder.add(bytes(MAX_BATCH_BYTES), 0)
    with pytest.raises(BatchError, match="over 67108864 bytes"):
        builder.build()
