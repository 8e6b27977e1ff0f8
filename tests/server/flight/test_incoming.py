"""Record batches of strangers: malformed ones are refused, packed ones counted and made plain."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from penstock.broker.errors import BrokerError, Code
from penstock.server.flight.incoming import plain

LIMIT = 1_000_000


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


@dataclass(frozen=True)
class Broken:
    """An array that pyarrow takes for a good one, and the numbers in it that change afterwards."""

    array: pa.Array
    numbers: bytearray
    bad: bytes


def offsets(kind: pa.DataType, form: str, *bad: int) -> Broken:
    numbers = bytearray(struct.pack(f"<3{form}", 0, 1, 2))
    buffers = [None, pa.py_buffer(numbers), pa.py_buffer(b"0123456789")]
    return Broken(pa.Array.from_buffers(kind, 2, buffers), numbers, struct.pack(f"<3{form}", *bad))


def views() -> Broken:
    """Sixteen bytes each: length, four bytes of the content, number of the buffer, place in it."""
    good, bad = (struct.pack("<i4sii", 20, b"0123", 0, place) * 2 for place in (0, 1_000_000))
    numbers = bytearray(good)
    buffers = [None, pa.py_buffer(numbers), pa.py_buffer(b"0123456789" * 2)]
    return Broken(pa.Array.from_buffers(pa.binary_view(), 2, buffers), numbers, bad)


def indices() -> Broken:
    numbers = bytearray(struct.pack("<2i", 0, 0))
    places = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(numbers)])
    array = pa.DictionaryArray.from_arrays(places, pa.array(["a"]))
    return Broken(array, numbers, struct.pack("<2i", 0, 7))


@pytest.mark.parametrize(
    "make",
    [
        lambda: offsets(pa.binary(), "i", 0, 8, 4),
        lambda: offsets(pa.binary(), "i", 0, -8, 4),
        lambda: offsets(pa.binary(), "i", 0, 5, 100),
        lambda: offsets(pa.binary(), "i", -4, 2, 4),
        lambda: offsets(pa.string(), "i", 0, 8, 4),
        lambda: offsets(pa.large_binary(), "q", 0, 5, 100_000),
        lambda: offsets(pa.large_string(), "q", 0, 8, 4),
        views,
        indices,
    ],
)
@pytest.mark.parametrize("name", ["value", "key"])
def test_malformed_arrays_are_refused(make: Callable[[], Broken], name: str) -> None:
    broken = make()
    rows = batch(**{"value": pa.array([b"a", b"b"]), name: broken.array})
    broken.numbers[:] = broken.bad
    with pytest.raises(BrokerError, match=rf"^column {name} is malformed: ") as caught:
        plain(rows, LIMIT)
    assert caught.value.code is Code.INVALID_REQUEST


def test_headers_that_are_no_text() -> None:
    keys = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"v"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    with pytest.raises(BrokerError, match=r"column headers is malformed: .*UTF8"):
        plain(batch(value=pa.array([b"a"]), headers=headers), LIMIT)


TEXTS = ["one", None, "", "a longer text that no view holds in itself"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).cast(pa.binary()),
        pa.array(TEXTS).cast(pa.binary_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(TEXTS, pa.large_string()).dictionary_encode(),
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1, 2], pa.int8()),
            pa.array([TEXTS[0], TEXTS[2], TEXTS[3]], pa.string_view()),
        ),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(TEXTS)),
    ],
    ids=lambda column: str(column.type),
)
def test_the_same_rows_whatever_the_kind(column: pa.Array) -> None:
    wide = pa.concat_arrays([column, column, column])
    found = plain(batch(value=wide.slice(3, 6), partition=pa.array([1] * 6)), LIMIT)
    values = found.column("value")
    assert pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    expected = [text if text is None else text.encode() for text in (TEXTS * 3)[3:9]]
    assert values.to_pylist() == expected
    assert found.column("partition").to_pylist() == [1] * 6


def test_bytes_that_are_called_text() -> None:
    text = pa.array([b"\xff\xfe"]).view(pa.string())
    assert plain(batch(value=text), LIMIT).column("value").to_pylist() == [b"\xff\xfe"]


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.list_(pa.int8()), pa.dictionary(pa.int8(), pa.int8())]
)
def test_other_kinds_stay_as_they_are(kind: pa.DataType) -> None:
    """Whoever wants bytes refuses them, by their own names."""
    assert plain(batch(value=pa.nulls(2, kind)), LIMIT).schema.field("value").type == kind


def packed(kind: str, size: int, count: int = 1000) -> pa.Array:
    """Many times the same bytes."""
    content = pa.array([b"x" * size])
    places = pa.array([0] * count, pa.int32())
    if kind == "plain":
        return content.take(places)
    if kind == "dictionary":
        return pa.DictionaryArray.from_arrays(places, content)
    views = content.cast(pa.binary_view())
    if kind == "dictionary of views":
        return pa.DictionaryArray.from_arrays(places, views)
    _, numbers, data = views.buffers()
    same = pa.py_buffer(numbers.to_pybytes()[:16] * count)
    return pa.Array.from_buffers(pa.binary_view(), count, [None, same, data])


@pytest.mark.parametrize("kind", ["plain", "dictionary", "view", "dictionary of views"])
def test_what_it_unpacks_to_counts(kind: str) -> None:
    assert plain(batch(value=packed(kind, 900)), LIMIT).num_rows == 1000
    with pytest.raises(BrokerError, match=r"a record batch of 1\d{6} bytes, 1000000 at most: send"):
        plain(batch(value=packed(kind, 1100)), LIMIT)
    assert plain(batch(value=packed(kind, LIMIT + 1, 1)), LIMIT).num_rows == 1
