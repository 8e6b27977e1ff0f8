"""Felix: the frame around every message, in both directions. Hot: compiled by mypyc.

    byte    0         4         6        8                   12
            magic     version   flags    payload length      payload
            "FLX1"    0001      u16      u32, big-endian

    flags   0x0001   binary publish batch (batches.py), from clients
            0x0002   binary event batch (batches.py), to clients that can read it
            others   ignored; without 0x0001 the payload of a client is JSON (messages.py)

Knows no message, and does not decide what a flaw costs the peer.
"""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64, mypyc_attr

from penstock.wire.errors import PeerError
from penstock.wire.primitives import read_u16, read_u32

MAGIC: Final = 0x464C5831
MAGIC_BYTES: Final = b"FLX1"
VERSION: Final = 1
HEADER_BYTES: Final = 12
FLAG_PUBLISH_BATCH: Final = 0x0001
FLAG_EVENT_BATCH: Final = 0x0002
# The default limit of the document, without the header. A payload of exactly this size is accepted.
MAX_PAYLOAD_BYTES: Final = 16_777_216
# The code of the connection's close after a header that is none.
MALFORMED_FRAME: Final = 1
TOO_LARGE: Final = "frame too large"


@mypyc_attr(native_class=False)
class FelixProtocolError(PeerError):
    """With a code: the connection ends with it. Without: an `error` says `what`, and the stream ends."""


def frame_size(buffer: bytes, start: i64, end: i64) -> i64:
    """Bytes of the frame that begins at `start`, header included; 0 while its header is incomplete."""
    if end - start < HEADER_BYTES:
        return 0
    return HEADER_BYTES + read_u32(buffer, start + 8)


def frame_flaw(buffer: bytes, position: i64, end: i64, max_bytes: i64) -> FelixProtocolError | None:
    """What is wrong with the header at `position`, as far as its bytes are there."""
    size: i64 = end - position
    # The common case first, in three comparisons.
    if (
        size >= HEADER_BYTES
        and i64(read_i32_be(buffer, position)) == MAGIC
        and read_u16(buffer, position + 4) == VERSION
    ):
        if read_u32(buffer, position + 8) <= max_bytes:
            return None
        return FelixProtocolError(TOO_LARGE, position + 8)
    there = buffer[position : position + min(size, 4)]
    if not MAGIC_BYTES.startswith(there):
        return FelixProtocolError("a frame begins with FLX1", position, MALFORMED_FRAME)
    if size >= 6 and read_u16(buffer, position + 4) != VERSION:
        version = int(read_u16(buffer, position + 4))
        what = f"version {version} is not supported, only {VERSION}"
        return FelixProtocolError(what, position + 4, MALFORMED_FRAME)
    return None


def header(flags: int, length: int) -> bytes:
    """A length above the cap of u32 is an OverflowError."""
    return b"".join(
        (
            MAGIC_BYTES,
            VERSION.to_bytes(2, "big"),
            flags.to_bytes(2, "big"),
            length.to_bytes(4, "big"),
        )
    )


def framed(payload: bytes, flags: int = 0) -> bytes:
    """A whole frame."""
    return header(flags, len(payload)) + payload
