"""From Arrow columns to batches: equal to the rows, whatever kind and slice the columns are."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.records import partition_of, record_batch

from penstock.log.batch.arrow import SCHEMA_WITH_HEADERS, join_views
from penstock.log.batch.arrow_append import batch_from_arrow, key_partitions, pieces
from penstock.log.batch.format import FLAG_HEADERS, FLAG_KEYS, BatchError
from penstock.log.batch.view import BatchView, view_appended

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BYTES = st.one_of(st.none(), st.binary(max_size=9))
PAIRS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES}), max_size=3)
ROWS = st.lists(st.tuples(BYTES, BYTES, st.one_of(st.none(), PAIRS)), min_size=1, max_size=20)
TIME_US = 77


def stored_view(values: pa.Array, keys: pa.Array | None, headers: pa.Array | None) -> BatchView:
    batch = batch_from_arrow(values, keys, headers, TIME_US)
    view = view_appended(batch, 5)
    view.check_columns()
    assert len(batch.body) % 8 == 0
    assert view.body_end == len(batch.body)
    return view


@given(ROWS, st.data())
def test_equal_to_the_rows(
    rows: list[tuple[bytes | None, bytes | None, list[dict[str, object]] | None]],
    data: st.DataObject,
) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first + 1, len(rows)))
    columns = [
        pa.array([row[number] for row in rows], kind).slice(first, last - first)
        for number, kind in enumerate((pa.binary(), pa.binary(), HEADERS))
    ]
    view = stored_view(columns[0], columns[1], columns[2])
    expected = [
        (value, key, [(str(h["key"]).encode(), h["value"] or b"") for h in headers or []])
        for value, key, headers in rows[first:last]
    ]
    assert [(r.value, r.key, r.headers) for r in view.records()] == expected
    assert {r.time_us for r in view.records()} == {TIME_US}
    # And back again.
    back = record_batch(view, "t", 0, headers=True)
    back.validate(full=True)
    assert back.column("value").to_pylist() == [value for value, _, _ in expected]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_every_kind_of_bytes(kind: pa.DataType) -> None:
    values = pa.array(["aa", "bb", "cc", "bb"]).cast(pa.binary())
    if pa.types.is_dictionary(kind):
        column = pa.array(["aa", "bb", "cc", "bb"]).dictionary_encode()
    elif pa.types.is_binary_view(kind):
        column = values.cast(pa.binary_view())
    elif "string" in str(kind):
        column = values.cast(pa.string()).cast(kind)
    else:
        column = values.cast(kind)
    view = stored_view(column.slice(1), column.slice(1), None)
    assert view.values() == [b"bb", b"cc", b"bb"]
    assert [record.key for record in view.records()] == [b"bb", b"cc", b"bb"]


def test_only_the_columns_that_are_needed() -> None:
    values = pa.array([b"a"])
    nothing = batch_from_arrow(values, pa.nulls(1, pa.binary()), pa.nulls(1, HEADERS), 0)
    assert nothing.flags == 0
    assert nothing.body == batch_from_arrow(values, None, None, 0).body
    full = batch_from_arrow(values, values, pa.array([[]], HEADERS), 0)
    assert full.flags == FLAG_KEYS | FLAG_HEADERS


def test_bytes_under_a_null_are_not_stored() -> None:
    keys = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\0\0\0\0\6\0\0\0\7\0\0\0"),
                         pa.py_buffer(b"secretk")],
    )  # fmt: skip
    assert keys.to_pylist() == [None, b"k"]
    batch = batch_from_arrow(keys, keys, None, 0)
    assert b"secret" not in batch.body
    assert [r.key for r in view_appended(batch, 0).records()] == [None, b"k"]


@pytest.mark.parametrize(
    ("values", "keys", "headers", "text"),
    [
        (pa.array([1]), None, None, "column value is int64"),
        (pa.array([b""]), pa.array([1.5]), None, "column key is double"),
        (pa.array([b""]), None, pa.array([b"h"]), "column headers is binary"),
        (pa.array([], pa.binary()), None, None, "at least one record"),
    ],
)
def test_wrong_columns_are_named(
    values: pa.Array, keys: pa.Array | None, headers: pa.Array | None, text: str
) -> None:
    with pytest.raises(BatchError, match=text):
        batch_from_arrow(values, keys, headers, 0)


def test_a_map_is_a_list_of_headers() -> None:
    kind = pa.map_(pa.string(), pa.binary())
    headers = pa.array([[("a", b"1"), ("b", None)], None], kind)
    view = stored_view(pa.array([b"x", b"y"]), None, headers)
    assert [r.headers for r in view.records()] == [[(b"a", b"1"), (b"b", b"")], []]


@given(st.integers(1, 50), st.integers(1, 300), st.integers(100, 2_000))
def test_pieces_are_small_and_complete(rows: int, size: int, limit: int) -> None:
    values = [bytes([number % 256]) * size for number in range(rows)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    found = list(pieces(batch, limit))
    assert [value for piece in found for value in piece.column(0).to_pylist()] == values
    assert all(piece.num_rows == 1 or piece.nbytes <= limit for piece in found)


def test_no_rows_are_no_piece() -> None:
    assert list(pieces(pa.record_batch({"value": pa.array([], pa.binary())}))) == []


@given(st.lists(BYTES, min_size=1, max_size=20), st.integers(1, 9), st.data())
def test_partitions_by_key(keys: list[bytes | None], partitions: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(keys) - 1))
    found = key_partitions(pa.array(keys, pa.binary()).slice(first), partitions)
    expected = [None if key is None else partition_of(key, partitions) for key in keys[first:]]
    assert found.to_pylist() == expected


def test_views_put_together() -> None:
    """Batches with and without keys and headers, as one; the columns as they are asked for."""
    plain = stored_view(pa.array([b"a", b"b"]), None, None)
    keyed = stored_view(
        pa.array([b"c"]), pa.array([b"k"]), pa.array([[{"key": "n", "value": b"v"}]], HEADERS)
    )
    schema = pa.schema(
        [SCHEMA_WITH_HEADERS.field(n) for n in ("headers", "key", "offset", "topic")]
    )
    joined = join_views([plain.rows(1, 2), keyed], "t", 3, schema)
    joined.validate(full=True)
    assert joined.to_pylist() == [
        {"headers": None, "key": None, "offset": 6, "topic": "t"},
        {"headers": [{"key": "n", "value": b"v"}], "key": b"k", "offset": 5, "topic": "t"},
    ]
    alone = join_views([keyed], "t", 3, SCHEMA_WITH_HEADERS)
    assert alone.equals(record_batch(keyed, "t", 3, headers=True))
