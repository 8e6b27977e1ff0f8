"""A quick yes for most messages of a JSON Schema: decoded straight into a type that is made of the schema.

jsonschema-rs checks Python objects, so a message is first decoded into a dict. A msgspec struct with the
types, bounds and required fields of the schema does both in one step and in a third of the time. It has to
be right in one direction only: what it takes, the schema takes too. Everything that it refuses is judged by
jsonschema-rs (json_schema.py), which finds the words for the error as well.

Made for schemas of objects, arrays and plain values with the keywords below. `pattern` and `format` of a
field of the outer object are checked by jsonschema-rs, on the one value. A schema with any other keyword
gets no such type. What keeps the answers equal:

- Fields that `properties` does not name are refused here, whatever `additionalProperties` says. msgspec
  would skip their values without reading them.
- A field without a type is not made: msgspec and jsonschema-rs have other limits for the depth of values.
- Draft 4 and older have another meaning of integers and of exclusive bounds.
- A bound of a number stays below 2**53, where a float tells neighbouring integers apart.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Union

import jsonschema_rs
import msgspec
from msgspec import UNSET, Meta, UnsetType

# The text of $schema, without a "#" at its end; none: the newest draft.
_DRAFTS: Final = frozenset(
    {
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
# They say nothing about what is valid.
_NOTES: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
_LENGTHS: Final = {"minLength": "min_length", "maxLength": "max_length"}
_COUNTS: Final = {"minItems": "min_length", "maxItems": "max_length"}
_BOUNDS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
}
_KEYWORDS_OF: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"required", "properties", "additionalProperties"}),
    "array": frozenset({"items", *_COUNTS}),
    "string": frozenset({"enum", "const", *_LENGTHS}),
    "integer": frozenset({"enum", "const", *_BOUNDS}),
    "number": frozenset(_BOUNDS),
    "boolean": frozenset(),
    "null": frozenset(),
}
# Of a field of the outer object: jsonschema-rs checks them on its value.
_BESIDE: Final = frozenset({"pattern", "format"})
_MOST_LENGTH: Final = 1 << 31
_EXACT: Final = 1 << 53
# What msgspec can compare integers with.
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 63) - 1
# A type for each value of a list would be long to look through.
_MOST_VALUES: Final = 64

Check = Callable[[Any], bool]


class _Other(Exception):
    """The schema says something that no type says."""


def accepting(schema: object) -> "Callable[[Sequence[bytes | None]], bool] | None":
    """Whether all of some messages fit for certain. None where no type can be made of the schema."""
    try:
        made = _Making(schema)
        decode: Callable[[Any], Any] = msgspec.json.Decoder(made.type).decode
    except (_Other, TypeError, ValueError):
        return None
    if not made.checks:

        def decodes(values: Sequence[bytes | None]) -> bool:
            try:
                deque(map(decode, values), 0)
            except _REFUSALS:
                return False
            return True

        return decodes
    checks = tuple(made.checks.items())

    def fits(values: Sequence[bytes | None]) -> bool:
        try:
            for message in map(decode, values):
                for field, check in checks:
                    value = getattr(message, field)
                    if value.__class__ is str and not check(value):
                        return False
        except _REFUSALS:
            return False
        return True

    return fits


# What a message can do to the decoder, and None, which is no message.
_REFUSALS: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Making:
    """The type of a schema, and what remains to be checked of the fields of its outer object."""

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, dict):
            raise _Other
        draft = schema.get("$schema")
        if draft is not None and str(draft).removesuffix("#") not in _DRAFTS:
            raise _Other
        self._draft = {} if draft is None else {"$schema": draft}
        self.checks: dict[str, Check] = {}
        allowed = _NOTES | {"$schema", "type"} | _KEYWORDS_OF["object"]
        if schema.get("type") != "object" or not set(schema) <= allowed:
            raise _Other
        self.type = self._object(schema, outer=True)

    def _any(self, schema: object) -> Any:
        """The type of the values that fit. Raises _Other."""
        if not isinstance(schema, dict) or "$schema" in schema:
            raise _Other
        names = schema.get("type")
        kinds = [names] if isinstance(names, str) else names
        if not isinstance(kinds, list) or not kinds or len(set(kinds)) != len(kinds):
            raise _Other
        allowed = _NOTES | {"type"}
        for kind in kinds:
            allowed |= _KEYWORDS_OF[kind] if kind in _KEYWORDS_OF else _no_kind(kind)
        if not set(schema) <= allowed or ({"integer", "number"} <= set(kinds)):
            raise _Other
        if len(kinds) > 1 and ({"enum", "const"} & set(schema)):
            raise _Other
        return Union[tuple(self._kind(kind, schema) for kind in kinds)]  # noqa: UP007  # of many

    def _kind(self, kind: str, schema: dict[str, Any]) -> Any:
        if kind == "object":
            return self._object(schema, outer=False)
        if kind == "array":
            if not isinstance(schema.get("items"), dict):
                raise _Other
            return _limited(list[self._any(schema["items"])], schema, _COUNTS, _is_length)  # type: ignore[misc]  # made at run time
        if kind == "string":
            return _listed(str, schema) or _limited(str, schema, _LENGTHS, _is_length)
        if kind == "integer":
            return _listed(int, schema) or _limited(int, schema, _BOUNDS, _is_integer)
        if kind == "number":
            return _limited(float, schema, _BOUNDS, _is_exact)
        return bool if kind == "boolean" else None

    def _object(self, schema: dict[str, Any], *, outer: bool) -> Any:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _Other
        if not set(required) <= set(properties):
            raise _Other
        fields: list[Any] = []
        names: dict[str, str] = {}
        for number, (name, of_field) in enumerate(properties.items()):
            field = f"field{number}"
            names[field] = name
            made = self._field(field, of_field) if outer else self._any(of_field)
            optional = (field, made | UnsetType if made is not None else None | UnsetType, UNSET)
            fields.append((field, made) if name in required else optional)
        return msgspec.defstruct(
            "Message",
            fields,
            kw_only=True,
            forbid_unknown_fields=True,
            rename=names,
            gc=False,
        )

    def _field(self, field: str, schema: object) -> Any:
        """Of the outer object: what strings are checked for besides is left to jsonschema-rs."""
        if not isinstance(schema, dict) or not _BESIDE & set(schema):
            return self._any(schema)
        beside = {key: value for key, value in schema.items() if key in _BESIDE}
        made = self._any({key: value for key, value in schema.items() if key not in _BESIDE})
        self.checks[field] = jsonschema_rs.validator_for(
            {**self._draft, **beside},
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(),
        ).is_valid
        return made


def _no_kind(kind: object) -> frozenset[str]:
    raise _Other


def _listed(kind: type[str] | type[int], schema: dict[str, Any]) -> Any:
    """The type of listed values of one kind; None where there is no list."""
    if not {"enum", "const"} & set(schema):
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if set(schema) - _NOTES - {"type"} not in ({"enum"}, {"const"}):
        raise _Other
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_VALUES:
        raise _Other
    if any(type(one) is not kind for one in values):
        raise _Other
    if kind is int and not all(map(_is_integer, values)):
        raise _Other
    return Literal[tuple(values)]


def _limited(kind: Any, schema: dict[str, Any], keywords: Mapping[str, str], fits: Check) -> Any:
    limits = {keywords[key]: schema[key] for key in keywords if key in schema}
    if (
        not all(map(fits, limits.values()))
        or {"ge", "gt"} <= set(limits)
        or {"le", "lt"} <= set(limits)
    ):
        raise _Other
    return Annotated[kind, Meta(**limits)] if limits else kind


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_LENGTH


def _is_integer(value: object) -> bool:
    return type(value) is int and _LEAST_INTEGER < value < _MOST_INTEGER


def _is_exact(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < _EXACT  # type: ignore[arg-type]  # a number
