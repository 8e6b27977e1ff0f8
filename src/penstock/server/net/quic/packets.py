"""The parts of QUIC packets that can be read without keys (RFC 8999, RFC 9000 section 17), and the
packets that are sent without a connection: version negotiation and Retry. Also the tokens of Retry. No
sockets, no state.

    long header     first byte (bit 7), u32 version, u8 length and destination id, u8 length and source id;
                    an Initial goes on with a variable-length integer and that many bytes of token
    short header    first byte, destination id: those that we give have ID_BYTES
"""

import hmac
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.quic.events import VERSION_1

# Ids of QUIC version 1 are not longer.
MOST_ID_BYTES: Final = 20
# A first packet of a client is at least this long (RFC 9000 section 14.1), so that an answer is no
# amplification.
LEAST_INITIAL_BYTES: Final = 1200

SUPPORTED_VERSIONS: Final = (VERSION_1,)

LONG_HEADER: Final = 0x80
# Bits 4 and 5 of the first byte of a long header, in version 1.
INITIAL: Final = 0x00
_TYPE_BITS: Final = 0x30
_VARINT: Final = (
    struct.Struct(">B"),
    struct.Struct(">H"),
    struct.Struct(">I"),
    struct.Struct(">Q"),
)
_U32: Final = struct.Struct(">I")

# A token proves an address for this long: a client answers a Retry at once.
TOKEN_TIME_S: Final = 10.0
_TIME: Final = struct.Struct(">Q")
_MAC_BYTES: Final = 16


class LongHeader(NamedTuple):
    version: int
    initial: bool
    destination: bytes
    source: bytes
    token: bytes


def long_header(data: bytes) -> LongHeader | None:
    """None if it is cut off or breaks the limits of version 1."""
    if len(data) < 7:
        return None
    version = _U32.unpack_from(data, 1)[0]
    at = 5
    ids: list[bytes] = []
    for _ in range(2):
        if at >= len(data):
            return None
        size = data[at]
        at += 1
        if at + size > len(data) or (version in SUPPORTED_VERSIONS and size > MOST_ID_BYTES):
            return None
        ids.append(data[at : at + size])
        at += size
    initial = version in SUPPORTED_VERSIONS and data[0] & _TYPE_BITS == INITIAL
    token = b""
    if initial:
        if at >= len(data):
            return None
        field = _VARINT[data[at] >> 6]
        if at + field.size > len(data):
            return None
        size = field.unpack_from(data, at)[0] & ((1 << (field.size * 8 - 2)) - 1)
        at += field.size
        if at + size > len(data):
            return None
        token = data[at : at + size]
    return LongHeader(version, initial, ids[0], ids[1], token)


def version_negotiation(header: LongHeader, random_byte: int) -> bytes:
    """The answer to a version that we do not speak: ids swapped, then the versions that we do."""
    parts = [bytes([LONG_HEADER | random_byte]), _U32.pack(0)]
    for one in (header.source, header.destination):
        parts += [bytes([len(one)]), one]
    parts += [_U32.pack(version) for version in SUPPORTED_VERSIONS]
    return b"".join(parts)


class RetryTokens:
    """Tokens that only we can make: the time, the first destination id of the client, and a code over both,
    the address and the id that the Retry told the client to use."""

    def __init__(self, secret: bytes, clock_s: Callable[[], float]) -> None:
        self._secret = secret
        self._clock_s = clock_s

    def make(self, address: str, first_id: bytes, retry_id: bytes) -> bytes:
        body = _TIME.pack(int(self._clock_s() * 1000)) + first_id
        return self._code(body, address, retry_id) + body

    def first_id(self, token: bytes, address: str, retry_id: bytes) -> bytes | None:
        """The id that the client began with; None if the token is not ours, or late, or of somebody
        else."""
        code, body = token[:_MAC_BYTES], token[_MAC_BYTES:]
        if len(body) < _TIME.size or len(body) > _TIME.size + MOST_ID_BYTES:
            return None
        if not hmac.compare_digest(code, self._code(body, address, retry_id)):
            return None
        age_s = self._clock_s() - _TIME.unpack_from(body)[0] / 1000
        return body[_TIME.size :] if age_s <= TOKEN_TIME_S else None

    def _code(self, body: bytes, address: str, retry_id: bytes) -> bytes:
        said = bytes([len(body)]) + body + bytes([len(retry_id)]) + retry_id + address.encode()
        return hmac.digest(self._secret, said, "sha256")[:_MAC_BYTES]
