"""The layout language of FlyMQ's payloads: a message is a struct whose annotations are its layout.

    class Consume(Message, frozen=True):        reads and writes
        topic: Text                             u16 length and UTF-8
        partition: I32                          i32
        offset: U64                             u64

Fields stand in the order of the wire; a list is a u32 count and its elements, and a message may hold
messages. `decode` and `encode` follow the annotations, in both directions. Bytes behind the last field
are ignored, as the existing programs do. All integers are big-endian.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.wire.flymq.frames import FlyMQProtocolError
from penstock.wire.primitives import U16_MAX, U32_MAX

M = TypeVar("M", bound="Message")

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


class Message(msgspec.Struct, frozen=True):
    """The fields of one payload, or of a part of it."""


class Reader:
    """A position in a payload; each read names the field in its error. `sdk`: a field has the form that
    only an SDK sends."""

    __slots__ = ("_payload", "most_elements", "position", "sdk")

    def __init__(self, payload: bytes, most_elements: int = U32_MAX) -> None:
        """`most_elements`: of one list."""
        self._payload = payload
        self.most_elements = most_elements
        self.position = 0
        self.sdk = False

    @property
    def left(self) -> int:
        return len(self._payload) - self.position

    def error(self, what: str) -> FlyMQProtocolError:
        return FlyMQProtocolError(f"invalid binary format: {what}", self.position)

    def take(self, size: int, field: str) -> bytes:
        if self.left < size:
            raise self.error(f"{field} is cut off, {size} bytes expected and {self.left} there")
        self.position += size
        return self._payload[self.position - size : self.position]

    def peek(self) -> int:
        """The next byte; 0 where there is none."""
        return self._payload[self.position] if self.left else 0

    def text(self, size: int, field: str) -> str:
        raw = self.take(size, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{field} is not UTF-8: {error.reason}") from None


class Kind(NamedTuple):
    """How a field is read and written. `smallest`: the fewest bytes that it takes."""

    name: str
    smallest: int
    read: Callable[[Reader, str], Any]
    write: Callable[[Any], bytes]


# --- the kinds ------------------------------------------------------------------------------------


def _number(name: str, layout: str) -> Kind:
    packed = Struct(f">{layout}")

    def read(reader: Reader, field: str) -> int:
        found: int = packed.unpack(reader.take(packed.size, field))[0]
        return found

    return Kind(name, packed.size, read, packed.pack)


def _read_flag(reader: Reader, field: str) -> bool:
    """Exactly 1 is true, as for the existing programs."""
    return reader.take(1, field) == b"\x01"


def _write_flag(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _read_text(reader: Reader, field: str) -> str:
    size: int = _U16.unpack(reader.take(2, f"the length of {field}"))[0]
    return reader.text(size, field)


def write_text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > U16_MAX:
        raise ValueError(f"text of {len(raw)} bytes, the most is {U16_MAX}")
    return _U16.pack(len(raw)) + raw


def _read_short(reader: Reader, field: str) -> str:
    return reader.text(reader.take(1, f"the length of {field}")[0], field)


def _write_short(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > 255:
        raise ValueError(f"short text of {len(raw)} bytes, the most is 255")
    return bytes((len(raw),)) + raw


def _read_mode(reader: Reader, field: str) -> str:
    """The document has two bytes of length, the SDKs one. No mode is 256 bytes long: a first byte of 0 with
    more behind it is the document's."""
    if reader.left > 1 and not reader.peek():
        return _read_text(reader, field)
    reader.sdk = True
    return _read_short(reader, field)


def _read_blob(reader: Reader, field: str) -> bytes:
    size: int = _U32.unpack(reader.take(4, f"the length of {field}"))[0]
    return reader.take(size, field)


def _write_blob(value: bytes) -> bytes:
    if len(value) > U32_MAX:
        raise ValueError(f"{len(value)} bytes, the most is {U32_MAX}")
    return _U32.pack(len(value)) + value


def _read_filter(reader: Reader, field: str) -> str | None:
    """Every SDK sends it, empty or not; the document has none. One whose length reaches past the end counts
    as empty, as for the existing server."""
    if reader.left < 2:
        return None
    reader.sdk = True
    size: int = _U16.unpack(reader.take(2, field))[0]
    return reader.text(size, field) if size <= reader.left else ""


def optional(kind: Kind, default: Any) -> Kind:
    """A last field that may be missing. One that is None is not written."""

    def read(reader: Reader, field: str) -> Any:
        return default if reader.left < kind.smallest else kind.read(reader, field)

    def write(value: Any) -> bytes:
        return b"" if value is None else kind.write(value)

    return Kind(f"optional {kind.name}", 0, read, write)


