"""FlyMQ: frames, and the two dialects in which a connection may speak.

Every request and reply is a header and a payload. The layouts of the payloads are in messages.py; PRODUCE
and FETCH, which carry the messages, have compiled code of their own (produce.py, fetch.py). Does not know
what a request does.

    byte    0       1         2        3       4                   8
            magic   version   opcode   flags   payload length      payload
            af      01        u8       u8      u32, big-endian

    flags   bit 0      "binary": set in replies, not looked at in requests
            bits 1-3   compression of the payload: 0 none, 1 gzip, 2 lz4, 3 zstd, 4 snappy. Requests may be
                       gzip, see gzip.py; replies are never compressed
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from penstock.wire.errors import PeerError
from penstock.wire.primitives import read_u32

MAGIC: Final = 0xAF
VERSION: Final = 0x01
HEADER_BYTES: Final = 8
# The document's cap on a payload, in both directions. One of exactly this size is accepted.
MAX_PAYLOAD_BYTES: Final = 33_554_432

FLAG_BINARY: Final = 0x01
COMPRESSIONS: Final = ("none", "gzip", "lz4", "zstd", "snappy")

# A connection begins in the dialect of the document. The first request that only an SDK sends switches it
# to that of the SDKs for good. They differ in ERROR, the replies to AUTH and FETCH, and the width of modes.
SPEC: Final = 0
SDK: Final = 1

ERROR: Final = 0xFF


@mypyc_attr(native_class=False)
class FlyMQProtocolError(PeerError):
    """Of a frame: the connection ends without an answer. Of a payload: the answer is an ERROR with `what`,
    and the connection stays open."""


@final
class Frame:
    """A complete frame: its payload is bytes `start` to `end` of the buffer that was split."""

    def __init__(self, opcode: int, flags: int, start: int, end: int) -> None:
        self.opcode = opcode
        self.flags = flags
        self.start = start
        self.end = end

    @property
    def compression(self) -> int:
        return (self.flags >> 1) & 7


def frame_size(buffer: bytes, start: i64, end: i64) -> i64:
    """Bytes of the frame that begins at `start`, header included; 0 while its header is incomplete."""
    if end - start < HEADER_BYTES:
        return 0
    return HEADER_BYTES + read_u32(buffer, start + 4)


def frame_flaw(
    buffer: bytes, position: i64, end: i64, max_bytes: i64 = MAX_PAYLOAD_BYTES
) -> FlyMQProtocolError | None:
    """What is wrong with the header at `position`, as far as its bytes are there."""
    if position < end and i64(buffer[position]) != MAGIC:
        return FlyMQProtocolError(f"the first byte of a frame is 0x{MAGIC:02x}", position)
    if position + 1 < end and i64(buffer[position + 1]) != VERSION:
        return FlyMQProtocolError(f"the version of the protocol is {VERSION}", position + 1)
    if end - position >= HEADER_BYTES and read_u32(buffer, position + 4) > max_bytes:
        return FlyMQProtocolError(f"a payload has at most {max_bytes} bytes", position + 4)
    return None


def split_frames(
    buffer: bytes, start: i64, end: i64
) -> tuple[list[Frame], int, FlyMQProtocolError | None]:
    """All complete frames: (frames, where the rest begins, error). For replies; requests: produce.py."""
    frames: list[Frame] = []
    position = start
    while True:
        flaw = frame_flaw(buffer, position, end)
        size = frame_size(buffer, position, end)
        if flaw is not None or size == 0 or position + size > end:
            return frames, position, flaw
        opcode, flags = buffer[position + 2], buffer[position + 3]
        frames.append(Frame(opcode, flags, position + HEADER_BYTES, position + size))
        position += size


def begins(head: bytes) -> bool | None:
    """Whether a connection that begins with these bytes speaks FlyMQ. None while there are too few."""
    return head[0] == MAGIC if head else None


def framed(opcode: int, payload: bytes) -> bytes:
    """A whole frame. A payload above the cap is a ValueError."""
    size = len(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {size} bytes, the most is {MAX_PAYLOAD_BYTES}")
    head = bytes((MAGIC, VERSION, opcode, FLAG_BINARY))
    return b"".join((head, size.to_bytes(4, "big"), payload))
