"""Fujin's readers: FETCH, ACK and NACK, and the messages that go to them. Hot: compiled by mypyc.

    MSG           6, message                        pushed
    FETCH result  7, cid, error?, u32 count, count x message
    message       value str                         with auto commit
                  id str, value str                 without
    ACK, NACK     8 or 9, cid, u32 count, count x id str
    their result  8 or 9, cid, error?, u32 count, count x (id str, outcome)
    outcome       0: done; 1 and a str: failed. Literally, as the document's table has it: 1 done, 0 failed
    id            u32 partition, u64 offset. Opaque to clients, the same each time a message is delivered

A message is never empty on the wire: clients take a length of 0 for an error. Decides nothing about
deliveries.
"""

from typing import Final, TypeAlias, final

from librt.strings import BytesWriter, read_i32_le, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from penstock.wire.fujin.commands import (
    CID_BYTES,
    DISCONNECT,
    DISCONNECTED,
    FETCH,
    MSG,
    NACK,
    TOO_MANY_IDS,
    Ends,
    encode_result,
    encode_text,
    unknown_opcode,
)
from penstock.wire.primitives import read_u32, write_u32

ID_BYTES: Final = 12
# Of an ACK or NACK: ids for more messages than a reader may have in flight.
MAX_SETTLE_BYTES: Final = 1024 * 1024

_HEAD_BYTES: Final = 9


@final
class Fetch:
    def __init__(self, cid: bytes, count: int) -> None:
        self.cid = cid
        self.count = count


@final
class Settle:
    """ACK or NACK: the ids as they came."""

    def __init__(self, opcode: int, cid: bytes, ids: list[bytes]) -> None:
        self.opcode = opcode
        self.cid = cid
        self.ids = ids


ReaderItem: TypeAlias = Fetch | Settle | Ends


def split_reader(buffer: bytes, start: i64, end: i64) -> tuple[list[ReaderItem], int]:
    """All complete commands of a reader, and where the rest begins."""
    items: list[ReaderItem] = []
    position = start
    while position < end:
        opcode: i64 = i64(buffer[position])
        if opcode == DISCONNECT:
            items.append(Ends(DISCONNECTED, ""))
            return items, end
        if opcode < FETCH or opcode > NACK:
            items.append(unknown_opcode(opcode))
            return items, end
        if end - position < _HEAD_BYTES:
            break
        cid = buffer[position + 1 : position + 5]
        count = read_u32(buffer, position + 5)
        if opcode == FETCH:
            items.append(Fetch(cid, count))
            position += _HEAD_BYTES
            continue
        size = settle_size(buffer, position, end)
        if size > MAX_SETTLE_BYTES:
            words = encode_result(opcode, cid, TOO_MANY_IDS) + DISCONNECTED
            items.append(Ends(words, TOO_MANY_IDS))
            return items, end
        if position + size > end:
            break
        items.append(Settle(opcode, cid, _ids(buffer, position + _HEAD_BYTES, count)))
        position += size
    return items, position


def settle_size(buffer: bytes, start: i64, end: i64) -> i64:
    """Bytes that an ACK or NACK at `start` has at least, from what is there of it."""
    if end - start < _HEAD_BYTES:
        return _HEAD_BYTES
    left = read_u32(buffer, start + 5)
    at: i64 = start + _HEAD_BYTES
    while left > 0 and at + 4 <= end and at - start <= MAX_SETTLE_BYTES:
        at += 4 + read_u32(buffer, at)
        left -= 1
    return at - start + 4 * left


def _ids(buffer: bytes, start: i64, count: i64) -> list[bytes]:
    found: list[bytes] = []
    at: i64 = start
    while count > 0:
        size = read_u32(buffer, at)
        found.append(buffer[at + 4 : at + 4 + size])
        at += 4 + size
        count -= 1
    return found


def encode_id(partition: int, offset: int) -> bytes:
    return partition.to_bytes(4, "big") + offset.to_bytes(8, "big")


def partition_of(id: bytes) -> int:
    """-1 for what is no id of ours."""
    if len(id) != ID_BYTES:
        return -1
    return read_u32(id, 0)


def offset_of(id: bytes) -> int:
    """Of an id with the right length; negative for one that no record has."""
    return read_i64_be(id, 4)


@final
class MessageWriter:
    """Messages from stored batches: pushed ones, or those of one FETCH. `skipped`: empty records, which no
    reader can be sent."""

    def __init__(self, push: bool, with_ids: bool) -> None:
        self.count: int = 0
        self.skipped: int = 0
        self._push = push
        self._with_ids = with_ids
        self._writer = BytesWriter()

    def __len__(self) -> int:
        return len(self._writer)

    def add_rows(
        self,
        buffer: bytes,
        value_offsets_at: i64,
        values_at: i64,
        first_row: i64,
        row_count: i64,
        partition: i64,
        first_offset: i64,
    ) -> None:
        """Rows of a log batch with consecutive offsets. Column offsets are i32 little-endian."""
        writer = self._writer
        push = self._push
        with_ids = self._with_ids
        row: i64 = first_row
        last: i64 = first_row + row_count
        offset: i64 = first_offset
        at: i64 = values_at + i64(read_i32_le(buffer, value_offsets_at + 4 * row))
        skipped: i64 = 0
        while row < last:
            finish: i64 = values_at + i64(read_i32_le(buffer, value_offsets_at + 4 * row + 4))
            if finish == at:
                skipped += 1
            else:
                if push:
                    writer.append(MSG)
                if with_ids:
                    write_i32_be(writer, ID_BYTES)
                    write_u32(writer, partition)
                    write_i64_be(writer, offset)
                write_i32_be(writer, i32(finish - at))
                writer.write(buffer[at:finish])
            at = finish
            offset += 1
            row += 1
        self.skipped += skipped
        self.count += row_count - skipped

    def take(self) -> bytes:
        """Pushed messages so far."""
        return self._writer.getvalue()

    def fetched(self, cid: bytes) -> bytes:
        """The reply to a FETCH."""
        return b"".join((fetch_head(cid, self.count), self._writer.getvalue()))


def fetch_head(cid: bytes, count: int) -> bytes:
    writer = BytesWriter()
    writer.append(FETCH)
    writer.write(cid)
    writer.append(0)
    write_u32(writer, count)
    return writer.getvalue()


def encode_settled(
    opcode: int, cid: bytes, ids: list[bytes], failures: dict[int, str], literal: bool
) -> bytes:
    """The result of an ACK or NACK. `failures`: why, by the number of the id. `literal`: outcomes as the
    document's table has them."""
    writer = BytesWriter()
    writer.append(i64(opcode))
    writer.write(cid)
    writer.append(0)
    write_u32(writer, len(ids))
    number: i64 = 0
    while number < len(ids):
        id = ids[number]
        write_u32(writer, len(id))
        writer.write(id)
        failure = failures.get(number) if failures else None
        if literal:
            writer.append(0 if failure is not None else 1)
        elif failure is None:
            writer.append(0)
        else:
            writer.append(1)
            writer.write(encode_text(failure))
        number += 1
    return writer.getvalue()


def encode_settle(opcode: int, cid: int, ids: list[bytes]) -> bytes:
    """An ACK or NACK."""
    head = bytes((opcode,)) + cid.to_bytes(CID_BYTES, "big") + len(ids).to_bytes(4, "big")
    return head + b"".join(len(id).to_bytes(4, "big") + id for id in ids)
