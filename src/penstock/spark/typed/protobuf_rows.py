"""Rows of Protobuf values: messages of the first type of a .proto file, as the broker has compiled it.

    int32, sint32, sfixed32     int              bool, string, bytes       boolean, string, binary
    int64, sint64, sfixed64     long             enum                      string, its name
    uint32, fixed32             long             message                   struct
    uint64, fixed64             decimal(20,0)    repeated, map             array, map
    float, double               float, double    Timestamp                 timestamp
    wrappers (StringValue)      what they hold   Duration                  interval day to second
    Struct, Value, ListValue, Any, and messages that contain themselves: their JSON text

A field that says whether it is there (optional, oneof, messages) is null where it is not; others have
their default.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

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

_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_UINT64: Final = pa.decimal128(20, 0)
_PLAIN: Final = {
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "sfixed32": pa.int32(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "sfixed64": pa.int64(),
    "uint32": pa.int64(),
    "fixed32": pa.int64(),
    "uint64": _UINT64,
    "fixed64": _UINT64,
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_GOOGLE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FREE: Final = frozenset(f"{_GOOGLE}{name}" for name in ("Struct", "Value", "ListValue", "Any"))

Convert = Callable[[Any], Any]


class ProtobufRows:
    """One version of a Protobuf schema."""

    def __init__(self, descriptors: bytes) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        own = files.file[-1]
        found = pool.FindFileByName(own.name).message_types_by_name
        descriptor = found[own.message_type[0].name]
        self._message = message_factory.GetMessageClass(descriptor)
        self.shape = Object(_members(descriptor, ()))

    def decoded(self, values: Sequence[bytes | None]) -> tuple[list[Any], Errors]:
        """Rows; None where a value is null or no such message."""
        rows: list[Any] = []
        errors: Errors = {}
        for number, value in enumerate(values):
            try:
                rows.append(None if value is None else self.one(value))
            except NotFitting as error:
                rows.append(None)
                errors[number] = str(error)
        return rows, errors

    def one(self, value: bytes) -> Any:
        """A message without unknown fields: with them almost any bytes would be one."""
        message = self._parsed(value)
        size = message.ByteSize()
        unknown = [one.field_number for one in UnknownFieldSet(message)]
        if unknown:
            raise NotFitting(f"unexpected field: number {unknown[0]}")
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            raise NotFitting("unexpected field: in a nested message")
        return message

    def _parsed(self, value: bytes) -> Any:
        message = self._message()
        try:
            message.ParseFromString(value)
        except DecodeError as error:
            reason = " ".join(str(error).split())
            raise NotFitting(f"invalid Protobuf wire format: {reason}") from None
        missing = message.FindInitializationErrors()
        if missing:
            raise NotFitting(f"missing required field: {missing[0]}")
        return message

    def projected(self, value: bytes, writer: "ProtobufRows") -> Any:
        """A message of another version, with the columns of this one."""
        writer.one(value)
        try:
            return self._parsed(value)
        except NotFitting as error:
            raise OtherColumns(*error.args) from None


def _members(descriptor: Any, inside: tuple[str, ...]) -> list[Member]:
    inside = (*inside, descriptor.full_name)
    return [_member(field, inside) for field in descriptor.fields]


def _member(field: Any, inside: tuple[str, ...]) -> Member:
    name = field.name
    get: Convert = attrgetter(name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        keys = kind.fields_by_name["key"]
        shape, convert = _single(kind.fields_by_name["value"], inside)
        key_type = _PLAIN[_TYPES[keys.type]]
        return Member(name, _mapped(get, convert), MapOf(shape, key_type))
    shape, convert = _single(field, inside)
    if field.is_repeated:
        return Member(name, _repeated(get, convert), ListOf(shape))
    if field.has_presence:
        return Member(name, _present(name, convert), shape)
    return Member(name, get if convert is None else _converted(get, convert), shape)


def _converted(get: Convert, convert: Convert) -> Convert:
    return lambda message: convert(get(message))


def _present(name: str, convert: Convert | None) -> Convert:
    def get(message: Any) -> Any:
        if not message.HasField(name):
            return None
        found = getattr(message, name)
        return found if convert is None else convert(found)

    return get


def _repeated(get: Convert, convert: Convert | None) -> Convert:
    if convert is None:
        return lambda message: list(get(message))
    return lambda message: list(map(convert, get(message)))


def _mapped(get: Convert, convert: Convert | None) -> Convert:
    if convert is None:
        return lambda message: dict(get(message))
    return lambda message: {key: convert(value) for key, value in get(message).items()}


def _single(field: Any, inside: tuple[str, ...]) -> tuple[Shape, Convert | None]:
    """Of one value of the field: its shape, and what it takes to be an Arrow value."""
    name = _TYPES[field.type]
    if name == "enum":
        names = {one.number: one.name for one in field.enum_type.values}
        return Scalar(pa.string()), lambda number: names.get(number, str(number))
    if name in _PLAIN:
        return Scalar(_PLAIN[name]), Decimal if _PLAIN[name] is _UINT64 else None
    kind = field.message_type
    if kind.full_name == f"{_GOOGLE}Timestamp":
        return Scalar(TIMESTAMP), _microseconds
    if kind.full_name == f"{_GOOGLE}Duration":
        return Scalar(pa.duration("us")), _microseconds
    if kind.full_name in _WRAPPERS:
        shape, convert = _single(kind.fields_by_name["value"], inside)
        held: Convert = attrgetter("value")
        return shape, held if convert is None else _converted(held, convert)
    if kind.full_name in _FREE or kind.full_name in inside or not kind.fields:
        return Text(_as_json), None
    return Object(_members(kind, inside)), None


def _microseconds(moment: Any) -> int:
    return int(moment.seconds) * 1_000_000 + int(moment.nanos) // 1000


def _as_json(message: Any) -> str | None:
    text: str = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
    return text
