"""Views on stored batches: columns, rows, limits, and bodies whose writer lied."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kit.records import SOME_ROWS, Row, build, rows_of, stored, view_batch

from penstock.log.batch.format import (
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_OFFSETS,
    FLAG_ZSTD,
    KNOWN_FLAGS,
    Batch,
    BatchError,
    encode_values,
)
from penstock.log.batch.view import BatchView, view_appended


def view_of(rows: list[Row], base: int = 0, offsets: list[int] | None = None) -> BatchView:
    return view_batch(stored(build(rows, offsets), base), 0)


@given(SOME_ROWS, st.data())
def test_every_column_comes_back_for_any_rows(rows: list[Row], data: st.DataObject) -> None:
    base = data.draw(st.integers(0, 1 << 40))
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    view = view_of(rows, base)
    part = view.rows(first, last)
    assert rows_of([view]) == rows
    assert rows_of([part]) == rows[first:last]
    assert len(part) == last - first
    assert [part.offset_of(row) for row in range(first, last)] == list(
        range(base + first, base + last)
    )


@given(SOME_ROWS, st.binary(max_size=64), st.binary(max_size=64))
def test_neighbours_are_not_seen(rows: list[Row], before: bytes, after: bytes) -> None:
    before += bytes(-len(before) % 8)
    data = before + stored(build(rows)) + after
    assert rows_of([view_batch(data, len(before))]) == rows


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(0, 120))
def test_offsets_with_gaps(steps: list[int], wanted: int) -> None:
    offsets: list[int] = []
    for step in steps:
        offsets.append((offsets[-1] if offsets else 9) + step)
    view = view_of([Row(b"v")] * len(steps), offsets[0], offsets)
    view.check_columns()
    assert [record.offset for record in view.records()] == offsets
    assert (view.first_offset(), view.next_offset()) == (offsets[0], offsets[-1] + 1)
    assert view.row_at(wanted) == sum(offset < wanted for offset in offsets)


@given(SOME_ROWS, st.integers(0, 200))
def test_rows_within_a_limit(rows: list[Row], limit: int) -> None:
    view = view_of(rows)
    sizes = [
        len(row.value) + len(row.key or b"") + sum(len(n) + len(c) for n, c in row.headers)
        for row in rows
    ]
    assert [view.payload_bytes(row, row + 1) for row in range(len(rows))] == sizes
    fits = max(count for count in range(len(rows) + 1) if sum(sizes[:count]) <= limit)
    assert view.rows_within(limit) == fits


@given(SOME_ROWS, st.integers(0, (1 << 63) - 1))
def test_expired_rows_are_left_out(rows: list[Row], now_us: int) -> None:
    runs = view_of(rows).live(now_us)
    assert rows_of(runs) == [row for row in rows if not 0 < row.expiry_us <= now_us]
    assert all(len(run) for run in runs)


def test_a_record_expires_at_its_expiry() -> None:
    view = view_of([Row(b"a", expiry_us=10), Row(b"b")])
    assert [len(view.live(now)) and rows_of(view.live(now))[0].value for now in (9, 10)] == [
        b"a",
        b"b",
    ]


def test_row_at_time_finds_the_first_at_or_after() -> None:
    view = view_of([Row(b"", time) for time in (5, 3, 9)])
    assert [view.row_at_time(time) for time in (0, 3, 5, 6, 9, 10)] == [0, 0, 0, 2, 2, 3]


def test_a_view_of_an_appended_batch_equals_the_stored_one() -> None:
    batch = build([Row(b"v", 3, b"k", ((b"n", b"c"),), 9)])
    assert rows_of([view_appended(batch, 5)]) == rows_of([view_batch(stored(batch, 5), 0)])
    assert view_appended(batch, 5).first_offset() == 5


def test_a_record_shows_what_it_is() -> None:
    assert (
        repr(view_of([Row(b"v", key=b"k")], 4).record(0))
        == "Record(offset=4, key=b'k', value=b'v')"
    )


def touch_everything(data: bytes) -> None:
    view = view_batch(data, 0)
    view.records()
    view.values()
    view.live(1 << 40)
    view.rows_within(100)
    view.row_at(view.base_offset + 1)
    view.check_columns()


@given(
    st.binary(max_size=400), st.integers(1, 40), st.integers(0, KNOWN_FLAGS), st.integers(0, 900)
)
def test_any_body_parses_or_raises_our_error(body: bytes, count: int, flags: int, raw: int) -> None:
    """The checksum is right, the columns are whatever somebody wrote."""
    body += bytes(-len(body) % 8)
    data = stored(Batch(body, count, flags, 0, 0, raw), 7)
    try:
        touch_everything(data)
    except BatchError:
        return
    assert len(view_batch(data, 0).records()) == count


@given(SOME_ROWS, st.data())
def test_any_change_of_a_body_parses_or_raises_our_error(
    rows: list[Row], data: st.DataObject
) -> None:
    batch = build(rows)
    body = bytearray(batch.body)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    changed = Batch(bytes(body), batch.count, batch.flags, 0, 0)
    try:
        touch_everything(stored(changed))
    except BatchError as error:
        assert error.reason


def packed(content: bytes, raw_length: int, count: int = 1) -> bytes:
    squeezed = zstandard.ZstdCompressor().compress(content)
    squeezed += bytes(-len(squeezed) % 8)
    return stored(Batch(squeezed, count, FLAG_ZSTD, 0, 0, raw_length))


def test_a_small_frame_that_claims_to_be_small_and_is_not() -> None:
    bomb = bytes(200 * 1024 * 1024)
    for raw_length in (0, 64, (1 << 32) - 1):
        with pytest.raises(BatchError, match="raw length"):
            view_batch(packed(bomb, raw_length), 0)


def test_a_packed_body_that_is_no_zstd() -> None:
    with pytest.raises(BatchError, match="zstd"):
        view_batch(stored(Batch(b"rubbish!" * 4, 1, FLAG_ZSTD, 0, 0, 32)), 0)


def test_columns_may_not_reach_into_the_next_batch() -> None:
    inner = encode_values([b"x" * 40], 0)
    short = Batch(inner.body[:16], 1, 0, 0, 0)
    with pytest.raises(BatchError, match="past the end"):
        view_batch(stored(short) + stored(inner), 0)


@pytest.mark.parametrize(
    ("rows", "flag", "place"),
    [
        ([Row(b"aa"), Row(b"bb"), Row(b"cc")], 0, 4),
        ([Row(b"", key=b"aa"), Row(b"", key=b"bb"), Row(b"", key=b"cc")], FLAG_KEYS, 20),
        ([Row(b"", headers=((b"a", b""),)) for _ in range(3)], FLAG_HEADERS, 20),
        ([Row(b"", headers=((b"a", b""),)) for _ in range(3)], FLAG_HEADERS, 36),
        ([Row(b"", headers=((b"a", b""),)) for _ in range(3)], FLAG_HEADERS, 60),
    ],
)
@pytest.mark.parametrize("number", [-1, 1 << 30])
def test_check_columns_finds_offsets_that_do_not_rise(
    rows: list[Row], flag: int, place: int, number: int
) -> None:
    batch = build(rows)
    assert batch.flags == flag
    body = bytearray(batch.body)
    body[place : place + 4] = number.to_bytes(4, "little", signed=True)
    with pytest.raises(BatchError):
        view_batch(stored(Batch(bytes(body), 3, flag, 0, 0)), 0).check_columns()


@pytest.mark.parametrize("offsets", [[5, 4, 9], [5, 5, 9]])
def test_check_columns_finds_record_offsets_that_do_not_rise(offsets: list[int]) -> None:
    batch = build([Row(b"v")] * 3, offsets)
    assert batch.flags == FLAG_OFFSETS
    with pytest.raises(BatchError, match="does not rise"):
        view_batch(stored(batch, 5), 0).check_columns()
