"""Arrow record batches: equal to the records, made without copying, safe with lying columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.records import SOME_ROWS, Row, build, record_batch, stored, view_batch

from penstock.log.batch.arrow import (
    APPEND_TIME,
    KEPT_ROWS,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
)
from penstock.log.batch.format import FLAG_HEADERS, FLAG_KEYS, Batch, BatchError, encode_values
from penstock.log.batch.view import BatchView


def expected(view: BatchView) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 4,
            "offset": record.offset,
            "timestamp": record.time_us,
            "timestampType": APPEND_TIME,
            "headers": [
                {"key": name.decode(errors="replace"), "value": content}
                for name, content in record.headers
            ]
            or None,
        }
        for record in view.records()
    ]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    times = batch.column("timestamp").cast(pa.int64())
    place = batch.schema.get_field_index("timestamp")
    rows: list[dict[str, object]] = batch.set_column(place, "timestamp", times).to_pylist()
    return rows


@given(SOME_ROWS, st.booleans(), st.data())
def test_equal_to_the_records(rows: list[Row], gaps: bool, data: st.DataObject) -> None:
    offsets = [100 + 2 * number for number in range(len(rows))] if gaps else None
    whole = view_batch(stored(build(rows, offsets), 100), 0)
    first = data.draw(st.integers(0, len(rows) - 1))
    view = whole.rows(first, data.draw(st.integers(first + 1, len(rows))))
    batch = record_batch(view, "orders", 4, headers=True)
    batch.validate(full=True)
    assert batch.schema == SCHEMA_WITH_HEADERS
    assert rows_of(batch) == expected(view)
    plain = record_batch(view, "orders", 4)
    assert plain.schema == SCHEMA
    assert plain.equals(batch.select(SCHEMA.names))


@pytest.mark.parametrize("count", [1, KEPT_ROWS, KEPT_ROWS + 1])
def test_sizes_around_the_kept_columns(count: int) -> None:
    view = view_batch(stored(encode_values([b"v"] * count, 5), 9), 0)
    batch = record_batch(view, "t", 0)
    batch.validate(full=True)
    assert batch.num_rows == count
    assert batch.column("offset")[count - 1].as_py() == 9 + count - 1
    assert batch.column("topic")[count - 1].as_py() == "t"


def inside(buffer: pa.Buffer, data: bytes) -> bool:
    start = pa.py_buffer(data).address
    return bool(start <= buffer.address and buffer.address + buffer.size <= start + len(data))


def test_nothing_is_copied() -> None:
    rows = [Row(b"v" * 50, n, b"k" * 50, ((b"n" * 50, b"c" * 50),)) for n in range(10)]
    data = bytes(16) + stored(build(rows, list(range(0, 20, 2))))
    batch = record_batch(view_batch(data, 16).rows(2, 9), "orders", 0, headers=True)
    for name in ("key", "value", "offset", "timestamp"):
        buffers = [buffer for buffer in batch.column(name).buffers() if buffer is not None]
        assert buffers and all(inside(buffer, data) for buffer in buffers), name
    names, contents = (batch.column("headers").values.field(n) for n in (0, 1))
    assert inside(names.buffers()[2], data) and inside(contents.buffers()[2], data)
    assert not inside(batch.column("topic").buffers()[2], data)


def test_a_view_stays_alive_as_long_as_its_arrow_batch() -> None:
    batch = record_batch(view_batch(stored(encode_values([b"value"] * 3, 5)), 0), "t", 0)
    assert batch.column("value").to_pylist() == [b"value"] * 3


def test_a_header_name_that_is_no_utf8_is_replaced() -> None:
    view = view_batch(stored(build([Row(b"", headers=((b"\xff", b"\xff"),)), Row(b"")])), 0)
    headers = record_batch(view, "t", 0, headers=True).column("headers")
    assert headers.to_pylist() == [[{"key": "\ufffd", "value": b"\xff"}], None]


@pytest.mark.parametrize(
    ("row", "flag", "place"),
    [
        (Row(b"aa"), 0, 4),
        (Row(b"", key=b"aa"), FLAG_KEYS, 20),
        (Row(b"", headers=((b"a", b""),)), FLAG_HEADERS, 20),
        (Row(b"", headers=((b"a", b""),)), FLAG_HEADERS, 36),
    ],
)
@pytest.mark.parametrize("number", [-1, (1 << 31) - 1])
def test_offsets_that_lie_never_reach_arrow(row: Row, flag: int, place: int, number: int) -> None:
    good = build([row] * 3)
    assert good.flags == flag
    body = bytearray(good.body)
    body[place : place + 4] = number.to_bytes(4, "little", signed=True)
    view = view_batch(stored(Batch(bytes(body), 3, flag, 0, 0)), 0)
    with pytest.raises(BatchError):
        record_batch(view, "t", 0, headers=True)
