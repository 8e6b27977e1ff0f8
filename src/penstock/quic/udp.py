"""A UDP socket that takes and gives many datagrams with one call, where the kernel can (UDP_GRO,
UDP_SEGMENT).

Knows no QUIC. What the kernel does not take is kept, in order, until `flush`. Hot: compiled by mypyc.
"""

import errno
import socket
import struct
import sys
from collections import deque
from typing import Any, Final

from penstock.quic.events import DATAGRAM_BYTES, SOCKET_BUFFER_BYTES

Address = tuple[Any, ...]

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104

# The largest payload of a UDP datagram, and what the kernel joins to at the most.
MOST_BYTES: Final = 65_535
# Segments in one call of sendmsg: ten of 1,452 bytes. More would exceed what one datagram may hold on some
# kernels, and then vanish without an error.
MOST_SEGMENTS: Final = 10
MOST_SEGMENTED_BYTES: Final = MOST_SEGMENTS * DATAGRAM_BYTES
# Room for the one control message that is expected: the size of the segments.
_CONTROL_BYTES: Final = socket.CMSG_SPACE(4)
_SEGMENT: Final = struct.Struct("@H")
# The kernel or the device cannot split: EIO where a checksum cannot be made, the others where it is
# unknown.
_NO_SEGMENTS: Final = frozenset({errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP})


class UdpSocket:
    """Around a bound socket that does not block. `offload` False: one datagram for each call."""

    def __init__(self, bound: socket.socket, *, offload: bool = True) -> None:
        self.socket = bound
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            bound.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        # The kernel doubles what it is asked for, for its own bookkeeping, and shows the double.
        self.receive_buffer_bytes = bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self.joins = offload and self._can_join()
        self.splits = offload
        self._unsent: deque[tuple[list[bytes], int, Address]] = deque()
        self.lost_sends = 0
        # The last error of a connected socket was that nothing listens there.
        self.refused = False
        self._receive = bound.recvmsg
        self._send_one = bound.sendto
        self._send_many = bound.sendmsg

    def _can_join(self) -> bool:
        try:
            self.socket.setsockopt(SOL_UDP, UDP_GRO, 1)
        except OSError:
            return False
        return True

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> tuple[bytes, int, Address] | None:
        """Datagrams of one peer: their bytes, the size of each but the last, and the address. None: no
        more."""
        try:
            if not self.joins:
                data, address = self.socket.recvfrom(MOST_BYTES)
                return data, len(data) or 1, address
            data, control, _, address = self._receive(MOST_BYTES, _CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:  # of an earlier send, which the kernel reports here
            self.refused = error.errno == errno.ECONNREFUSED
            return b"", 1, ()
        for level, kind, value in control:
            if level == SOL_UDP and kind == UDP_GRO:
                return data, int.from_bytes(value[:4], sys.byteorder), address
        return data, len(data) or 1, address

    def send(self, datagrams: list[bytes], address: Address) -> None:
        """In order; runs of one size go together. After the first that the kernel does not take, all
        wait."""
        count = len(datagrams)
        first = 0
        while first < count:
            size = len(datagrams[first])
            last = first + 1
            if self.splits:
                room = MOST_SEGMENTED_BYTES - size
                while last < count and last - first < MOST_SEGMENTS:
                    following = len(datagrams[last])
                    if following > size or following > room:
                        break
                    last += 1
                    room -= following
                    if following < size:  # only the last one of a call may be shorter
                        break
            together = datagrams if last - first == count else datagrams[first:last]
            if self._unsent or not self._try(together, size, address):
                self._unsent.append((together, size, address))
            first = last

    def flush(self) -> None:
        while self._unsent:
            together, size, address = self._unsent.popleft()
            if not self._try(together, size, address):
                self._unsent.appendleft((together, size, address))
                return

    def close(self) -> None:
        self._unsent.clear()
        self.socket.close()

    def _try(self, together: list[bytes], size: int, address: Address) -> bool:
        """Datagrams of one size, but for the last. False if the kernel has no room. What cannot be sent at
        all is lost, as on any network."""
        try:
            if len(together) == 1:
                self._send_one(together[0], address)
            elif self.splits:
                control = [(SOL_UDP, UDP_SEGMENT, _SEGMENT.pack(size))]
                self._send_many(together, control, 0, address)
            else:
                while together:  # those that are sent are not sent again
                    self._send_one(together[0], address)
                    del together[0]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if len(together) > 1 and self.splits and error.errno in _NO_SEGMENTS:
                self.splits = False
                return self._try(together, size, address)
            if error.errno == errno.ENOBUFS:
                return False
            self.lost_sends += 1
        return True
