"""Avro and Protobuf values as rows: what does not decode, other versions, types inside of types."""

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.broker.schemas.kinds import Limits
from penstock.broker.schemas.protobuf import ProtobufValidator, compile_definition
from penstock.spark.typed.avro_rows import AvroRows
from penstock.spark.typed.protobuf_rows import ProtobufRows
from penstock.spark.typed.shape import NotFitting, columns


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def avro_rows(schema: object) -> AvroRows:
    return AvroRows(json.dumps(schema))


def written(schema: Any, value: object) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), value)
    return content.getvalue()


INNER = record({"name": "x", "type": "int"}, name="a.b.Inner")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("long", pa.int64()),
        (["null", "float"], pa.float32()),
        (["int", "long", "null"], pa.int64()),
        (["string", "long"], pa.string()),
        ({"type": "fixed", "name": "F", "size": 4}, pa.binary()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3},
            pa.decimal128(10, 3),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, pa.binary()),
        (INNER, pa.struct([("x", pa.int32())])),
        (record(name="Empty"), pa.string()),
    ],
)
def test_types_of_avro(schema: object, expected: pa.DataType) -> None:
    rows = avro_rows(record({"name": "a", "type": schema}))
    assert rows.shape.type == pa.struct([("a", expected)])
    # The same where a value has one type and no fields.
    if not isinstance(schema, dict) or schema["type"] != "record":
        assert avro_rows(schema).shape.type == pa.struct([("value", expected)])


def test_a_name_stands_for_its_definition() -> None:
    schema = {
        **record({"name": "one", "type": INNER}, {"name": "two", "type": ["null", "Inner"]}),
        "namespace": "a.b",
    }
    rows = avro_rows(schema)
    found, errors = rows.decoded([written(schema, {"one": {"x": 1}, "two": {"x": 2}})])
    assert not errors
    assert [one.to_pylist() for one in columns(rows.shape, found)] == [[{"x": 1}], [{"x": 2}]]


def test_what_is_no_avro() -> None:
    schema = record({"name": "a", "type": "string"})
    rows = avro_rows(schema)
    good = written(schema, {"a": "text"})
    found, errors = rows.decoded([good, b"", good[:-1], good + b"\0", None, b"\xff" * 20])
    assert [one is None for one in found] == [False, True, True, True, True, True]
    assert errors[1] == "empty message"
    assert errors[3] == "invalid Avro: 1 bytes behind the message"
    assert sorted(errors) == [1, 2, 3, 5] and all(errors.values())


def test_avro_of_another_version() -> None:
    old = record({"name": "a", "type": "int"})
    new = record({"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "-"})
    reader, writer = avro_rows(new), avro_rows(old)
    assert reader.projected(written(old, {"a": 5}), writer) == {"a": 5, "b": "-"}
    row = writer.projected(written(new, {"a": 1, "b": "x"}), writer=reader)
    assert [one.to_pylist() for one in columns(writer.shape, [row])] == [[1]]
    large = writer.projected(written(new, {"a": 1 << 40, "b": "x"}), writer=reader)
    with pytest.raises(pa.ArrowInvalid):
        columns(writer.shape, [large])
    with pytest.raises(NotFitting):
        reader.projected(written(old, {"a": 5}), reader)


def protobuf(text: str) -> tuple[ProtobufRows, ProtobufValidator]:
    found = compile_definition(f'syntax = "proto3"; {text}'.encode(), Limits(1 << 20, 100))
    return ProtobufRows(found.descriptors), found


def test_protobuf_of_another_version() -> None:
    old, compiled = protobuf("message M { int32 a = 1; }")
    new, _ = protobuf(
        "message M { int64 a = 1; string b = 2; I i = 3; message I { int32 x = 1; } }"
    )
    message = compiled._message(a=7)
    value = message.SerializeToString()
    assert new.projected(value, old).a == 7
    # A field that the schema does not have: another version must have it.
    longer = value + b"\x12\x01x"
    _, errors = old.decoded([longer])
    assert errors == {0: "unexpected field: number 2"}
    assert old.projected(longer, new).a == 7
    with pytest.raises(NotFitting, match="unexpected field: number 9"):
        old.projected(value + b"\x4a\x01x", new)


def test_values_of_protobuf_that_are_not_there() -> None:
    rows, compiled = protobuf(
        "message M { string s = 1; optional int32 o = 2; repeated I l = 3; map<int32, I> m = 4;"
        " oneof either { bool b = 5; I i = 6; } E e = 7; message I { int32 x = 1; }"
        " enum E { ZERO = 0; } }"
    )
    message = compiled._message(l=[{"x": 1}, {}], e=5)
    message.m[3].x = 4
    found, errors = rows.decoded([b"", message.SerializeToString(), None])
    assert not errors
    names = [one.name for one in rows.shape.members]
    table = dict(zip(names, (one.to_pylist() for one in columns(rows.shape, found)), strict=True))
    assert table == {
        "s": ["", "", None],
        "o": [None, None, None],
        "l": [[], [{"x": 1}, {"x": 0}], None],
        "m": [[], [(3, {"x": 4})], None],
        "b": [None, None, None],
        "i": [None, None, None],
        "e": ["ZERO", "5", None],
    }
