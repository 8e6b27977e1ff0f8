"""JSON values as rows: types of a JSON Schema, what fits them, the words for what does not."""

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.typed.json_rows import RUN, JsonRows
from penstock.spark.typed.shape import TIMESTAMP, NotFitting, OtherColumns, columns

TEXT = pa.string()


def rows_of(schema: object) -> JsonRows:
    return JsonRows(json.dumps(schema))


def one_member(schema: object, **more: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": ["null", "number"]}, pa.float64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": "string"}, TEXT),
        ({"type": "string", "format": "date-time"}, TIMESTAMP),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "uuid"}, TEXT),
        ({"enum": ["x", "y"]}, TEXT),
        ({"enum": [1, None]}, pa.int64()),
        ({"const": True}, pa.bool_()),
        (
            {"type": "array", "items": {"type": "integer"}},
            pa.list_(pa.field("element", pa.int64())),
        ),
        ({"type": "array"}, TEXT),
        ({"type": "object"}, TEXT),
        ({}, TEXT),
        (True, TEXT),
        ({"type": ["string", "integer"]}, TEXT),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, TEXT),
        ({"$ref": "#/$defs/d"}, pa.int64()),
        ({"$ref": "#/$defs/loop"}, pa.struct([("next", TEXT)])),
        ({"$ref": "#/nowhere"}, TEXT),
        (
            {"allOf": [{"$ref": "#/$defs/loop"}, {"properties": {"b": {"type": "boolean"}}}]},
            pa.struct([("next", TEXT), ("b", pa.bool_())]),
        ),
    ],
)
def test_types(schema: object, expected: pa.DataType) -> None:
    definitions = {
        "d": {"type": "integer"},
        "loop": {"properties": {"next": {"$ref": "#/$defs/loop"}}},
    }
    shape = rows_of({**one_member(schema), "$defs": definitions}).shape
    assert shape.type == pa.struct([("a", expected)])


def test_a_schema_of_one_value_has_one_column() -> None:
    rows = rows_of({"type": "array", "items": {"type": "integer"}})
    found, errors = rows.decoded([b"[1,2]", b"[]", None, b"{}"])
    (column,) = columns(rows.shape, found)
    assert rows.shape.members[0].name == "value"
    assert column.to_pylist() == [[1, 2], [], None, None]
    assert errors == {3: "type mismatch at .: expected array, got object"}


NESTED = one_member(
    {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["b"],
            "properties": {"b": {"type": "integer"}, "c": {}},
        },
    },
    required=["a"],
)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty message"),
        (b"{", "invalid JSON: Input data was truncated"),
        (b'{"a":[]} x', "invalid JSON: JSON is malformed: trailing characters (byte 10)"),
        (b"7", "type mismatch at .: expected object, got integer"),
        (b"{}", "missing required field: a"),
        (b'{"a":null}', "type mismatch at a: expected array, got null"),
        (b'{"a":[{}]}', "missing required field: a[0].b"),
        (b'{"a":[{"b":1},{"b":true}]}', "type mismatch at a[1].b: expected integer, got boolean"),
        (b'{"a":[{"b":1.5}]}', "type mismatch at a[0].b: expected integer, got number"),
        (b'{"a":[{"b":9223372036854775808}]}', "a[0].b: Expected `int` of 64 bits"),
    ],
)
def test_reasons(value: bytes, reason: str) -> None:
    found, errors = rows_of(NESTED).decoded([value])
    assert (found, errors) == ([None], {0: reason})


@pytest.mark.parametrize("number", [b"-9223372036854775808", b"3.0", b"3e2", b"-0"])
def test_whole_numbers(number: bytes) -> None:
    rows = rows_of(NESTED)
    found, errors = rows.decoded([b'{"a":[{"b":%b}]}' % number])
    (column,) = columns(rows.shape, found)
    assert not errors and column.to_pylist() == [[{"b": int(float(number)), "c": None}]]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = rows_of(one_member({"type": "integer"}))
    good, bad = b'{"a":1}', b'{"a":"x"}'
    values: list[bytes | None] = [good] * RUN + [bad, None, good, b'{"a":2.0}'] + [good] * RUN
    found, errors = rows.decoded(values)
    (column,) = columns(rows.shape, found)
    assert list(errors) == [RUN]
    assert column.to_pylist() == [1] * RUN + [None, None, 1, 2] + [1] * RUN


def test_nothing_is_too_deep() -> None:
    rows = rows_of(one_member({}))
    _, errors = rows.decoded([b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
    assert errors


def test_values_of_another_version() -> None:
    old = rows_of(one_member({"type": "integer"}, required=["a"]))
    new = rows_of({"properties": {"a": {"type": "number"}, "b": {"type": "string"}}})
    for value, expected in ((b'{"b":"x"}', None), (b'{"a":null,"b":"x"}', NotFitting)):
        if expected is None:
            assert columns(old.shape, [old.projected(value, new)])[0].to_pylist() == [None]
        else:
            with pytest.raises(expected):
                old.projected(value, new)
    with pytest.raises(OtherColumns, match="expected integer"):
        old.projected(b'{"a":1.5}', new)


def test_maps_and_text_inside_of_lists() -> None:
    schema = one_member(
        {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": {"type": "object", "properties": {"t": {}}},
            },
        }
    )
    rows = rows_of(schema)
    found, _ = rows.decoded(
        [b'{"a":[{"k":{"t":{"x": 1}}},{}]}', b"{}", b'{"a":[{"l":{"t":null}}]}']
    )
    (column,) = columns(rows.shape, found)
    column.validate(full=True)
    assert column.to_pylist() == [
        [[("k", {"t": '{"x": 1}'})], []],
        None,
        [[("l", {"t": None})]],
    ]
