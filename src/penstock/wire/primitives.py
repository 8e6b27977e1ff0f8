"""Integers and text as the length-prefixed protocols write them, for compiled code.

`librt.strings` reads and writes signed integers only; here are the unsigned ones, and the size of a
frame that begins with a u32. Knows no protocol.
"""

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i32_be
from mypy_extensions import i32, i64, u8

LENGTH_BYTES: Final = 4
U16_MAX: Final = 0xFFFF
U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
_U32_SPAN: Final = 0x1_0000_0000
_I32_MAX: Final = 0x7FFF_FFFF


def read_u16(buffer: bytes, position: i64) -> i64:
    return i64(read_i16_be(buffer, position)) & 0xFFFF


def read_u32(buffer: bytes, position: i64) -> i64:
    return i64(read_i32_be(buffer, position)) & 0xFFFF_FFFF


def read_u64(buffer: bytes, position: i64) -> int:
    value: int = read_i64_be(buffer, position)
    return value & U64_MAX


def write_u16(writer: BytesWriter, value: i64) -> None:
    writer.append(u8((value >> 8) & 255))
    writer.append(u8(value & 255))


def write_u32(writer: BytesWriter, value: i64) -> None:
    if value > _I32_MAX:
        value -= _U32_SPAN
    write_i32_be(writer, i32(value))


def put_u32(writer: BytesWriter, position: i64, value: i64) -> None:
    """Overwrite four bytes already written: a length or a count that is known only at the end."""
    writer[position] = u8((value >> 24) & 255)
    writer[position + 1] = u8((value >> 16) & 255)
    writer[position + 2] = u8((value >> 8) & 255)
    writer[position + 3] = u8(value & 255)


def write_u64(writer: BytesWriter, value: int) -> None:
    writer.write(value.to_bytes(8, "big"))


def frame_size(buffer: bytes, start: i64, end: i64) -> i64:
    """Bytes of the frame that begins at `start`, prefix included; 0 while its length is incomplete.

    For a reader that wants to make room for one large frame at once instead of joining it piece by
    piece. The splitters refuse a length above the cap before this is called.
    """
    if end - start < LENGTH_BYTES:
        return 0
    return LENGTH_BYTES + read_u32(buffer, start)


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
