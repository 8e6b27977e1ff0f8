"""A bad network between a UDP client and a server: drops, doubles and reorders datagrams, by a seed."""

import heapq
import random
import socket
from typing import Final

# One datagram in twenty has each of these fates.
SHARE: Final = 0.05
# A datagram that is late lets so many others pass.
LATE_BY: Final = 5


class UdpShim:
    """Stands between one client and the server; steps like a peer (kit.quic_peer.Stepped)."""

    def __init__(self, port: int, seed: int, share: float = SHARE) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._inner = self._socket()
        self._outer = self._socket()
        self._server = ("127.0.0.1", port)
        self._client: tuple[str, int] | None = None
        self.port = int(self._outer.getsockname()[1])
        self._number = 0
        self._late: list[tuple[int, int, bytes, bool]] = []
        self.fates = {"dropped": 0, "doubled": 0, "late": 0, "passed": 0}

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1", 0))
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        return made

    def fileno(self) -> int:
        return self._outer.fileno()

    def step(self) -> float | None:
        for source, to_server in ((self._outer, True), (self._inner, False)):
            while True:
                try:
                    data, address = source.recvfrom(65_535)
                except BlockingIOError:
                    break
                if to_server:
                    self._client = address
                self._pass(data, to_server)
        # Late ones that nothing follows would never come: they go at the next look.
        if self._late:
            self._number += 1
        self._release()
        return 0.001 if self._late else None

    def _pass(self, data: bytes, to_server: bool) -> None:
        self._number += 1
        fate = self._random.random()
        if fate < self._share:
            self.fates["dropped"] += 1
        elif fate < 2 * self._share:
            self.fates["late"] += 1
            entry = (self._number + LATE_BY, self._number, data, to_server)
            heapq.heappush(self._late, entry)
        else:
            self._give(data, to_server)
            self.fates["passed"] += 1
            if fate < 3 * self._share:
                self.fates["doubled"] += 1
                self._give(data, to_server)
        self._release()

    def _release(self) -> None:
        while self._late and self._late[0][0] <= self._number:
            _, _, data, to_server = heapq.heappop(self._late)
            self._give(data, to_server)

    def _give(self, data: bytes, to_server: bool) -> None:
        try:
            if to_server:
                self._inner.sendto(data, self._server)
            elif self._client is not None:
                self._outer.sendto(data, self._client)
        except BlockingIOError:
            self.fates["dropped"] += 1

    def close(self) -> None:
        self._outer.close()
        self._inner.close()
