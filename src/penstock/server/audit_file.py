"""The audit trail as lines of a file too, for programs that collect them: one JSON object a line.

A thread writes, so that the event loop waits for no disk. The file is renamed to `.1` at a size, and is
opened anew at SIGHUP, after something else has renamed it. It is a copy: the topic `_audit` is what is
durable. A write that fails is counted and logged, and stops nothing.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Final

# Lines that wait for a slow disk; more are counted as lost.
MAX_WAITING: Final = 10_000
# Users and addresses are for nobody else.
MODE: Final = 0o600
# At a stop.
CLOSE_TIME_S: Final = 5.0
COMPLAINT_S: Final = 60.0

logger = logging.getLogger(__name__)


class _File(RotatingFileHandler):
    """logging's file that rotates; it is given lines that are ready."""

    def _open(self) -> TextIOWrapper:
        """For the eyes of the server alone."""
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, MODE)
        return TextIOWrapper(open(descriptor, "ab"), encoding="utf-8")

    def write(self, lines: list[bytes]) -> None:
        """Raises OSError."""
        for line in lines:
            record = logging.makeLogRecord({"msg": line.decode()})
            if self.shouldRollover(record):
                self.doRollover()
            if self.stream is None:
                self.stream = self._open()
            self.stream.write(line.decode() + "\n")
        if self.stream is not None:
            self.stream.flush()


class AuditFile:
    """`size_bytes` None: it is never renamed here. Raises OSError when the file cannot be opened."""

    def __init__(
        self,
        path: str,
        size_bytes: int | None,
        count: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.settings = path, size_bytes, count
        self.lost = 0
        self._clock_s = clock_s
        self._last_complaint_s: float | None = None
        self._file = _File(path, maxBytes=size_bytes or 0, backupCount=count, encoding="utf-8")
        # None: open it anew. An empty list: the end.
        self._waiting: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._lines = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="penstock-audit-file", daemon=True)
        self._thread.start()

    def write(self, lines: list[bytes]) -> None:
        """Does not wait."""
        with self._lock:
            if self._lines + len(lines) > MAX_WAITING:
                self.lost += len(lines)
                return
            self._lines += len(lines)
        self._waiting.put(lines)

    def reopen(self) -> None:
        """The next line goes to a file of this name, whoever has renamed the one before."""
        self._waiting.put(None)

    def close(self) -> None:
        """Writes what waits."""
        self._waiting.put([])
        self._thread.join(CLOSE_TIME_S)
        self._file.close()

    def _work(self) -> None:
        while (lines := self._waiting.get()) != []:
            try:
                if lines is None:
                    self._file.close()  # the next write opens it
                    continue
                self._file.write(lines)
            except (OSError, ValueError) as error:
                self._failed(len(lines or ()), error)
            finally:
                with self._lock:
                    self._lines -= len(lines or ())

    def _failed(self, number: int, error: Exception) -> None:
        self.lost += number
        now_s = self._clock_s()
        if self._last_complaint_s is None or now_s - self._last_complaint_s >= COMPLAINT_S:
            self._last_complaint_s = now_s
            logger.error("%s lacks %d events of the audit trail: %s", self.path, number, error)
