"""What a QUIC connection reports, and the limits that it is made with. No library's types."""

from dataclasses import dataclass
from typing import Final

# (kind, connection, stream, data, number)
#
#   kind     stream  data                              number
#   OPENED   -       the name agreed on with ALPN      -        the handshake is complete
#   DATA     id      bytes of the stream, in order     1: the last ones (FIN), else 0
#   RESET    id      -                                 code     the peer gave up its side
#   STOPPED  id      -                                 code     the peer reads no more; our side is reset
#   STREAMS  -       -                                 -        `open` has given none, and may give one now
#   WRITABLE id      -                                 -        `watch` has asked for it
#   CLOSED   -       reason                            code     the connection is gone
Event = tuple[int, int, int, bytes, int]

OPENED: Final = 0
DATA: Final = 1
RESET: Final = 2
STOPPED: Final = 3
STREAMS: Final = 4
CLOSED: Final = 5
WRITABLE: Final = 6

NO_STREAM: Final = -1
# Of CLOSED, where no code was sent or received: idle for too long, or lost.
NO_CODE: Final = -1

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Connection ids of ours.
ID_BYTES: Final = 8
VERSION_1: Final = 0x00000001

# The datagrams that we send, without the headers of UDP and IP: what an Ethernet frame carries over IPv6.
DATAGRAM_BYTES: Final = 1452
# One stream may have this much on its way to us. With 16 MiB, 5,000 packets were lost on a loopback.
STREAM_WINDOW_BYTES: Final = MIB
# All streams of a connection together; never more than the socket's buffer holds, or packets are lost.
CONNECTION_WINDOW_BYTES: Final = 4 * MIB
SOCKET_BUFFER_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Of one connection. `streams`: that the peer may have open, of each kind."""

    streams: int = 1_024
    idle_time_s: float = 30.0
    # A PING of ours after this much silence, so that idle subscribers stay; None: none.
    keep_alive_s: float | None = 10.0
    datagram_bytes: int = DATAGRAM_BYTES
    stream_window_bytes: int = STREAM_WINDOW_BYTES
    connection_window_bytes: int = CONNECTION_WINDOW_BYTES
