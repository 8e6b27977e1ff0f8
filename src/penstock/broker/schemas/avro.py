"""Avro: validation by decoding with fastavro, and the rules of schema resolution between two versions.

A message is the plain binary encoding, without a header. fastavro decodes without a bound on depth and
count, so definitions whose messages could take more than they hold are refused: types that contain
themselves, and arrays of what takes no bytes.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from penstock.broker.schemas.kinds import Limits, check_depth, invalid_definition, shortened

# What a message can do to the decoder.
_UNREADABLE: Final = (
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    ArithmeticError,
)
_BAD_DEFINITION: Final = (SchemaParseException, UnknownType, *_UNREADABLE)
# What a reader of the other type can take: writer -> readers.
_PROMOTED: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED: Final = ("record", "error", "enum", "fixed")


def compile_definition(definition: bytes, limits: Limits) -> "AvroValidator":
    try:
        written = msgspec.json.decode(definition)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_definition(f"no JSON: {error}") from None
    check_depth(written, limits.max_depth)
    try:
        schema = fastavro.parse_schema(written, expand=False)
        whole = _Names().whole(written, (), "")
    except KeyError as error:
        raise invalid_definition(f"{error} is missing") from None
    except _BAD_DEFINITION as error:
        raise invalid_definition(str(error) or type(error).__name__) from None
    return AvroValidator(schema, whole)


class AvroValidator:
    def __init__(self, schema: Any, whole: Any) -> None:
        self._schema = schema
        # With every name in place of which its definition stands.
        self.whole = whole

    def invalid(self, values: Sequence[bytes | None]) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, value in enumerate(values):
            if value is not None:
                errors = self.errors(value)
                if errors:
                    found[number] = errors[0]
        return found

    def errors(self, value: bytes) -> list[str]:
        if not value and self.whole != "null":
            return ["empty message"]
        try:
            self._decode(value)
        except _UNREADABLE as error:
            reason = str(error) or type(error).__name__
            return [shortened(f"Avro validation failed: {reason}")]
        return []

    def _decode(self, value: bytes) -> object:
        content = io.BytesIO(value)
        message = fastavro.schemaless_reader(content, self._schema, None)
        left = len(value) - content.tell()
        if left:
            raise ValueError(f"{left} bytes behind the message")
        return message

    def problems(self, older: "AvroValidator") -> list[str]:
        return list(_problems(self.whole, older.whole, ""))

    def decoded(self, value: bytes) -> object:
        try:
            return self._decode(value)
        except _UNREADABLE as error:
            raise ValueError(str(error)) from None


class _Names:
    """Puts the definition of each name where the name stands."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def whole(self, schema: Any, inside: tuple[str, ...], space: str) -> Any:
        if isinstance(schema, str):
            name = schema if schema in self._known or "." in schema else f"{space}.{schema}"
            if name in inside:
                raise ValueError(f"type {schema} contains itself: its messages have no bound")
            return self._known.get(name, schema)
        if isinstance(schema, list):
            return [self.whole(one, inside, space) for one in schema]
        kind = schema["type"]
        if kind in _NAMED:
            name = schema["name"]
            space = name.rpartition(".")[0] or schema.get("namespace", space)
            full = name if "." in name else f"{space}.{name}"
            made = {**schema, "name": full}
            if kind in ("record", "error"):
                made["fields"] = [
                    {**field, "type": self.whole(field["type"], (*inside, full), space)}
                    for field in schema["fields"]
                ]
            self._known[full] = made
            return made
        if kind == "array":
            items = self.whole(schema["items"], inside, space)
            if _takes_no_bytes(items):
                raise ValueError("an array of what takes no bytes: its messages have no bound")
            return {**schema, "items": items}
        if kind == "map":
            return {**schema, "values": self.whole(schema["values"], inside, space)}
        return self.whole(kind, inside, space) if isinstance(kind, dict | list) else schema


def _takes_no_bytes(schema: Any) -> bool:
    kind = _kind(schema)
    if kind == "fixed":
        return not schema["size"]
    if kind == "record":
        return all(_takes_no_bytes(field["type"]) for field in schema["fields"])
    return bool(kind == "null")


def _kind(schema: Any) -> Any:
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema


def _short_name(schema: Any) -> str:
    return str(schema["name"]).rpartition(".")[2]


def _problems(reader: Any, writer: Any, path: str) -> Iterator[str]:
    """Why a reader does not take what a writer wrote, by the rules of the Avro specification."""
    place = path or "."
    mine, theirs = _kind(reader), _kind(writer)
    if theirs == "union":
        for branch in writer:
            if mine == "union" and any(not any(_problems(one, branch, path)) for one in reader):
                continue
            if mine == "union":
                yield f"{place}: type {_kind(branch)} is not allowed any more"
            else:
                yield from _problems(reader, branch, path)
    elif mine == "union":
        if not any(not any(_problems(one, writer, path)) for one in reader):
            yield f"{place}: type {theirs} is not allowed any more"
    elif mine != theirs:
        if mine not in _PROMOTED.get(theirs, ()):
            yield f"{place}: type {theirs} is not allowed any more"
    elif mine in ("record", "error"):
        yield from _record_problems(reader, writer, path)
    elif mine == "array":
        yield from _problems(reader["items"], writer["items"], f"{path}[]")
    elif mine == "map":
        yield from _problems(reader["values"], writer["values"], f"{path}.*")
    elif mine == "enum":
        gone = [one for one in writer["symbols"] if one not in reader["symbols"]]
        if gone and "default" not in reader:
            yield f"{place}: symbol {gone[0]} is not allowed any more"
    elif mine == "fixed" and reader["size"] != writer["size"]:
        yield f"{place}: size {writer['size']} is not allowed any more"


def _record_problems(reader: Any, writer: Any, path: str) -> Iterator[str]:
    start = f"{path}." if path else ""
    names = {_short_name(reader), *(one.rpartition(".")[2] for one in reader.get("aliases", ()))}
    if _short_name(writer) not in names:
        yield f"{path or '.'}: record {_short_name(writer)} is not allowed any more"
        return
    theirs = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        old = next(
            (theirs[n] for n in (field["name"], *field.get("aliases", ())) if n in theirs), None
        )
        if old is not None:
            yield from _problems(field["type"], old["type"], start + field["name"])
        elif "default" not in field:
            yield f"new field '{start}{field['name']}' has no default and is not in old schema"
