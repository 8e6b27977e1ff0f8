"""A bad network in a thread of its own, between QUIC clients and a live server."""

import select
import threading
from types import TracebackType
from typing import Self

from kit.limits import HANG_S
from kit.udp_shim import UdpShim

LOOK_S = 0.005


class BadNetwork:
    """For one connection: the shim knows one client."""

    def __init__(self, port: int, seed: int) -> None:
        self._shim = UdpShim(port, seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def port(self) -> int:
        return self._shim.port

    @property
    def fates(self) -> dict[str, int]:
        return self._shim.fates

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(HANG_S)
        self._shim.close()

    def _run(self) -> None:
        sockets = [self._shim._inner, self._shim._outer]
        while not self._stop.is_set():
            wait_s = self._shim.step()
            select.select(sockets, [], [], LOOK_S if wait_s is None else wait_s)
