"""Rows of Avro values (the plain binary encoding, without a header), by an Avro schema.

    int, long, float, double, boolean, string, bytes    int, long, float, double, boolean, string, binary
    fixed                   binary              enum                      string
    record, array, map      struct, array, map  union of null and one     that one, or null
    date                    date                timestamp-millis/-micros  timestamp
    decimal                 decimal             local-timestamp-...       timestamp_ntz
    other unions            JSON text           other logical types       what they are stored as

Bytes do not say which version wrote them: rows.py knows which one was the latest then.
"""

import io
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Final

import fastavro
import msgspec
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from penstock.spark.typed.shape import (
    TIMESTAMP,
    Errors,
    ListOf,
    MapOf,
    Member,
    NotFitting,
    Object,
    Scalar,
    Shape,
    Text,
)

_UNREADABLE: Final = (
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    ArithmeticError,
)
_PLAIN: Final = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
# Spark has no more digits.
MAX_PRECISION: Final = 38
# Spark calls them by the larger type, and so does everybody.
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_NAMED: Final = ("record", "error", "enum", "fixed")


class AvroRows:
    """One version of an Avro schema."""

    def __init__(self, definition: str) -> None:
        written = _without_unused(msgspec.json.decode(definition))
        self.schema = fastavro.parse_schema(written)
        shape = _Shapes().of(written, "")
        self._takes_no_bytes = written == "null"
        if not isinstance(shape, Object):
            shape = Object([Member("value", _itself, shape)])
        self.shape = shape

    def decoded(self, values: Sequence[bytes | None]) -> tuple[list[Any], Errors]:
        """Rows; None where a value is null or was not written with this schema."""
        rows: list[Any] = []
        errors: Errors = {}
        for number, value in enumerate(values):
            try:
                rows.append(None if value is None else self.projected(value, self))
            except NotFitting as error:
                rows.append(None)
                errors[number] = str(error)
        return rows, errors

    def projected(self, value: bytes, writer: "AvroRows") -> Any:
        """A value that another version wrote, with the columns of this one."""
        if not value and not self._takes_no_bytes:
            raise NotFitting("empty message")
        if writer is self:
            return _decoded(value, self.schema, None)
        try:
            return _decoded(value, writer.schema, self.schema)
        except SchemaResolutionError:
            # The other way round than versions are compatible: a long where there was an int. By the names
            # of its fields it may well have what the columns want.
            return _decoded(value, writer.schema, None)


def _decoded(value: bytes, writer: Any, reader: Any) -> Any:
    content = io.BytesIO(value)
    try:
        row = fastavro.schemaless_reader(content, writer, reader)
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NotFitting(f"invalid Avro: {reason}") from None
    left = len(value) - content.tell()
    if left:
        raise NotFitting(f"invalid Avro: {left} bytes behind the message")
    return row


def _itself(value: Any) -> Any:
    return value


def _without_unused(schema: Any) -> Any:
    """Logical types that Spark has no type for are read as what they are stored as."""
    if isinstance(schema, list):
        return [_without_unused(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key != "logicalType"}
    logical = schema.get("logicalType")
    if logical in _LOGICAL or (
        logical == "decimal" and schema.get("precision", MAX_PRECISION + 1) <= MAX_PRECISION
    ):
        made["logicalType"] = logical
    for key in ("type", "items", "values"):
        if key in made:
            made[key] = _without_unused(made[key])
    if "fields" in made:
        made["fields"] = [{**one, "type": _without_unused(one["type"])} for one in made["fields"]]
    return made


def _as_json(value: Any) -> str | None:
    return msgspec.json.encode(value, enc_hook=str).decode()


class _Shapes:
    """Names of types stand for what they were defined as."""

    def __init__(self) -> None:
        self._known: dict[str, Shape] = {}

    def of(self, schema: Any, space: str) -> Shape:
        if isinstance(schema, str):
            if schema in _PLAIN:
                return Scalar(_PLAIN[schema])
            known = self._known.get(schema) or self._known.get(f"{space}.{schema}")
            return known if known is not None else Text(_as_json)
        if isinstance(schema, list):
            return self._union(schema, space)
        kind = schema["type"]
        if kind in _NAMED:
            return self._named(kind, schema, space)
        if kind == "array":
            return ListOf(self.of(schema["items"], space))
        if kind == "map":
            return MapOf(self.of(schema["values"], space))
        return self._logical(schema) or self.of(kind, space)

    def _logical(self, schema: Any) -> Shape | None:
        logical = schema.get("logicalType")
        if logical == "decimal":
            return Scalar(pa.decimal128(schema["precision"], schema.get("scale", 0)))
        return Scalar(_LOGICAL[logical]) if logical in _LOGICAL else None

    def _named(self, kind: str, schema: Any, space: str) -> Shape:
        name = schema["name"]
        space = name.rpartition(".")[0] or schema.get("namespace", space)
        full = name if "." in name else f"{space}.{name}"
        shape: Shape
        if kind in ("record", "error"):
            members = [
                Member(one["name"], methodcaller("get", one["name"]), self.of(one["type"], space))
                for one in schema["fields"]
            ]
            shape = Object(members) if members else Text(_as_json)
        else:
            shape = self._logical(schema) or Scalar(_PLAIN[kind])
        self._known[full] = shape
        return shape

    def _union(self, schema: list[Any], space: str) -> Shape:
        shapes = [(one, self.of(one, space)) for one in schema if one != "null"]
        names = frozenset(one if isinstance(one, str) else "" for one, _ in shapes)
        if names in _WIDER:
            return Scalar(_PLAIN[_WIDER[names]])
        return shapes[0][1] if len(shapes) == 1 else Text(_as_json)
