"""The toy protocol on the wire. Bytes to frames and back; no I/O, no state.

    byte    0      1      2            4               8
            magic  kind   topic size   payload size    topic, then payload
            d0     u8     u16          u32

A request is PUT (the payload is a record) or GET (the payload is an offset, u64); a reply is DONE (the
payload is the offset, u64), RECORD or REFUSED (the payload is a text). All integers are big-endian.
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.wire.errors import PeerError

MAGIC: Final = 0xD0
PUT: Final = 1
GET: Final = 2
DONE: Final = 3
RECORD: Final = 4
REFUSED: Final = 5
# Enough for a toy, and small enough that nobody can hold much memory with it.
MAX_PAYLOAD_BYTES: Final = 64 * 1024

_HEADER: Final = Struct(">BBHI")
_OFFSET: Final = Struct(">Q")


class Frame(NamedTuple):
    kind: int
    topic: str
    payload: bytes


def begins(head: bytes) -> bool | None:
    return head[0] == MAGIC


def frame_size(buffer: bytes, start: int, end: int) -> int:
    """A header, and then what it says: 0 until the header is there."""
    if end - start < _HEADER.size:
        return 0
    _, _, topic_size, payload_size = _HEADER.unpack_from(buffer, start)
    return int(_HEADER.size + topic_size + payload_size)


def split(buffer: bytes, start: int) -> tuple[list[Frame], int, PeerError | None]:
    """All complete frames: frames, where the rest begins, and what is wrong there."""
    frames: list[Frame] = []
    while len(buffer) - start >= _HEADER.size:
        magic, kind, topic_size, payload_size = _HEADER.unpack_from(buffer, start)
        if magic != MAGIC or payload_size > MAX_PAYLOAD_BYTES:
            return frames, start, PeerError("this is no toy", start)
        topic_at = start + _HEADER.size
        payload_at = topic_at + topic_size
        end = payload_at + payload_size
        if end > len(buffer):
            break
        topic = buffer[topic_at:payload_at].decode("utf-8", "replace")
        frames.append(Frame(kind, topic, buffer[payload_at:end]))
        start = end
    return frames, start, None


def encode(kind: int, topic: str, payload: bytes) -> bytes:
    raw = topic.encode()
    return _HEADER.pack(MAGIC, kind, len(raw), len(payload)) + raw + payload


def pack_offset(offset: int) -> bytes:
    return _OFFSET.pack(offset)


def unpack_offset(payload: bytes) -> int:
    """Raises PeerError."""
    if len(payload) != _OFFSET.size:
        raise PeerError(f"an offset has 8 bytes, not {len(payload)}", 0)
    return int(_OFFSET.unpack(payload)[0])
