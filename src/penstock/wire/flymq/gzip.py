"""Compressed payloads: inflating gzip to a size that is bounded, and refusing the rest by name.

A payload is one gzip member; bytes behind it are ignored, as they are behind every request. Not for the
event loop: 32 MiB take a tenth of a second.
"""

import zlib
from typing import Final

from penstock.wire.flymq.frames import COMPRESSIONS, FlyMQProtocolError

GZIP: Final = 1
# Of zlib: a gzip header and trailer around the data.
_GZIP_WINDOW: Final = 31


def check_compression(number: int) -> None:
    """Raises FlyMQProtocolError for everything but gzip and none, with the name of the algorithm."""
    if number > GZIP:
        name = COMPRESSIONS[number] if number < len(COMPRESSIONS) else f"number {number}"
        raise FlyMQProtocolError(f"compression {name} is not supported; send gzip or none", 3)


def inflated(packed: bytes, max_bytes: int) -> bytes:
    """The payload. Raises FlyMQProtocolError when it is no gzip or would be larger than `max_bytes`."""
    unpacking = zlib.decompressobj(_GZIP_WINDOW)
    try:
        payload = unpacking.decompress(packed, max_bytes + 1)
    except zlib.error as error:
        raise FlyMQProtocolError(f"not a gzip payload: {error}", 0) from None
    if len(payload) > max_bytes:
        raise FlyMQProtocolError(f"the inflated payload has more than {max_bytes} bytes", 0)
    if not unpacking.eof:
        raise FlyMQProtocolError("the gzip payload is cut off", len(packed))
    return payload
