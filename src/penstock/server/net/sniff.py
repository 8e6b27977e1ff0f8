"""Which protocol a connection speaks, by its first bytes. A pure function: no sockets, no state.

    first bytes                                                   answer
    16 03                                                         TLS: handshake, then look again
    00 00 00 0b 01                                                BlipMQ: HELLO, 11 bytes
    u32 length, then { " or JSON blank space                      RustLog, dialect J
    u32 length, then 01 to 09 or ff                               RustLog, dialect B
    00 00 00 00                                                   RustLog, which has an answer for it
    u32 length above RustLog's cap, not text (20 to 7e)           RustLog, which has an answer for it
    text (GET, SSH-), then { " 01 to 08 or ff                     RustLog: a length above its cap too
    anything else (af is FlyMQ, which is not served yet)          none

A HELLO is 9 + 2 bytes. Dialect B's Produce starts with 01 too: 1 type + 2 + n topic + 4 partition + 4
count are 11 bytes for n = 0 only, and without a topic it is refused anyway. So a Produce that can
succeed has 12 bytes or more, and 11 with 01 is always BlipMQ. A BlipMQ client that opens with another
frame than HELLO needs the listener of its own.
"""

from enum import Enum
from typing import Final

from penstock.wire.blipmq import frames as blipmq
from penstock.wire.rustlog import frames as rustlog

TLS_HANDSHAKE: Final = 0x16
TLS_MAJOR_VERSION: Final = 0x03
FLYMQ_MAGIC: Final = 0xAF

HELLO_LENGTH: Final = blipmq.LENGTH_OVERHEAD + 2
LENGTH_BYTES: Final = 4
# Length and first byte of the payload: enough for every answer.
HEAD_BYTES: Final = LENGTH_BYTES + 1

_RUSTLOG_FIRST: Final = frozenset(rustlog.JSON_OPENERS + rustlog.BLANKS + rustlog.BINARY_TYPES)
# Behind a word of a text protocol a blank tells nothing: HTTP has "POST " and "HEAD ".
_RUSTLOG_BEHIND_TEXT: Final = _RUSTLOG_FIRST.difference(rustlog.BLANKS)
_TEXT: Final = range(0x20, 0x7F)


class Verdict(Enum):
    MORE = "more"
    NONE = "none"
    TLS = "tls"
    BLIPMQ = "blipmq"
    RUSTLOG = "rustlog"


def sniff(head: bytes) -> Verdict:
    """What the bytes so far say. Never changes its mind when more bytes follow."""
    if not head:
        return Verdict.MORE
    if head[0] == TLS_HANDSHAKE:
        return sniff_tls(head)
    if head[0] == FLYMQ_MAGIC:
        return Verdict.NONE
    if len(head) < LENGTH_BYTES:
        return Verdict.MORE
    length = int.from_bytes(head[:LENGTH_BYTES], "big")
    if length == 0 or (length > rustlog.MAX_FRAME_BYTES and head[0] not in _TEXT):
        return Verdict.RUSTLOG
    if len(head) < HEAD_BYTES:
        return Verdict.MORE
    return _by_payload(length, head[LENGTH_BYTES])


def sniff_tls(head: bytes) -> Verdict:
    """TLS or not, for a listener with one protocol: neither can begin with a length like this."""
    if not head or (len(head) == 1 and head[0] == TLS_HANDSHAKE):
        return Verdict.MORE
    if head[0] == TLS_HANDSHAKE and head[1] == TLS_MAJOR_VERSION:
        return Verdict.TLS
    return Verdict.NONE


def _by_payload(length: int, first: int) -> Verdict:
    if length == HELLO_LENGTH and first == blipmq.HELLO:
        return Verdict.BLIPMQ
    rustlog_first = _RUSTLOG_BEHIND_TEXT if length > rustlog.MAX_FRAME_BYTES else _RUSTLOG_FIRST
    return Verdict.RUSTLOG if first in rustlog_first else Verdict.NONE
