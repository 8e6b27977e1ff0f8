"""Checks whether the data directory still exists: what is written into removed files is lost.

The kernel accepts writes to files that were removed, so no append fails when somebody removes
the directory. A thread looks at the lock file; maintenance, once a minute, would come too late.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from penstock.log.storage.lock import DataDirectoryLock

# One system call. What is acknowledged in between is lost, with all the rest.
LOOK_INTERVAL_S: Final = 0.25

logger = logging.getLogger(__name__)


class Presence:
    """`lost`, once set, stays: the files that are open belong to what was removed. `on_loss` is called
    once, by the thread."""

    def __init__(
        self,
        lock: DataDirectoryLock,
        on_loss: Callable[[str], None],
        interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        self.lost: str | None = None
        self._lock = lock
        self._on_loss = on_loss
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(self._interval_s):
            if not self._lock.is_there():
                reason = "the data directory was removed"
                logger.error(
                    "data directory %s was removed under the running server: nothing is stored any"
                    " more; put it back and start the server again",
                    self._lock.directory,
                )
                self._on_loss(reason)
                self.lost = reason
                return
