"""Checks whether the data directory still exists: what is written into removed files is lost.

The kernel accepts writes to files that were removed, so no append fails when somebody removes the
directory, or the one of the topics in it. A thread looks at both; maintenance, once a minute, would come
too late. It also keeps the time of the last use with the lock file, for the clock of the next start.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from penstock.log.storage.lock import DataDirectoryLock
from penstock.log.storage.names import TOPICS_DIRECTORY

# One system call. What is acknowledged in between is lost, with all the rest.
LOOK_INTERVAL_S: Final = 0.25
# The time of the last use need not be exact: what counts is hours (steady_clock.py).
LOOKS_PER_NOTE: Final = 240

logger = logging.getLogger(__name__)


class Presence:
    """`lost`, once set, stays: the files that are open belong to what was removed. `on_loss` is called
    once, by the thread."""

    def __init__(
        self,
        lock: DataDirectoryLock,
        on_loss: Callable[[str], None],
        steady_us: Callable[[], int],
        interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        self.lost: str | None = None
        self._lock = lock
        self._on_loss = on_loss
        self._steady_us = steady_us
        self._topics = os.path.join(lock.directory, TOPICS_DIRECTORY)
        self._topics_there = _identity(self._topics)
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        while not self._closing.wait(self._interval_s):
            if not self._lock.is_there():
                self._lose("data directory", self._lock.directory)
                return
            if _identity(self._topics) != self._topics_there:
                self._lose("directory of the topics", self._topics)
                return
            looks += 1
            if looks % LOOKS_PER_NOTE == 0:
                self._lock.note_use(self._steady_us())

    def _lose(self, what: str, path: str) -> None:
        logger.error(
            "%s %s was removed under the running server: nothing is stored any more; put it back and"
            " start the server again",
            what,
            path,
        )
        reason = f"the {what} was removed"
        self._on_loss(reason)
        self.lost = reason


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
