"""A UDP socket with joined datagrams, and what it does where the kernel cannot join or split."""

import errno
import select
import socket
from typing import Any

import pytest
from kit.limits import HANG_S

from penstock.quic.udp import MOST_SEGMENTS, UDP_GRO, UdpSocket


class Kernel(socket.socket):
    """A real socket of a kernel without some of it. `refuses`: errors of the next calls that send."""

    joins = True
    refuses: tuple[int, ...] = ()
    calls = 0

    def setsockopt(self, *arguments: Any) -> None:
        if arguments[1] == UDP_GRO and not self.joins:
            raise OSError(errno.ENOPROTOOPT, "no such option")
        super().setsockopt(*arguments)

    def _look(self) -> None:
        self.calls += 1
        if self.refuses:
            number, self.refuses = self.refuses[0], self.refuses[1:]
            raise OSError(number, "refused")

    def sendmsg(self, *arguments: Any) -> int:
        self._look()
        return super().sendmsg(*arguments)

    def sendto(self, *arguments: Any) -> int:
        self._look()
        return super().sendto(*arguments)


def bound(kind: type[socket.socket] = Kernel) -> Any:
    made = kind(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made


def received(here: UdpSocket, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        one = here.receive()
        if one is None:
            assert select.select([here.socket], [], [], HANG_S)[0], "hangs"
            continue
        data, size, _ = one
        found += [data[start : start + size] for start in range(0, len(data), size)]
    return found


DATAGRAMS = [bytes([number]) * (1000 if number < 24 else 300) for number in range(25)]


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_datagrams_keep_their_order_and_their_sizes(offload: bool, joins: bool) -> None:
    there, back = bound(), bound()
    back.joins = joins
    here, other = UdpSocket(there, offload=offload), UdpSocket(back)
    here.send(list(DATAGRAMS), back.getsockname())
    assert received(other, len(DATAGRAMS)) == DATAGRAMS
    calls = -(-len(DATAGRAMS) // MOST_SEGMENTS) if offload else len(DATAGRAMS)
    assert there.calls == calls
    assert other.joins == joins
    here.close()
    other.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_kernel_that_cannot_split_gets_them_one_by_one(error: int) -> None:
    there, back = bound(), bound()
    here, other = UdpSocket(there), UdpSocket(back)
    there.refuses = (error,)
    here.send(list(DATAGRAMS), back.getsockname())
    assert not here.splits
    assert received(other, len(DATAGRAMS)) == DATAGRAMS
    here.close()
    other.close()


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOBUFS])
@pytest.mark.parametrize("offload", [True, False])
def test_what_the_kernel_has_no_room_for_waits_in_order(error: int, offload: bool) -> None:
    there, back = bound(), bound()
    here, other = UdpSocket(there, offload=offload), UdpSocket(back)
    there.refuses = (error,)
    here.send(DATAGRAMS[:20], back.getsockname())
    assert here.unsent
    here.send(DATAGRAMS[20:], back.getsockname())
    here.flush()
    assert not here.unsent
    assert received(other, len(DATAGRAMS)) == DATAGRAMS
    here.close()
    other.close()


def test_what_can_never_be_sent_is_lost_and_counted() -> None:
    there, back = bound(), bound()
    here, other = UdpSocket(there), UdpSocket(back)
    there.refuses = (errno.EMSGSIZE,)
    here.send([b"too large"], back.getsockname())
    here.send([b"next"], back.getsockname())
    assert here.lost_sends == 1
    assert received(other, 1) == [b"next"]
    here.close()
    other.close()
