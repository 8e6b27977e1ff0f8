"""Replies to FETCH and FETCH_BINARY, encoded from the columns of stored batches. Hot: compiled by mypyc.

sdk    count u32, next_offset u64, count x (offset u64, key blob, value blob)
spec   count u32, count x (key blob, value blob, offset u64), next_offset u64

blob = u32 length and bytes, all big-endian; an empty key stands for none.
FETCH_BINARY is always as in sdk.
"""

from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from penstock.wire.flymq.frames import (
    FLAG_BINARY,
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    SDK,
    VERSION,
)
from penstock.wire.primitives import put_u32, write_u64

# For each message beside its key and value: two lengths and the offset.
MESSAGE_OVERHEAD: Final = 16
# Beside the messages: count and next_offset.
REPLY_OVERHEAD: Final = 12


@final
class FetchReplyWriter:
    """One reply. `full` is set when a message no longer fits; that one is not taken. The first message is
    taken whatever its size is, as long as it fits a frame."""

    def __init__(self, opcode: int, dialect: int, max_messages: int, max_bytes: int) -> None:
        self.count: int = 0
        self.full = max_messages <= 0
        self._max_messages = max_messages
        self._room: i64 = max_bytes - REPLY_OVERHEAD
        self._sdk = dialect == SDK
        self._writer = BytesWriter()
        self._writer.append(MAGIC)
        self._writer.append(VERSION)
        self._writer.append(i64(opcode))
        self._writer.append(FLAG_BINARY)
        write_i32_be(self._writer, 0)
        write_i32_be(self._writer, 0)
        if self._sdk:
            write_i64_be(self._writer, 0)

    def add_rows(
        self,
        buffer: bytes,
        value_offsets_at: i64,
        values_at: i64,
        key_offsets_at: i64,
        keys_at: i64,
        offsets_at: i64,
        base_offset: i64,
        first_row: i64,
        row_count: i64,
    ) -> int:
        """Takes consecutive rows of a log batch, as many as fit: how many.

        Positions are those of the batch's columns in `buffer`; 0 for a column that it does not have. Column
        offsets are i32 little-endian, one more than rows; `offsets_at` has an i64 for each row.
        """
        if self.full:
            return 0
        writer = self._writer
        sdk = self._sdk
        room: i64 = self._room
        count: i64 = self.count
        most: i64 = min(row_count, self._max_messages - count)
        row: i64 = first_row
        last: i64 = first_row + most
        value_at: i64 = values_at + i64(read_i32_le(buffer, value_offsets_at + 4 * row))
        while row < last:
            value_end: i64 = values_at + i64(read_i32_le(buffer, value_offsets_at + 4 * row + 4))
            value_size: i64 = value_end - value_at
            key_at: i64 = 0
            key_size: i64 = 0
            if keys_at:
                key_at = keys_at + i64(read_i32_le(buffer, key_offsets_at + 4 * row))
                key_end: i64 = keys_at + i64(read_i32_le(buffer, key_offsets_at + 4 * row + 4))
                key_size = key_end - key_at
            cost: i64 = MESSAGE_OVERHEAD + key_size + value_size
            # The first message goes out whatever room there is, if a frame can hold it.
            if cost > room and (count > 0 or cost > MAX_PAYLOAD_BYTES - REPLY_OVERHEAD):
                self.full = True
                break
            offset: i64 = base_offset + row
            if offsets_at:
                offset = read_i64_le(buffer, offsets_at + 8 * row)
            if sdk:
                write_i64_be(writer, offset)
            if key_size:
                write_i32_be(writer, i32(key_size))
                writer.write(buffer[key_at : key_at + key_size])
                write_i32_be(writer, i32(value_size))
            else:
                # The lengths of key and value at once: the upper half is 0.
                write_i64_be(writer, value_size)
            writer.write(buffer[value_at:value_end])
            if not sdk:
                write_i64_be(writer, offset)
            room -= cost
            count += 1
            row += 1
            value_at = value_end
        self._room = room
        self.count = count
        if count >= self._max_messages:
            self.full = True
        return row - first_row

    def finish(self, next_offset: int) -> bytes:
        """The whole frame. Nothing may be added after."""
        self.full = True
        writer = self._writer
        if self._sdk:
            put_u32(writer, HEADER_BYTES + 4, next_offset >> 32)
            put_u32(writer, HEADER_BYTES + 8, next_offset & 0xFFFF_FFFF)
        else:
            write_u64(writer, next_offset)
        put_u32(writer, 4, len(writer) - HEADER_BYTES)
        put_u32(writer, HEADER_BYTES, self.count)
        return writer.getvalue()
