"""JSON Schema: what is valid, in which words the rest is refused, and what one version means to another."""

import json

import pytest

from penstock.broker.schemas.json_schema import JsonValidator, compile_definition
from penstock.broker.schemas.kinds import MAX_ERROR_CHARACTERS, MAX_ERRORS, Limits

LIMITS = Limits(64 * 1024, 32)


def validator(schema: object) -> JsonValidator:
    return compile_definition(json.dumps(schema).encode(), LIMITS)


ORDER = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "to": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}},
        "state": {"enum": ["new", "paid"]},
        "code": {"type": "string", "pattern": "^[A-Z]+$"},
        "lines": {"type": "array", "items": {"type": "number"}},
    },
}


@pytest.mark.parametrize(
    ("message", "errors"),
    [
        (b'{"id":1}', []),
        (b'{"id":1.0,"lines":[1,2.5]}', []),
        (b"{}", ["missing required field: id"]),
        (b'{"id":1,"to":{}}', ["missing required field: to.city"]),
        (b'{"id":1,"x":2}', ["unexpected field: x"]),
        (b'{"id":"1"}', ["type mismatch at id: expected integer, got string"]),
        (b'{"id":1,"to":{"city":null}}', ["type mismatch at to.city: expected string, got null"]),
        (b'{"id":1,"lines":[1,"2"]}', ["type mismatch at lines.1: expected number, got string"]),
        (b'{"id":0}', ["id: 0 is less than the minimum of 1 (minimum)"]),
        (b'{"id":1,"state":"x"}', ['state: "x" is not one of "new" or "paid" (enum)']),
        (b'{"id":1,"code":"a"}', ['code: "a" does not match "^[A-Z]+$" (pattern)']),
        (b"[]", ["type mismatch at .: expected object, got array"]),
        (b"", ["empty message"]),
    ],
)
def test_errors_name_path_and_rule(message: bytes, errors: list[str]) -> None:
    assert validator(ORDER).errors(message) == errors
    assert validator(ORDER).invalid([b'{"id":1}', message]) == (
        {1: "; ".join(errors)} if errors else {}
    )


@pytest.mark.parametrize("message", [b"{", b"\xff", b"nan", b"[" * 100_000, b"1e400", b'{"a":1,}'])
def test_what_is_no_json_is_refused_in_one_line(message: bytes) -> None:
    (error,) = validator(True).errors(message)
    assert error.startswith("invalid JSON message: ") and "\n" not in error


def test_a_long_error_is_cut() -> None:
    names = {f"field-{number}": "x" * 1000 for number in range(100)}
    found = validator({"additionalProperties": {"type": "integer"}}).errors(
        json.dumps(names).encode()
    )
    assert len(found) == MAX_ERRORS
    (only,) = validator({"maxLength": 1}).errors(json.dumps("x" * 100_000).encode())
    assert len(only) == MAX_ERROR_CHARACTERS


def test_a_null_value_deletes_a_key_and_fits() -> None:
    assert validator(ORDER).invalid([None, b'{"id":1}', None]) == {}
    assert list(validator(ORDER).invalid([None, b"{}", None])) == [1]


A = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("newer", "older", "problem"),
    [
        (A, A, None),
        (True, A, None),
        ({}, A, None),
        (A, {}, ".: type anything is not allowed any more"),
        (False, A, ".: allows nothing any more"),
        ({**A, "required": ["a"]}, A, "new required field 'a' is optional in old schema"),
        ({**A, "required": ["b"]}, A, "new required field 'b' not in old schema"),
        (A, {**A, "required": ["a"]}, None),
        ({**A, "properties": {**A["properties"], "b": {"type": "integer"}}}, A, None),  # type: ignore[dict-item]  # a dict
        ({"type": "object"}, A, None),
        ({**A, "additionalProperties": False}, A, ".: additional fields are not allowed any more"),
        (
            {"type": "object", "additionalProperties": False},
            {**A, "additionalProperties": False},
            "field 'a' is not allowed any more",
        ),
        ({"type": "number"}, {"type": "integer"}, None),
        ({"type": "integer"}, {"type": "number"}, ".: type number is not allowed any more"),
        ({"enum": [1, 2, 3]}, {"enum": [1, 2]}, None),
        ({"enum": [1, 2]}, {"enum": [1, 3]}, ".: enum takes less than before"),
        ({"enum": [1, 2]}, {"const": 1}, None),
        ({"minimum": 0}, {"minimum": 5}, None),
        ({"minimum": 5}, {"minimum": 0}, ".: minimum is tighter than before"),
        ({"maxLength": 5}, {}, ".: maxLength is tighter than before"),
        ({"minLength": 0}, {}, None),
        ({"pattern": "a"}, {"pattern": "b"}, ".: pattern is new or has changed"),
        ({}, {"pattern": "b"}, None),
        ({"items": {"type": "string"}}, {"items": {"type": "null"}}, "[]: type null"),
        ({"anyOf": [{"type": "null"}, A]}, {"anyOf": [A]}, None),
        ({"anyOf": [A]}, {"anyOf": [{"type": "null"}, A]}, ".: anyOf takes less than before"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}},
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
            ".: type string is not allowed any more",
        ),
        (
            {"properties": {"next": {"$ref": "#"}, "v": {"type": "number"}}},
            {"properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}},
            None,
        ),
    ],
)
def test_what_a_new_version_may_change(newer: object, older: object, problem: str | None) -> None:
    found = validator(newer).problems(validator(older))
    assert found == [] if problem is None else problem in found[0]
