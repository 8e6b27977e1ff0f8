"""The quick look at JSON messages: what it takes, jsonschema-rs takes, for any schema and any bytes."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from penstock.broker.errors import BrokerError
from penstock.broker.schemas.json_accepting import accepting
from penstock.broker.schemas.json_schema import LEFT_OUT, MISSES, JsonValidator, compile_definition
from penstock.broker.schemas.kinds import Limits

LIMITS = Limits(1 << 20, 64)

# --- schemas --------------------------------------------------------------------------------------

BIG = 1 << 53
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [-0.5, 0.0, 0.5, 1.0, 2.5, 1e3, BIG - 1, BIG, BIG + 1, 1 << 63, 1 << 70, 10**30]
    ),
    st.sampled_from([-BIG, -(1 << 63), -(1 << 63) - 1, 1e300, 5e-324]),
)
WORDS = st.sampled_from(
    ["", "a", "ab", "é", "\U0001f600", "A1", "DE", "x@y.org", "2026-11-17", "\x00"]
)
NAMES = st.sampled_from(["a", "b", "c d", "é", "field0", "", "\\", '"'])
LENGTHS = st.integers(0, 3)


def some(of: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=of)


def bound(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """One of the keywords or none: both together have no type."""
    return st.one_of(st.just({}), *[st.fixed_dictionaries({key: NUMBERS}) for key in keys])


BOUNDS = st.builds(
    lambda low, high: {**low, **high},
    bound("minimum", "exclusiveMinimum"),
    bound("maximum", "exclusiveMaximum"),
)
LIMITS_OF_TEXTS = some({"minLength": LENGTHS, "maxLength": LENGTHS})
TEXTS = some(
    {
        "minLength": LENGTHS,
        "maxLength": LENGTHS,
        "pattern": st.sampled_from(["^[A-Z]{2}$", "a", "^.$", "\\d", "^\\w+$"]),
        "format": st.sampled_from(["email", "date", "uuid", "ipv4"]),
    }
)
INNER = st.one_of(
    st.builds(lambda more: {"type": "string", **more}, LIMITS_OF_TEXTS),
    st.builds(lambda more: {"type": "integer", **more}, BOUNDS),
    st.builds(lambda more: {"type": "number", **more}, BOUNDS),
    st.builds(lambda more: {"type": ["number", "null"], **more}, BOUNDS),
    st.builds(lambda more: {"type": ["string", "null", "boolean"], **more}, LIMITS_OF_TEXTS),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "string"]}]),
    st.builds(
        lambda one: {"type": "string", "enum": one}, st.lists(WORDS, min_size=1, unique=True)
    ),
    st.sampled_from([{"type": "integer", "enum": [1, 2]}, {"type": "string", "const": "a"}]),
)
# Nothing is made of most of these.
OTHERS = st.sampled_from(
    [
        {},
        True,
        False,
        {"type": "string", "enum": ["a", 1]},
        {"type": "number", "multipleOf": 2},
        {"type": "integer", "minimum": 0, "exclusiveMinimum": 0},
        {"type": ["integer", "number"]},
        {"type": "string", "pattern": "a"},
    ]
)
FIELDS = st.one_of(INNER, INNER, INNER, st.builds(lambda more: {"type": "string", **more}, TEXTS))


def objects(of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda fields, needed, extra: {
            "type": "object",
            "properties": {name: one for name, one, _ in fields},
            **({"required": found} if (found := [one[0] for one in fields if one[2]]) else {}),
            **({"required": [*found, needed]} if needed else {}),
            **extra,
        },
        st.lists(st.tuples(NAMES, of, st.booleans()), max_size=5, unique_by=lambda one: one[0]),
        st.sampled_from([None] * 9 + ["missing"]),
        st.sampled_from(
            [
                {},
                {"additionalProperties": False},
                {"additionalProperties": True},
                {"title": "t", "$comment": "c"},
                {"additionalProperties": {"type": "integer"}},
            ]
        ),
    )


NESTED = st.recursive(
    INNER,
    lambda of: st.one_of(
        objects(of),
        st.builds(
            lambda items, more: {"type": "array", "items": items, **more},
            of,
            some({"minItems": LENGTHS, "maxItems": LENGTHS}),
        ),
    ),
    max_leaves=5,
)
DRAFTS = st.sampled_from(
    [
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-06/schema#"},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
    ]
)
SCHEMAS = st.builds(
    lambda schema, draft: {**draft, **schema},
    st.one_of(objects(FIELDS), objects(NESTED), objects(st.one_of(NESTED, OTHERS))),
    DRAFTS,
)

# --- messages -------------------------------------------------------------------------------------

# Texts of JSON values, not values: numbers have more forms than Python's json writes.
RAW_NUMBERS = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "1.0",
        "1.5",
        "-1",
        "2",
        "1e0",
        "1E2",
        "0.1e1",
        "1e999",
        "-1e999",
        "1e-400",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1e20",
        "100000000000000000000",
        "-9223372036854775809",
        "01",
        "+1",
        ".5",
        "1.",
        "NaN",
        "Infinity",
        "0x1",
        "1" * 400,
        "1" * 5_000,
    ]
)
RAW_TEXTS = st.one_of(
    WORDS.map(json.dumps),
    WORDS.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['"\\ud800"', '"\\ud83d\\ude00"', '"\\u0061"', '"\\x"', '"a', '"\t"', '"\\n"']),
)
RAW = st.recursive(
    st.one_of(RAW_NUMBERS, RAW_TEXTS, st.sampled_from(["true", "false", "null", "nul", ""])),
    lambda of: st.one_of(
        st.lists(of, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(NAMES, of), max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{json.dumps(name)}:{one}" for name, one in pairs) + "}"
        ),
    ),
    max_leaves=8,
)


def fitting(schema: Any) -> st.SearchStrategy[str]:
    """Texts that often fit: fields of the schema with values of their types, some twice, some missing."""
    if not isinstance(schema, dict):
        return RAW
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        fields = list(schema["properties"].items())
        pairs = [st.tuples(st.just(name), fitting(of)) for name, of in fields]
        twice = st.lists(st.sampled_from(pairs), max_size=2) if pairs else st.just([])
        return twice.flatmap(lambda more: st.tuples(*pairs, *more)).map(
            lambda found: "{" + ",".join(f"{json.dumps(name)}: {one}" for name, one in found) + "}"
        )
    if kind == "array":
        return st.lists(fitting(schema.get("items")), max_size=3).map(
            lambda items: f"[{','.join(items)}]"
        )
    if "enum" in schema:
        return st.sampled_from(schema["enum"]).map(json.dumps)
    of_kind = {"string": RAW_TEXTS, "integer": RAW_NUMBERS, "number": RAW_NUMBERS}
    return of_kind.get(str(kind), st.sampled_from(["true", "null"]))


CASES = SCHEMAS.flatmap(
    lambda schema: st.tuples(
        st.just(schema),
        st.lists(
            st.one_of(fitting(schema), RAW).map(lambda text: text.encode()), min_size=1, max_size=4
        ),
    )
)


def validator(schema: Any) -> JsonValidator:
    try:
        return compile_definition(json.dumps(schema).encode(), LIMITS)
    except BrokerError:  # draft 4 has other keywords
        reject()


def flat(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


DEEP = b"[" * 300 + b"]" * 300


@given(CASES)
@example((flat(a={"type": "integer"}), [b'{"a":1.0}']))
@example((flat(a={"type": "number", "maximum": BIG}), [b'{"a":9007199254740993}']))
@example((flat(a={"type": "integer", "maximum": 1}), [b'{"a":1,"a":2}', b'{"a":2,"a":1}']))
@example((flat(a={"type": "array", "items": {}}), [b'{"a":' + DEEP + b"}"]))
@example((flat(a={"type": "string"}), [b'{"a":"\xff"}', b'{"b":"\xff"}', b'\xef\xbb\xbf{"a":""}']))
def test_what_it_takes_is_valid(case: tuple[Any, list[bytes]]) -> None:
    schema, messages = case
    judge = validator(schema)
    quick = accepting(schema)
    for message in messages:
        if quick is not None and quick([message]):
            assert judge.errors(message) == []
    assert judge.invalid(messages) == judge._judged(messages)


@given(SCHEMAS, st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=3))
def test_any_bytes(schema: Any, messages: list[bytes | None]) -> None:
    judge = validator(schema)
    assert judge.invalid(messages) == judge._judged(messages)


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (flat(a={"type": "string", "pattern": "^a"}), [b'{"a":"ab"}', b"{}", b' { "a" : "a" } ']),
        (
            flat(a={"type": ["string", "null"], "format": "email"}),
            [b'{"a":null}', b'{"a":"x@y.org"}'],
        ),
        (flat(a=flat(b={"type": "array", "items": {"type": "number"}})), [b'{"a":{"b":[1,2.5]}}']),
        ({**flat(a={"type": "boolean"}), "required": ["a"]}, [b'{"a":true}']),
        (flat(**{"with space": {"type": "integer", "minimum": 1}}), [b'{"with space":1}']),
    ],
)
def test_common_messages_are_taken(schema: Any, takes: list[bytes]) -> None:
    quick = accepting(schema)
    assert quick is not None and quick(takes)
    assert not quick([*takes, b'{"other":1}']) and not quick([b""]) and not quick([None])


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "array", "items": {"type": "integer"}},
        {**flat(a={"type": "string"}), "$schema": "http://json-schema.org/draft-04/schema#"},
        {**flat(a={"type": "string"}), "$ref": "#/$defs/x", "$defs": {"x": True}},
        {**flat(a={"type": "string"}), "required": ["b"]},
        flat(a={}),
        flat(a={"type": "number", "minimum": BIG}),
        flat(a={"type": "integer", "minimum": 0.5}),
        flat(a={"type": "integer", "minimum": True}),
        flat(a={"type": "string", "oneOf": [True]}),
        flat(a={"type": "string", "enum": ["a", None]}),
        flat(a={"type": ["integer", "number"]}),
        flat(a=flat(b={"type": "string", "pattern": "a"})),
        flat(a={"type": "number", "maximum": math.inf}),
    ],
    ids=str,
)
def test_other_schemas_have_no_quick_look(schema: Any) -> None:
    assert accepting(schema) is None


def test_it_is_left_out_where_it_does_not_help() -> None:
    judge = validator(flat(a={"type": "integer"}))
    calls = 0
    quick = judge._accepts
    assert quick is not None

    def counted(values: Any) -> bool:
        nonlocal calls
        calls += 1
        return quick(values)

    judge._accepts = counted
    for _ in range(MISSES + 1 + LEFT_OUT):
        assert judge.invalid([b'{"b":1}']) == {}
    assert calls == MISSES + 1
    assert judge.invalid([b'{"a":1}']) == {} and calls == MISSES + 2
