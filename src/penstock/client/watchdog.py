"""Ends a wait that takes too long.

For calls that block and know no time limit, but can be cancelled from another thread. Time that the caller
spends on something else does not count.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Watchdog:
    """Calls `cancel` once, from a thread of its own, when a single wait lasts for `limit_s`.

    Use it in a `with`. `fired` tells whether it did.
    """

    def __init__(
        self,
        limit_s: float,
        cancel: Callable[[], object],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fired = False
        self._limit_s = limit_s
        self._cancel = cancel
        self._clock_s = clock_s
        self._since_s: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def wait_begins(self) -> None:
        self._since_s = self._clock_s()

    def wait_ends(self) -> None:
        self._since_s = None

    def _watch(self) -> None:
        pause_s = self._limit_s
        while not self._end.wait(pause_s):
            since_s = self._since_s
            pause_s = self._limit_s
            if since_s is not None:
                pause_s += since_s - self._clock_s()
            if pause_s <= 0:
                self.fired = True
                self._cancel()
                return
