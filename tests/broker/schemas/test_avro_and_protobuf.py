"""Avro and Protobuf: what is valid, what is refused, definitions without a bound, versions."""

import io
import json
from typing import Any

import fastavro
import pytest

from penstock.broker.errors import BrokerError, Code
from penstock.broker.schemas.kinds import Limits, Validator, compile_definition, kind_of

LIMITS = Limits(64 * 1024, 32)


def avro(schema: Any) -> Validator:
    return compile_definition("avro", json.dumps(schema).encode(), LIMITS)


def proto(body: str, syntax: str = "proto3") -> Validator:
    return compile_definition("protobuf", f'syntax = "{syntax}";\n{body}'.encode(), LIMITS)


def record(*fields: dict[str, Any], name: str = "Trip") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


ID = {"name": "id", "type": "long"}
CITY = {"name": "city", "type": ["null", "string"], "default": None}
TRIP = record(ID, CITY)


def encoded(schema: Any, message: Any) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), message)
    return content.getvalue()


# --- Avro -----------------------------------------------------------------------------------------


def test_an_avro_message_is_its_whole_binary_form() -> None:
    good = encoded(TRIP, {"id": 7, "city": "Oslo"})
    validator = avro(TRIP)
    assert validator.errors(good) == [] and validator.decoded(good) == {"id": 7, "city": "Oslo"}
    for size in range(1, len(good)):
        (error,) = validator.errors(good[:size])
        assert error.startswith("Avro validation failed: ")
    assert validator.errors(good + b"x") == ["Avro validation failed: 1 bytes behind the message"]
    assert validator.errors(b"") == ["empty message"]
    assert list(validator.invalid([good, b"\x0e\x09", None, good])) == [1]


def test_a_long_length_costs_no_memory() -> None:
    validator = avro("bytes")
    assert validator.errors(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "recrod", "name": "x", "fields": []}, "recrod"),
        (record({"name": "x", "type": "nothing"}), "nothing"),
        (record({"name": "next", "type": ["null", "Trip"]}), "contains itself"),
        (record({"name": "all", "type": {"type": "array", "items": "Trip"}}), "contains itself"),
        ({"type": "array", "items": "null"}, "takes no bytes"),
        ({"type": "array", "items": record(name="Empty")}, "takes no bytes"),
        (7, "int"),
    ],
)
def test_a_bad_avro_definition_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(BrokerError, match=words) as caught:
        avro(schema)
    assert caught.value.code is Code.INVALID_SCHEMA
    assert str(caught.value).startswith("invalid schema definition: ")


@pytest.mark.parametrize(
    ("newer", "older", "problem"),
    [
        (TRIP, TRIP, None),
        (TRIP, record(ID), None),
        (record(ID), TRIP, None),
        (record(ID, {"name": "to", "type": "string"}), record(ID), "new field 'to' has no default"),
        (record({"name": "id", "type": "double"}), record(ID), None),
        (record({"name": "id", "type": "int"}), record(ID), "id: type long is not allowed"),
        (record({"name": "nr", "type": "long", "aliases": ["id"]}), record(ID), None),
        (record(ID, name="Other"), record(ID), "record Trip is not allowed"),
        (["null", "string"], "string", None),
        ("string", ["null", "string"], "type null is not allowed"),
        (["null", "long"], ["int", "null"], None),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "symbol B is not allowed",
        ),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "string"}, ".*: type string"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, None),
    ],
)
def test_avro_versions(newer: Any, older: Any, problem: str | None) -> None:
    found = avro(newer).problems(avro(older))
    assert found == [] if problem is None else problem in found[0]


# --- Protobuf -------------------------------------------------------------------------------------

MESSAGE = "message Trip { int64 id = 1; string city = 2; Place place = 3; }\nmessage Place { int32 x = 1; }"


def test_a_protobuf_message_is_one_of_the_first_type() -> None:
    validator = proto(MESSAGE)
    good = b"\x08\x07\x12\x04Oslo\x1a\x02\x08\x05"
    assert validator.errors(good) == [] and validator.errors(b"") == []
    assert validator.decoded(good) == {"id": "7", "city": "Oslo", "place": {"x": 5}}
    (error,) = validator.errors(good[:5])
    assert error.startswith("invalid Protobuf wire format: ")
    assert validator.errors(good + b"\x48\x01") == ["unexpected field: number 9"]
    assert validator.errors(b"\x1a\x02\x10\x05") == ["unexpected field: in a nested message"]
    assert list(validator.invalid([good, b"\xff", None])) == [1]


def test_deep_protobuf_messages_are_refused() -> None:
    validator = proto("message Node { Node next = 1; }")
    value = b""
    for _ in range(200):
        size = len(value)
        length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
        value = b"\x0a" + length + value
    assert validator.errors(value)[0].startswith("invalid Protobuf wire format")


def test_required_fields_of_proto2() -> None:
    assert proto("message Trip { required int32 id = 1; }", "proto2").errors(b"") == [
        "missing required field: id"
    ]


def test_the_well_known_types_are_there() -> None:
    body = (
        'import "google/protobuf/timestamp.proto";\nmessage T { google.protobuf.Timestamp at = 1; }'
    )
    assert proto(body).errors(b"\x0a\x02\x08\x01") == []


@pytest.mark.parametrize(
    "body", ["message {", "", 'import "/etc/passwd";', 'import "other.proto"; message A {}']
)
def test_a_bad_protobuf_definition_is_refused(body: str) -> None:
    with pytest.raises(BrokerError) as caught:
        proto(body)
    assert caught.value.code is Code.INVALID_SCHEMA and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("newer", "older", "problem"),
    [
        ("message T { int64 id = 1; }", "message T { int32 id = 1; }", None),
        ("message T { int64 id = 1; string a = 2; }", "message T { int32 id = 1; }", None),
        ("message T { string id = 1; }", "message T { int32 id = 1; }", "id: type int32"),
        ("message T {}", "message T { int32 id = 1; }", "field 'id' (number 1) is not allowed"),
        ("message T { int32 id = 1; }", "message T { repeated int32 id = 1; }", "more than one"),
        (
            "message T { P p = 1; } message P { string x = 1; }",
            "message T { P p = 1; } message P { int32 x = 1; }",
            "p.x: type int32",
        ),
    ],
)
def test_protobuf_versions(newer: str, older: str, problem: str | None) -> None:
    found = proto(newer).problems(proto(older))
    assert found == [] if problem is None else problem in found[0]


def test_proto_is_another_name_of_protobuf() -> None:
    assert kind_of("proto") == "protobuf"
