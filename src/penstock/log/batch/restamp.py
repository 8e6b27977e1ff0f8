"""The header of a batch that is stored already, for another place in a log, without reading its body.

The checksum covers the body first and the header behind it. Of two inputs that differ in their last bytes
alone the checksums differ as those of these bytes do, because a CRC is linear: what the body adds is in the
old checksum and stays in the new one, right or wrong. A body that was damaged before is damaged after it.
"""

from typing import Final

from crc32c import crc32c

from penstock.log.batch.format import (
    CRC_FROM,
    FLAG_PRODUCER,
    HEADER_SIZE,
    MAGIC,
    PREFIX,
    REST,
    VERSION,
    BatchError,
    BatchHeader,
    parse_header,
)

# Whoever checks a body has just read it: others may run meanwhile.
_FREE_GIL: Final = 1


def check_body(head: bytes, body: bytes) -> BatchHeader:
    """Whether this is the body that the header was made for. Raises BatchError."""
    header = parse_header(head, 0)
    if header.length != HEADER_SIZE + len(body):
        raise BatchError("batch is cut off")
    expected = PREFIX.unpack_from(head)[2]
    found = crc32c(head[CRC_FROM:], crc32c(body, 0, _FREE_GIL))
    if found != expected:
        raise BatchError(f"checksum is {found:08x}, not {expected:08x}")
    return header


def restamped(
    head: bytes,
    header: BatchHeader,
    base_offset: int,
    durable_offset: int,
    salt: int,
    producer_id: int,
    sequence: int,
) -> bytes:
    """The header for this place, as a batch of this producer. `header` is `head`, parsed: one of this
    version, neither encrypted nor of a producer yet."""
    rest = REST.pack(
        header.flags | FLAG_PRODUCER,
        VERSION,
        base_offset,
        header.count,
        header.raw_length,
        header.first_time_us,
        header.max_time_us,
        producer_id,
        0,
        sequence,
        durable_offset,
        salt,
        0,
    )
    checksum = PREFIX.unpack_from(head)[2] ^ crc32c(head[CRC_FROM:]) ^ crc32c(rest)
    return PREFIX.pack(MAGIC, header.length, checksum) + rest
