"""Open files, bounded: segments are opened on demand and closed again, least recently used first.

10,000 partitions work with 1,024 descriptors because no file has to stay open between two uses. A file
in use is never closed under its user.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.log.storage.files import File, FileSystem

# Half of the customary limit of 1,024 descriptors; sockets and the rest have the other half.
DEFAULT_OPEN_FILES = 512


class Handle:
    __slots__ = ("file", "forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.forgotten = False


class HandlePool:
    """Thread-safe. Goes over its limit only by files that are in use at the same moment."""

    def __init__(self, files: FileSystem, max_open: int = DEFAULT_OPEN_FILES) -> None:
        self.files = files
        self._max_open = max_open
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.Lock()
        # How often a file was forgotten: what was being opened meanwhile may be the old one.
        self._forgets = 0

    def __len__(self) -> int:
        return len(self._handles)

    @contextmanager
    def use(self, path: str, *, create: bool = False) -> Iterator[File]:
        handle = self.take(path, create)
        try:
            yield handle.file
        finally:
            self.give_back(handle)

    def take(self, path: str, create: bool = False) -> Handle:
        """As `use` does, for who gives it back himself: a context manager costs microseconds."""
        while True:
            with self._lock:
                handle = self._handles.get(path)
                if handle is not None:
                    self._handles.move_to_end(path)
                    handle.users += 1
                    return handle
                if len(self._handles) >= self._max_open:
                    self._close_unused(self._max_open - 1)
                forgets = self._forgets
            # Opening may wait for the disk: not under the lock that `borrow` takes.
            handle = Handle(self._open(path, create))
            with self._lock:
                if forgets == self._forgets and path not in self._handles:
                    self._handles[path] = handle
                    handle.users = 1
                    return handle
            handle.file.close()  # replaced, or opened by another thread meanwhile

    def _open(self, path: str, create: bool) -> File:
        try:
            return self.files.open(path, create=create, write=True)
        except OSError as error:
            # Others have used up the descriptors. Who flushes must not fail for that: a failed flush
            # is final. Ours can be had again.
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._lock:
                if not self._close_unused(0):
                    raise
        return self.files.open(path, create=create, write=True)

    def borrow(self, path: str) -> Handle | None:
        """The file if it is open and nobody else is at the pool: waits for nothing. `give_back` it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)
                handle.users += 1
            return handle
        finally:
            self._lock.release()

    def give_back(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.forgotten and not handle.users:
                handle.file.close()

    def _close_unused(self, keep: int) -> int:
        """Down to `keep` if possible; gives how many were closed."""
        closed = 0
        for path in [path for path, handle in self._handles.items() if not handle.users]:
            if len(self._handles) <= keep:
                break
            self._handles.pop(path).file.close()
            closed += 1
        return closed

    def forget(self, path: str) -> None:
        """The file was removed or replaced: the next use opens it anew."""
        with self._lock:
            self._forgets += 1
            handle = self._handles.pop(path, None)
            if handle is None:
                return
            handle.forgotten = True
            if not handle.users:
                handle.file.close()

    def close(self) -> None:
        with self._lock:
            paths = list(self._handles)
        for path in paths:
            self.forget(path)
