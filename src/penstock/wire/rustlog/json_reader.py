"""A strict JSON reader that goes straight from bytes to what dialect J needs.

As strict as serde with derived types: UTF-8 only, no NaN, no lone surrogates, whole numbers only,
ranges checked, nesting bounded. Number lists become `bytes` without a list of numbers in between.
Builds no tree: unknown values are checked and skipped. Knows no request; json.py does.
"""

import json
from typing import Final, final

from librt.strings import BytesWriter, read_i32_le
from mypy_extensions import i64, u8

from penstock.wire.primitives import U64_MAX
from penstock.wire.rustlog.frames import DECODE_ERROR, RustLogProtocolError

# serde_json's own limit. A value nested deeper is refused before it can exhaust the stack.
MAX_DEPTH: Final = 128
# Digits of the largest u64; more are out of range whatever they say.
_MAX_DIGITS: Final = 20
# Digits that an i64 holds for certain.
_SAFE_DIGITS: Final = 18

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_COMMA: Final = 0x2C
_COLON: Final = 0x3A
_MINUS: Final = 0x2D
_ZERO: Final = 0x30
_OPEN_LIST: Final = 0x5B
_CLOSE_LIST: Final = 0x5D
_OPEN_OBJECT: Final = 0x7B
_CLOSE_OBJECT: Final = 0x7D
_END: Final = -1


