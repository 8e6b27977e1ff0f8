"""The file layer of the log: the two protocols it is written against, and the real disk.

Everything in `penstock.log` reaches the disk through a `FileSystem`, so the same code runs on the
real disk (`RealFiles`), on a simulated page cache that can lose or tear what was not synced, and
on a wrapper that injects faults (both in the test kit).

This module moves bytes and syncs. It knows nothing of batches or segments, retries nothing and
swallows no error of a write or a sync.
"""

import builtins
import ctypes
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

# Linux takes at most this many parts in one writev; longer lists go out in several calls.
MAX_PARTS_PER_WRITE = os.sysconf("SC_IOV_MAX")

# Records may be private: the owner writes, the group may read (backups), nobody else.
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


class File(Protocol):
    """An open file. Positional I/O only, so that several threads may use one handle."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`; fewer only at the end of the file."""
        ...

    def pwritev(self, parts: Sequence[bytes], position: int) -> int:
        """Write the parts one after the other; the number of bytes written, may be short."""
        ...

    def size(self) -> int:
        """The length of the file in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        ...

    def sync(self) -> None:
        """Make content and length durable (fdatasync). Errors are final: a retry may write nothing."""
        ...

    def start_writeback(self, position: int, size: int) -> None:
        """Let the disk begin with these bytes. A hint: it guarantees nothing and never fails."""
        ...

    def close(self) -> None:
        """Give the handle back. Twice is fine. Syncs nothing."""
        ...


class FileSystem(Protocol):
    """Names of files and directories. Only `make_directory` is durable without a sync."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        """Open a file; `create` implies `write`. FileNotFoundError when it is missing."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def list(self, path: str) -> builtins.list[str]:
        """The sorted names in a directory; empty when the directory is missing."""
        ...

    def size(self, path: str) -> int:
        """The length of a file in bytes."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory with its parents, durable on return. An existing one is fine."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename at once, replacing `new`. Durable after `sync_directory` of the parents."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Durable after `sync_directory` of its directory."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it. A missing one is fine, so it can be repeated."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable."""
        ...

    def sync_all(self, path: str) -> None:
        """Make everything durable on the file system that holds `path`: contents and names. One call for
        thousands of small files, where a sync for each would take minutes."""
        ...


_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> "Callable[[int, int, int, int], int] | None":
    """The system call behind `start_writeback`; Linux has it, Python does not offer it."""
    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int] | None", found)


_sync_file_range = _find_sync_file_range()


def _sync_file_system(descriptor: int) -> None:
    """syncfs, which Linux has and Python does not offer."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class RealFile:
    """A file of the operating system.

    A `close` during a call in another thread does not wait: the last call to finish
    closes the descriptor. Otherwise the kernel could give the number to another file in between
    and the call would read from, or write to, the wrong file.
    """

    __slots__ = ("_calls", "_closed", "_descriptor", "_lock", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"RealFile({self.path!r}, {'closed' if self._closed else self._descriptor})"

    def pread(self, size: int, position: int) -> bytes:
        descriptor = self._enter()
        try:
            first = os.pread(descriptor, size, position)
            if len(first) == size or not first:
                return first
            # Shorter than asked: the end of the file, or a read that the kernel cut short.
            return _read_on(descriptor, first, size, position)
        finally:
            self._leave()

    def pwritev(self, parts: Sequence[bytes], position: int) -> int:
        if position < 0:
            # The kernel would take -1 as "where the file pointer stands" and overwrite the start.
            raise OSError(errno.EINVAL, f"negative position {position}", self.path)
        descriptor = self._enter()
        try:
            if len(parts) <= MAX_PARTS_PER_WRITE:
                return os.pwritev(descriptor, parts, position)
            return _write_in_slices(descriptor, parts, position)
        finally:
            self._leave()

    def size(self) -> int:
        descriptor = self._enter()
        try:
            return os.fstat(descriptor).st_size
        finally:
            self._leave()

    def truncate(self, size: int) -> None:
        descriptor = self._enter()
        try:
            os.ftruncate(descriptor, size)
        finally:
            self._leave()

    def sync(self) -> None:
        descriptor = self._enter()
        try:
            os.fdatasync(descriptor)
        finally:
            self._leave()

    def start_writeback(self, position: int, size: int) -> None:
        if _sync_file_range is None:
            return
        descriptor = self._enter()
        try:
            # Errors of the write itself stay with the file and come out of the next sync.
            _sync_file_range(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)
        finally:
            self._leave()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            last = self._calls == 0
        if last:
            os.close(self._descriptor)

    def _enter(self) -> int:
        """Lend the descriptor for one call; raise EBADF when the file is closed."""
        with self._lock:
            if not self._closed:
                self._calls += 1
                return self._descriptor
        raise OSError(errno.EBADF, "the file is closed", self.path)

    def _leave(self) -> None:
        with self._lock:
            self._calls -= 1
            last = self._closed and self._calls == 0
        if last:
            os.close(self._descriptor)


def _read_on(descriptor: int, first: bytes, size: int, position: int) -> bytes:
    parts = [first]
    done = len(first)
    while done < size and (part := os.pread(descriptor, size - done, position + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _write_in_slices(descriptor: int, parts: Sequence[bytes], position: int) -> int:
    """Write more parts than one call takes; stop at the first short write.

    An error after some bytes went out is not raised here: as with one big call the caller learns
    how much was written, and meets the error when it goes on from there.
    """
    done = 0
    for start in range(0, len(parts), MAX_PARTS_PER_WRITE):
        some = parts[start : start + MAX_PARTS_PER_WRITE]
        try:
            written = os.pwritev(descriptor, some, position + done)
        except OSError:
            if done == 0:
                raise
            return done
        done += written
        if written < sum(map(len, some)):
            return done
    return done


class RealFiles:
    """The file system of the operating system."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if create or write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def exists(self, path: str) -> bool:
        # Not os.path.exists: that one also says False where we merely may not look.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> builtins.list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def make_directory(self, path: str) -> None:
        present = os.path.abspath(path)
        missing: builtins.list[str] = []
        while not self.exists(present):
            missing.append(present)
            present = os.path.dirname(present)
        if not stat.S_ISDIR(os.stat(present).st_mode):
            kind = NotADirectoryError if missing else FileExistsError
            raise kind(f"{present} is not a directory")
        self._sync_parent_of_existing(present)
        for directory in reversed(missing):
            _make_one_directory(directory)
            self.sync_directory(os.path.dirname(directory))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        if self.exists(path):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        with _directory(path) as descriptor:
            os.fsync(descriptor)

    def sync_all(self, path: str) -> None:
        with _directory(path) as descriptor:
            _sync_file_system(descriptor)

    def _sync_parent_of_existing(self, directory: str) -> None:
        """Sync the name of a directory that may stem from a process killed before its sync.

        Each level is synced as soon as it is made, so only the deepest level can be in doubt.
        """
        try:
            self.sync_directory(os.path.dirname(directory))
        except PermissionError:
            # A parent that this process may not read was set up by somebody else, with the directory in it.
            return


@contextmanager
def _directory(path: str) -> Iterator[int]:
    """The descriptor of a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_one_directory(path: str) -> None:
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        # Another thread was quicker, which is as good; a file in the way is not.
        if not os.path.isdir(path):
            raise
