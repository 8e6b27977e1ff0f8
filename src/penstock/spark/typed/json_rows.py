"""Rows of JSON values, by a JSON Schema. msgspec decodes them into objects of classes made from the schema.

    integer            long; 1.0 is one too           string             string
    number             double                         ... date-time      timestamp
    boolean            boolean                        ... date           date
    object             struct of its properties; without any, a map by additionalProperties
    array              array of its items
    everything else    its JSON text: several types, no type, tuples, objects that contain themselves

Types and required fields are checked. Other rules (minimum, pattern) are checked where records are
published; here they would cost more than the decoding. Fields that the schema does not name are left out:
a newer version may have added them.
"""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from penstock.spark.typed.shape import (
    TIMESTAMP,
    Errors,
    ListOf,
    MapOf,
    Member,
    NotFitting,
    Object,
    OtherColumns,
    Scalar,
    Shape,
    Text,
)

_UNREADABLE: Final = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    TypeError,  # null, which is no value
)
# Where one of so many values does not fit, these are looked at one by one.
RUN: Final = 1024
MIN_LONG: Final = -(1 << 63)
MAX_LONG: Final = (1 << 63) - 1

_Long = Annotated[int, msgspec.Meta(ge=MIN_LONG, le=MAX_LONG)]
_Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_PLAIN: Final[dict[str, tuple[Any, pa.DataType]]] = {
    "integer": (_Long, pa.int64()),
    "number": (float, pa.float64()),
    "boolean": (bool, pa.bool_()),
    "string": (str, pa.string()),
    "date-time": (_Instant, TIMESTAMP),
    "date": (datetime.date, pa.date32()),
}
# What msgspec calls them, and what JSON Schema does.
_WORDS: Final = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


class _Whole(int):
    """A long where 1.0 counts too."""


def _whole(kind: type, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        names = ((bool, "bool"), (float, "float"), (str, "str"), (list, "array"), (dict, "object"))
        got = next((name for type_, name in names if isinstance(value, type_)), "null")
        raise ValueError(f"Expected `int`, got `{got}`")
    if not MIN_LONG <= value <= MAX_LONG:
        raise ValueError("Expected `int` of 64 bits")
    return _Whole(value)


class JsonRows:
    """One version of a JSON Schema."""

    def __init__(self, definition: str) -> None:
        schema = msgspec.json.decode(definition)
        self._schema = schema
        self.shape, kind = _Builder(schema).root()
        self._decode = msgspec.json.Decoder(kind).decode
        self._careful: Callable[[bytes], Any] | None = None
        self._lenient: Callable[[bytes], Any] | None = None

    def decoded(self, values: Sequence[bytes | None]) -> tuple[list[Any], Errors]:
        """Rows; None where a value is null or does not fit."""
        rows: list[Any] = []
        errors: Errors = {}
        for start in range(0, len(values), RUN):
            run = values[start : start + RUN]
            try:
                rows += map(self._decode, run)  # type: ignore[arg-type]  # a null raises TypeError
            except _UNREADABLE:
                del rows[start:]
                for number, value in enumerate(run, start):
                    try:
                        rows.append(None if value is None else self.one(value))
                    except NotFitting as error:
                        rows.append(None)
                        errors[number] = str(error)
        return rows, errors

    def one(self, value: bytes) -> Any:
        if self._careful is None:
            kind = _Builder(self._schema, careful=True).root()[1]
            self._careful = msgspec.json.Decoder(kind, dec_hook=_whole).decode
        return _made(self._careful, value)

    def projected(self, value: bytes, writer: "JsonRows") -> Any:
        """A value that fits another version, with the columns of this one."""
        writer.one(value)
        if self._lenient is None:
            kind = _Builder(self._schema, careful=True, required=False).root()[1]
            self._lenient = msgspec.json.Decoder(kind, dec_hook=_whole).decode
        try:
            return _made(self._lenient, value)
        except NotFitting as error:
            raise OtherColumns(*error.args) from None


def _made(decode: Callable[[bytes], Any], value: bytes) -> Any:
    try:
        return decode(value)
    except _UNREADABLE as error:
        raise NotFitting(_reason(value, error)) from None


def _reason(value: bytes, error: Exception) -> str:
    """Path and rule, in the words that the broker has for them."""
    if not value:
        return "empty message"
    text = " ".join(str(error).split())
    if not isinstance(error, msgspec.ValidationError):
        return f"invalid JSON: {text}"
    text, _, place = text.partition(" - at `$")
    path = place.rstrip("`").replace("[...]", "[]").lstrip(".")
    if found := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"missing required field: {path}.{found[1]}".replace(": .", ": ")
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text):
        wanted = " or ".join(_WORDS.get(one, one) for one in found[1].split(" | "))
        return f"type mismatch at {path or '.'}: expected {wanted}, got {_WORDS.get(found[2], found[2])}"
    return f"{path or '.'}: {text}"


