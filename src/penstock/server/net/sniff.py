"""Which protocol a connection speaks, by its first bytes. Pure functions: no sockets, no state.

TLS is recognised here; then the bytes inside it are looked at in the same way. Every protocol says in its
row how it begins (penstock.server.protocols).

A HELLO of BlipMQ is 9 + 2 bytes. The Produce of RustLog's binary dialect starts with 01 too: 1 type + 2 + n
topic + 4 partition + 4 count are 11 bytes for n = 0 only, and without a topic it is refused anyway. So a
Produce that can succeed has 12 bytes or more, and 11 with 01 is always BlipMQ. A BlipMQ client that opens
with another frame than HELLO needs the listener of its own.
"""

from enum import Enum
from typing import Final

from penstock.server.protocols import TcpRow, tcp_rows

TLS_HANDSHAKE: Final = 0x16
TLS_MAJOR_VERSION: Final = 0x03


class Verdict(Enum):
    MORE = "more"
    NONE = "none"
    TLS = "tls"


def sniff(head: bytes) -> Verdict | TcpRow:
    """The protocol as far as these bytes show it. More bytes never change a result."""
    if not head:
        return Verdict.MORE
    if head[0] == TLS_HANDSHAKE:
        return sniff_tls(head)
    for row in tcp_rows():
        answer = row.begins(head)
        if answer is None:
            return Verdict.MORE
        if answer:
            return row
    return Verdict.NONE


def sniff_tls(head: bytes) -> Verdict:
    """TLS or not, for a listener with one protocol: neither can begin with a length like this."""
    if not head or (len(head) == 1 and head[0] == TLS_HANDSHAKE):
        return Verdict.MORE
    if head[0] == TLS_HANDSHAKE and head[1] == TLS_MAJOR_VERSION:
        return Verdict.TLS
    return Verdict.NONE
