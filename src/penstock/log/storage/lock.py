"""One process per data directory.

The lock is a kernel lock (flock) on `<directory>/penstock.lock`. The kernel releases it when the
holder dies, however it dies, so there is never a stale lock to clean up. The text in the file only
says who holds it; it decides nothing. The file stays after a release: removing it would let two
processes lock two different files of the same name.

A child forked without exec shares the lock and keeps it as long as it lives.
"""

import fcntl
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import msgspec

from penstock.errors import PenstockError

LOCK_FILE_NAME = "penstock.lock"

# The command may hold paths that only the owner should see.
LOCK_FILE_MODE = 0o600

# Enough to recognise a command; the error must stay one line.
MAX_COMMAND_CHARS = 200

# Our own text is far shorter; whatever else lies there is not read into memory.
MAX_LOCK_FILE_BYTES = 4096


class Holder(msgspec.Struct, frozen=True):
    """Who holds a data directory, as written into the lock file (JSON)."""

    pid: int
    host: str
    command: str
    started_s: float

    def __str__(self) -> str:
        try:
            started = datetime.fromtimestamp(self.started_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        except (OverflowError, ValueError, OSError):
            started = "an unknown time"
        return f"process {self.pid} on {self.host} since {started} ({self.command})"


class DataDirectoryInUse(PenstockError):
    """Another process holds the data directory; `holder` is None when it did not say who."""

    path: str
    holder: Holder | None

    def __str__(self) -> str:
        holder = self.holder or "another process that left no name"
        return (
            f"data directory {self.path} is in use by {holder}; "
            "stop that process or choose another directory"
        )


class DataDirectoryLock:
    """Holds a data directory from construction to `release`. Also a context manager."""

    def __init__(self, directory: str, *, clock_s: Callable[[], float] = time.time) -> None:
        """Take the lock or raise DataDirectoryInUse at once. The directory must exist."""
        self.directory = directory
        path = os.path.join(directory, LOCK_FILE_NAME)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        used = os.path.exists(path)
        self._descriptor = os.open(path, flags, LOCK_FILE_MODE)
        # When the directory was last in use, by the clock of then; 0 if it never was.
        self.last_used_us = os.fstat(self._descriptor).st_mtime_ns // 1000 if used else 0
        try:
            self._take(clock_s)
        except BaseException:
            self._close()
            raise

    def is_there(self) -> bool:
        """False if the directory was removed or replaced."""
        try:
            found = os.stat(os.path.join(self.directory, LOCK_FILE_NAME))
        except OSError:
            return False
        ours = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def note_use(self, now_us: int) -> None:
        """The next process finds it as `last_used_us`. Never an earlier time than the last one."""
        self.last_used_us = max(self.last_used_us, now_us)
        with suppress(OSError):
            os.utime(self._descriptor, ns=(self.last_used_us * 1000, self.last_used_us * 1000))

    def release(self) -> None:
        """Let the next process in. Twice is fine."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            if self.last_used_us:
                self.note_use(0)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _take(self, clock_s: Callable[[], float]) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUse(self.directory, _read_holder(self._descriptor)) from None
        holder = Holder(os.getpid(), socket.gethostname(), _own_command(), clock_s())
        # On a full disk the name is lost, not the lock: the log must start to free space.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, msgspec.json.encode(holder) + b"\n", 0)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


@contextmanager
def locked_for_reading(directory: str) -> Iterator[None]:
    """Keeps servers out during a read. Writes nothing, so it works on a read-only copy too.

    Raises DataDirectoryInUse. A directory without a lock file was never opened by a server.
    """
    path = os.path.join(directory, LOCK_FILE_NAME)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUse(directory, _read_holder(descriptor)) from None
        yield
    finally:
        os.close(descriptor)


def _own_command() -> str:
    command = shlex.join(sys.argv)[:MAX_COMMAND_CHARS]
    return "".join(character if character.isprintable() else "?" for character in command)


def _read_holder(descriptor: int) -> Holder | None:
    """None while the holder has not yet written, or when the text is not ours."""
    try:
        return msgspec.json.decode(os.pread(descriptor, MAX_LOCK_FILE_BYTES, 0), type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