@final
class JsonReader:
    """A position in bytes `start` to `end` of a buffer. Every method moves it past its token."""

    def __init__(self, buffer: bytes, start: i64, end: i64, complaint: str) -> None:
        self.buffer = buffer
        self.start = start
        self.position = start
        self.end = end
        # How an error begins: "failed to parse request".
        self.complaint = complaint
        self.writer = BytesWriter()

    def error(self, what: str) -> RustLogProtocolError:
        position: i64 = self.position - self.start
        text = f"{self.complaint}: {what} at byte {position}"
        return RustLogProtocolError(text, position, DECODE_ERROR)

    def peek(self) -> i64:
        """The next byte that is not blank, still unread; -1 at the end."""
        position = self.position
        while position < self.end:
            byte: i64 = self.buffer[position]
            if byte not in (0x20, 0x0A, 0x0D, 0x09):
                self.position = position
                return byte
            position += 1
        self.position = position
        return _END

    def take(self, byte: i64, what: str) -> None:
        if self.peek() != byte:
            raise self.error(f"expected {what}")
        self.position += 1

    def finish(self) -> None:
        if self.peek() != _END:
            raise self.error("trailing characters")

    # ---- objects and lists: `while reader.more(...)` ----

    def open_object(self) -> None:
        self.take(_OPEN_OBJECT, "`{`")

    def open_list(self) -> None:
        self.take(_OPEN_LIST, "`[`")

    def more_keys(self, first: bool) -> bool:
        """Whether another key follows; takes the comma before it, or the closing brace."""
        return self._more(_CLOSE_OBJECT, first, "`,` or `}`")

    def more_items(self, first: bool) -> bool:
        """Whether another item follows; takes the comma before it, or the closing bracket."""
        return self._more(_CLOSE_LIST, first, "`,` or `]`")

    def _more(self, closer: i64, first: bool, what: str) -> bool:
        byte = self.peek()
        if byte == closer:
            self.position += 1
            return False
        if not first:
            if byte != _COMMA:
                raise self.error(f"expected {what}")
            self.position += 1
        return True

    def read_key(self) -> str:
        key = self.read_string()
        self.take(_COLON, "`:`")
        return key

    # ---- single values ----

    def read_string(self) -> str:
        if self.peek() != _QUOTE:
            raise self.error("expected a string")
        begin: i64 = self.position + 1
        position = begin
        escaped = False
        while position < self.end:
            byte: i64 = self.buffer[position]
            if byte == _QUOTE:
                text = self._text(begin, position, escaped)
                self.position = position + 1
                return text
            if byte == _BACKSLASH:
                escaped = True
                position += 1
            elif byte < 0x20:
                self.position = position
                raise self.error("control character in a string")
            position += 1
        raise self.error("string without end")

    def _text(self, begin: i64, end: i64, escaped: bool) -> str:
        try:
            if not escaped:
                return self.buffer[begin:end].decode("utf-8")
            # The standard parser knows the escapes; it lets lone surrogates through.
            text: str = json.loads(self.buffer[begin - 1 : end + 1].decode("utf-8"))
            text.encode("utf-8")
        except UnicodeDecodeError:
            raise self.error("string is not UTF-8") from None
        except UnicodeEncodeError:
            raise self.error("lone surrogate in a string") from None
        except ValueError:
            raise self.error("invalid escape in a string") from None
        return text

    def read_unsigned(self, most: int) -> int:
        """A whole number from 0 to `most`, at most a u64."""
        first = self.peek()
        if first == _MINUS:
            raise self.error("number below 0")
        if not _is_digit(first):
            raise self.error("expected a whole number")
        begin = self.position
        position = begin
        value: i64 = 0
        while position < self.end and _is_digit(self.buffer[position]):
            if position - begin < _SAFE_DIGITS:
                value = value * 10 + self.buffer[position] - _ZERO
            position += 1
        if first == _ZERO and position - begin > 1:
            raise self.error("number with a leading zero")
        if position < self.end and _is_number_byte(self.buffer[position]):
            raise self.error("expected a whole number")
        number: int = value
        if position - begin > _SAFE_DIGITS:
            long = position - begin > _MAX_DIGITS
            number = U64_MAX + 1 if long else int(self.buffer[begin:position])
        if number > most:
            raise self.error(f"number above {most}")
        self.position = position
        return number

    def read_bool(self) -> bool:
        if self.peek() == 0x74:
            self._literal(b"true")
            return True
        self._literal(b"false")
        return False

    def take_null(self) -> bool:
        """Whether the next value is null; takes it if so."""
        if self.peek() != 0x6E:
            return False
        self._literal(b"null")
        return True

    def _literal(self, word: bytes) -> None:
        size: i64 = len(word)
        if self.end - self.position < size or (
            self.buffer[self.position : self.position + size] != word
        ):
            raise self.error(f"expected {word.decode()}")
        self.position += size

    # ---- number lists ----

    def read_byte_lists(self) -> list[bytes]:
        """A list of number lists: the records of a Produce."""
        records: list[bytes] = []
        self.open_list()
        first = True
        while self.more_items(first):
            records.append(self.read_byte_list())
            first = False
        return records

    def read_byte_list(self) -> bytes:
        """Numbers from 0 to 255 in brackets."""
        self.open_list()
        self.writer.truncate(0)
        first = True
        while self.more_items(first):
            self._compact_bytes()
            self.writer.append(u8(self.read_unsigned(255)))
            first = False
        return self.writer.getvalue()

    def _compact_bytes(self) -> None:
        """Take numbers that a comma follows at once, as compact JSON has them; stop at any other.

        Four bytes at a time hold the longest number and its comma. Anything unusual is left to
        `read_unsigned`, which also has the error texts.
        """
        buffer = self.buffer
        writer = self.writer
        position = self.position
        last: i64 = self.end - 4
        while position <= last:
            four = i64(read_i32_le(buffer, position))
            value: i64 = (four & 0xFF) - _ZERO
            if value < 0 or value > 9:
                break
            byte: i64 = (four >> 8) & 0xFF
            if byte == _COMMA:
                writer.append(u8(value))
                position += 2
                continue
            byte -= _ZERO
            if byte < 0 or byte > 9 or value == 0:
                break
            value = value * 10 + byte
            byte = (four >> 16) & 0xFF
            if byte == _COMMA:
                writer.append(u8(value))
                position += 3
                continue
            byte -= _ZERO
            if byte < 0 or byte > 9 or (four >> 24) & 0xFF != _COMMA:
                break
            value = value * 10 + byte
            if value > 255:
                break
            writer.append(u8(value))
            position += 4
        self.position = position

    # ---- unknown values ----

    def skip_value(self, depth: i64 = 0) -> None:
        """Any one value: checked, not kept."""
        if depth >= MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")
        byte = self.peek()
        if byte == _QUOTE:
            self.read_string()
        elif byte == _OPEN_OBJECT:
            self.position += 1
            first = True
            while self.more_keys(first):
                self.read_key()
                self.skip_value(depth + 1)
                first = False
        elif byte == _OPEN_LIST:
            self.position += 1
            first = True
            while self.more_items(first):
                self.skip_value(depth + 1)
                first = False
        elif byte == 0x6E:
            self._literal(b"null")
        elif byte in (0x74, 0x66):
            self.read_bool()
        else:
            self._skip_number()

    def _skip_number(self) -> None:
        if self.peek() == _MINUS:
            self.position += 1
        leading_zero = self._next_byte() == _ZERO
        if self._skip_digits() > 1 and leading_zero:
            raise self.error("number with a leading zero")
        if self._next_byte() == 0x2E:
            self.position += 1
            self._skip_digits()
        if self._next_byte() | 0x20 == 0x65:
            self.position += 1
            byte = self._next_byte()
            if byte in (_MINUS, 0x2B):
                self.position += 1
            self._skip_digits()

    def _next_byte(self) -> i64:
        """The next byte, blank or not; -1 at the end."""
        return i64(self.buffer[self.position]) if self.position < self.end else _END

    def _skip_digits(self) -> i64:
        begin = self.position
        while _is_digit(self._next_byte()):
            self.position += 1
        if self.position == begin:
            raise self.error("expected a value")
        return self.position - begin


def _is_digit(byte: i64) -> bool:
    return 0x30 <= byte <= 0x39


def _is_number_byte(byte: i64) -> bool:
    """Of what may follow the digits of a number that is not whole: point and exponent."""
    return byte in (0x2E, 0x65, 0x45)
