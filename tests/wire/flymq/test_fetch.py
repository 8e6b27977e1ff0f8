"""Replies to FETCH, encoded from the columns of real batches: both orders, keys, gaps, limits."""

import pytest
from conformance.flymq.peer import fetched, fetched_by_spec
from hypothesis import given
from hypothesis import strategies as st
from kit.records import Row, build

from penstock.log.batch.view import BatchView, view_appended
from penstock.wire.flymq.fetch import MESSAGE_OVERHEAD, REPLY_OVERHEAD, FetchReplyWriter
from penstock.wire.flymq.frames import SDK, SPEC

READ = {SPEC: fetched_by_spec, SDK: fetched}
both = pytest.mark.parametrize("dialect", [SPEC, SDK])
HUGE = 1 << 40


def add(writer: FetchReplyWriter, view: BatchView, first: int = 0, count: int | None = None) -> int:
    return writer.add_rows(
        view.buffer,
        view.value_offsets_at,
        view.values_at,
        view.key_offsets_at,
        view.keys_at,
        view.offsets_at,
        view.base_offset,
        first,
        len(view) - first if count is None else count,
    )


def viewed(rows: list[tuple[bytes | None, bytes]], base: int) -> BatchView:
    return view_appended(build([Row(value, 1, key) for key, value in rows]), base)


ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.binary(max_size=4)), st.binary(max_size=6)),
    min_size=1,
    max_size=8,
)


@given(
    dialect=st.sampled_from([SPEC, SDK]),
    batches=st.lists(ROWS, min_size=1, max_size=3),
    most=st.integers(1, 20),
    room=st.integers(0, 400),
    data=st.data(),
)
def test_as_many_as_fit(
    dialect: int, batches: list[list[tuple[bytes | None, bytes]]], most: int, room: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """By number and by bytes; one at least. Rows from anywhere in a batch."""
    writer = FetchReplyWriter(0x07, dialect, most, room)
    expected: list[tuple[int, bytes, bytes]] = []
    left = room - REPLY_OVERHEAD
    full = False
    base = 100
    for rows in batches:
        first = data.draw(st.integers(0, len(rows)))
        wanted = [(base + n, key or b"", value) for n, (key, value) in enumerate(rows)][first:]
        taken = 0
        for offset, key, value in wanted:
            cost = MESSAGE_OVERHEAD + len(key) + len(value)
            full = full or len(expected) >= most or (bool(expected) and cost > left)
            if full:
                break
            expected.append((offset, key, value))
            left -= cost
            taken += 1
        assert add(writer, viewed(rows, base), first) == taken
        base += 1_000
    assert writer.count == len(expected)
    frame = writer.finish(HUGE)
    assert frame[:4] == bytes((0xAF, 1, 0x07, 1)) and len(frame) == 8 + int.from_bytes(frame[4:8])
    assert READ[dialect](frame[8:]) == (expected, HUGE)
    assert writer.full and add(writer, viewed([(None, b"x")], 0)) == 0


@both
def test_offsets_with_gaps(dialect: int) -> None:
    """A compacted batch has a column of offsets."""
    offsets = [3, 7, 20]
    rows = [Row(b"v%d" % offset, 1, b"k") for offset in offsets]
    view = view_appended(build(rows, offsets), 3)
    writer = FetchReplyWriter(0x0B, dialect, 10, 1_000)
    assert add(writer, view, 1) == 2
    assert READ[dialect](writer.finish(21)[8:]) == ([(7, b"k", b"v7"), (20, b"k", b"v20")], 21)


@both
def test_the_largest_offset(dialect: int) -> None:
    writer = FetchReplyWriter(0x0B, dialect, 10, 1_000)
    assert READ[dialect](writer.finish((1 << 64) - 1)[8:]) == ([], (1 << 64) - 1)