def _read_count(reader: Reader, field: str, smallest: int) -> int:
    """Checked against the bytes that are there before anything is made of it."""
    count: int = _U32.unpack(reader.take(4, f"the count of {field}"))[0]
    if count * max(smallest, 1) > reader.left:
        raise reader.error(f"{field} has {count} elements, which do not fit what follows")
    if count > reader.most_elements:
        raise reader.error(f"{field} has {count} elements, {reader.most_elements} at most")
    return count


def _list_of(kind: Kind) -> Kind:
    def read(reader: Reader, field: str) -> list[Any]:
        count = _read_count(reader, field, kind.smallest)
        return [kind.read(reader, field) for _ in range(count)]

    def write(values: list[Any]) -> bytes:
        return b"".join((_U32.pack(len(values)), *map(kind.write, values)))

    return Kind(f"list of {kind.name}", 4, read, write)


U8_KIND: Final = _number("u8", "B")
U16_KIND: Final = _number("u16", "H")
U32_KIND: Final = _number("u32", "I")
I32_KIND: Final = _number("i32", "i")
U64_KIND: Final = _number("u64", "Q")
I64_KIND: Final = _number("i64", "q")
FLAG_KIND: Final = Kind("bool", 1, _read_flag, _write_flag)
TEXT_KIND: Final = Kind("str", 2, _read_text, write_text)
SHORT_KIND: Final = Kind("bstr", 1, _read_short, _write_short)
# Written as the document has it.
MODE_KIND: Final = Kind("mode", 1, _read_mode, write_text)
BLOB_KIND: Final = Kind("blob", 4, _read_blob, _write_blob)
FILTER_KIND: Final = optional(Kind("filter", 0, _read_filter, write_text), None)

U8 = Annotated[int, U8_KIND]
U16 = Annotated[int, U16_KIND]
U32 = Annotated[int, U32_KIND]
I32 = Annotated[int, I32_KIND]
U64 = Annotated[int, U64_KIND]
I64 = Annotated[int, I64_KIND]
FlagByte = Annotated[bool, FLAG_KIND]
Text = Annotated[str, TEXT_KIND]
ShortText = Annotated[str, SHORT_KIND]
Mode = Annotated[str, MODE_KIND]
Blob = Annotated[bytes, BLOB_KIND]
Filter = Annotated[str | None, FILTER_KIND]
# Last fields that may be missing.
LastPartition = Annotated[int, optional(I32_KIND, -1)]
LastText = Annotated[str, optional(TEXT_KIND, "")]
LastFlag = Annotated[bool, optional(FLAG_KIND, False)]
LastOffset = Annotated[int | None, optional(U64_KIND, None)]


# --- messages -------------------------------------------------------------------------------------


def _kind_of(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        kind: Kind = hint.__metadata__[0]
        return kind
    if get_origin(hint) is list:
        return _list_of(_kind_of(get_args(hint)[0]))
    return _message_kind(hint)


@cache
def layout_of(message: type[Message]) -> tuple[tuple[str, Kind], ...]:
    """Its fields in the order of the wire."""
    hints = get_type_hints(message, include_extras=True)
    return tuple((name, _kind_of(hints[name])) for name in message.__struct_fields__)


def _message_kind(message: type[Message]) -> Kind:
    smallest = sum(kind.smallest for _, kind in layout_of(message))

    def read(reader: Reader, field: str) -> Message:
        return read_message(message, reader)

    return Kind(message.__name__, smallest, read, write_message)


def sized(message: type[Message]) -> Kind:
    """A message behind a u32 with its size; bytes of it behind its last field are ignored."""

    def read(reader: Reader, field: str) -> Message:
        return read_message(message, Reader(_read_blob(reader, field), reader.most_elements))

    def write(value: Message) -> bytes:
        return _write_blob(write_message(value))

    return Kind(f"sized {message.__name__}", 4, read, write)


def headed(head: type[Message], element: type[Message]) -> Kind:
    """A list with a message between its count and its elements."""
    kind = _message_kind(element)

    def read(reader: Reader, field: str) -> tuple[Message, list[Message]]:
        count = _read_count(reader, field, kind.smallest)
        return read_message(head, reader), [kind.read(reader, field) for _ in range(count)]

    def write(value: tuple[Message, list[Message]]) -> bytes:
        first, elements = value
        return b"".join(
            (_U32.pack(len(elements)), write_message(first), *map(write_message, elements))
        )

    return Kind(f"headed list of {element.__name__}", 4, read, write)


def read_message(message: type[M], reader: Reader) -> M:
    """Raises FlyMQProtocolError."""
    return message(*[kind.read(reader, name) for name, kind in layout_of(message)])


def write_message(message: Message) -> bytes:
    """The payload. A text or number that its field cannot hold is a ValueError or a struct.error."""
    return b"".join(kind.write(getattr(message, name)) for name, kind in layout_of(type(message)))