def _json_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text in (b"", b"null") else text.decode()


class _Builder:
    """Makes shapes, and types for msgspec, from a JSON Schema. `careful`: 1.0 is an integer.
    Without `required` everything may be missing or null."""

    def __init__(self, root: Any, *, careful: bool = False, required: bool = True) -> None:
        self._root = root
        self._careful = careful
        self._required = required

    def root(self) -> tuple[Object, Any]:
        """Of an object its properties; of anything else one member named value."""
        shape, kind, _ = self._made(self._root, ("#",))
        if isinstance(shape, Object):
            return shape, kind
        return Object([Member("value", lambda value: value, shape)]), kind

    def _made(self, schema: Any, inside: tuple[str, ...]) -> tuple[Shape, Any, bool]:
        """Shape, type, and whether null fits."""
        text = Text(_json_text), msgspec.Raw, True
        schema, inside = self._resolved(schema, inside)
        if schema is None:
            return text
        names, nullable = _types(schema)
        for word in ("anyOf", "oneOf"):
            if word in schema and not names:
                rest = [one for one in schema[word] if one != {"type": "null"}]
                if len(rest) != 1:
                    return text
                shape, kind, inner = self._made(rest[0], inside)
                return shape, kind, inner or len(rest) < len(schema[word])
        if names == {"integer", "number"}:
            names = {"number"}
        if len(names) != 1:
            return text
        (name,) = names
        if name == "object":
            return self._object(schema, inside, nullable) or text
        if name == "array":
            items = schema.get("items")
            if not isinstance(items, dict):
                return text
            item, kind, null = self._made(items, inside)
            return ListOf(item), list[self._or_null(item, kind, null)], nullable  # type: ignore[misc]  # made now
        if name == "string" and schema.get("format") in ("date-time", "date"):
            name = schema["format"]
        kind, arrow = _PLAIN[name]
        if kind is _Long and self._careful:
            kind = _Whole
        return Scalar(arrow), kind, nullable

    def _resolved(
        self, schema: Any, inside: tuple[str, ...]
    ) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Without references, and with all parts of it in one; None if that cannot be said."""
        while isinstance(schema, dict) and "$ref" in schema:
            place = schema["$ref"]
            if place in inside or not place.startswith("#"):
                return None, inside
            inside = (*inside, place)
            schema = _at(self._root, place)
        if not isinstance(schema, dict):
            return None, inside
        if "allOf" not in schema:
            return schema, inside
        whole = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            one, inside = self._resolved(part, inside)
            if one is None:
                return None, inside
            properties = {**whole.get("properties", {}), **one.get("properties", {})}
            required = [*whole.get("required", ()), *one.get("required", ())]
            whole = {**one, **whole}
            if properties:
                whole |= {"properties": properties, "required": required}
        return whole, inside

    def _object(
        self, schema: dict[str, Any], inside: tuple[str, ...], nullable: bool
    ) -> tuple[Shape, Any, bool] | None:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        if not properties:
            others = schema.get("additionalProperties")
            if not isinstance(others, dict) or not others:
                return None
            item, kind, null = self._made(others, inside)
            return MapOf(item), dict[str, self._or_null(item, kind, null)], nullable  # type: ignore[misc]  # made now
        members: list[Member] = []
        fields: list[Any] = []
        required = schema.get("required", ()) if self._required else ()
        for number, (name, inner) in enumerate(properties.items()):
            shape, kind, null = self._made(inner, inside)
            own = f"f{number}"
            members.append(Member(name, attrgetter(own), shape))
            kind = self._or_null(shape, kind, null)
            if name in required:
                fields.append((own, kind))
            else:
                fields.append((own, kind, msgspec.Raw() if kind is msgspec.Raw else None))
        rename = dict(zip((one[0] for one in fields), properties, strict=True))
        made = msgspec.defstruct("Row", fields, rename=rename, gc=False, kw_only=True)
        return Object(members), made, nullable

    def _or_null(self, shape: Shape, kind: Any, nullable: bool) -> Any:
        if kind is msgspec.Raw:
            return kind  # takes everything
        return kind | None if nullable or not self._required else kind


def _types(schema: dict[str, Any]) -> tuple[set[str], bool]:
    """The types that fit, without null, and whether null does."""
    given = schema.get("type")
    if given is None and ("enum" in schema or "const" in schema):
        given = [_type_of(one) for one in schema.get("enum", [schema.get("const")])]
    if given is None:
        given = "object" if "properties" in schema else "array" if "items" in schema else ()
    names = {given} if isinstance(given, str) else set(given)
    return names - {"null"}, "null" in names


def _type_of(value: object) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    for kind, name in (*names, (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"


def _at(root: Any, place: str) -> Any:
    """What a reference means: #, or a JSON pointer behind it. None if there is no such place."""
    found = root
    for step in place[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found
