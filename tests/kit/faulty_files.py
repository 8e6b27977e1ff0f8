"""A file system that fails on plan.

`FaultyFiles` wraps another `FileSystem` and passes every call on, except where a fault is planned:

    files = FaultyFiles(RealFiles())
    files.fail("write", errno.ENOSPC, times=None)            # the disk is full from now on ...
    files.clear()                                            # ... until there is space again
    files.fail("sync", errno.EIO, nth=3, suffix=".log")      # the third sync of a segment
    files.write_short(100, errno.ENOSPC)                     # 100 bytes go out, the rest fails
    files.flip_bit(suffix=".log", position=4711, times=None) # a damaged place on the disk
    with files.pause("sync") as paused:                      # a slow disk, without sleeping
        paused.wait_until_reached()
        ...

`nth` counts the matching calls from the moment of planning, starting at 1. `times` says how many
calls in a row the fault then hits; None means all until `clear`. `suffix` restricts the fault to
paths that end so; a rename matches with either path. Of several faults that are due, pauses come
first, then the fault that was planned first acts; the others count the call nevertheless.

A failing call does nothing before it raises, with one exception: a failing sync of a file on a
`SimulatedDisk` loses some of the unsynced changes for good, as the page cache of Linux does.

`calls` counts every call by kind, failed ones too. All methods may be called from several threads.
"""

import builtins
import errno
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from kit.limits import HANG_S
from kit.simulated_disk import SimulatedFile
from penstock.log.storage.files import File, FileSystem

CallKind = Literal[
    "create",  # open with create=True
    "open",  # any other open
    "read",
    "write",
    "truncate",
    "sync",
    "close",
    "size",  # of a handle or of a path
    "exists",
    "list",
    "make_directory",
    "rename",
    "remove",
    "remove_tree",
    "sync_directory",
    "sync_all",
]


@dataclass(slots=True)
class _Fault:
    """A planned fault; `error` is 0 when the call does not raise."""

    kind: CallKind
    suffix: str
    skip: int
    left: int | None
    error: int = 0

    def is_due(self) -> bool:
        """Count one matching call."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class _ShortWrite(_Fault):
    written: int = 0
    error_after: int = errno.ENOSPC
    times_after: int | None = 1

    def aftermath(self) -> _Fault:
        return _Fault("write", self.suffix, 0, self.times_after, self.error_after)


@dataclass(slots=True)
class _BitFlip(_Fault):
    position: int | None = None
    bit: int = 0

    def flip(self, data: bytes, position: int) -> bytes:
        place = len(data) // 2 if self.position is None else self.position - position
        flipped = bytearray(data)
        flipped[place] ^= 1 << self.bit
        return bytes(flipped)


class PauseTimeout(Exception):
    """Not a TimeoutError: that is an OSError and would look like a fault of the disk."""


class Pause:
    """A call that stands still until it is released. Leaving the context releases it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_until_reached(self) -> None:
        """Return as soon as a thread stands in the paused call."""
        if not self._reached.wait(HANG_S):
            raise PauseTimeout(f"no call reached the pause within {HANG_S:.0f} s")

    def release(self) -> None:
        self._released.set()

    def stand_still(self) -> None:
        """Called by the wrapper in place of the caller."""
        self._reached.set()
        if not self._released.wait(HANG_S):
            raise PauseTimeout(f"the paused call was not released within {HANG_S:.0f} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class _PausedCall(_Fault):
    pause: Pause = field(default_factory=Pause)


class FaultyFiles:
    """See the head of the module."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self.calls: Counter[CallKind] = Counter()
        self._faults: builtins.list[_Fault] = []
        self._pauses: builtins.list[Pause] = []
        self._lock = threading.Lock()

    # --- the plan ---

    def fail(
        self, kind: CallKind, error: int, *, nth: int = 1, times: int | None = 1, suffix: str = ""
    ) -> None:
        """Raise OSError with this error number in place of the call."""
        self._plan(_Fault(kind, suffix, nth - 1, times, error))

    def write_short(
        self, written: int, error: int, *, nth: int = 1, times: int | None = 1, suffix: str = ""
    ) -> None:
        """Write only the first bytes and say so; the next `times` writes raise the error."""
        fault = _ShortWrite("write", suffix, nth - 1, 1)
        fault.written, fault.error_after, fault.times_after = written, error, times
        self._plan(fault)

    def flip_bit(
        self,
        *,
        position: int | None = None,
        bit: int = 0,
        nth: int = 1,
        times: int | None = 1,
        suffix: str = "",
    ) -> None:
        """Flip a bit of the byte at this position of the file, as read; the disk stays whole.

        Only reads that cover the position match. Without a position every read that returns bytes
        matches and its middle byte is hit.
        """
        self._plan(_BitFlip("read", suffix, nth - 1, times, position=position, bit=bit))

    def pause(self, kind: CallKind, *, nth: int = 1, suffix: str = "") -> Pause:
        """Hold one call back before it does anything."""
        fault = _PausedCall(kind, suffix, nth - 1, 1)
        self._pauses.append(fault.pause)
        self._plan(fault)
        return fault.pause

    def clear(self) -> None:
        """Lift all faults and release all paused calls."""
        with self._lock:
            self._faults = []
            pauses, self._pauses = self._pauses, []
        for pause in pauses:
            pause.release()

    def _plan(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    # --- the file system ---

    def open(self, path: str, *, create: bool = False, write: bool = False) -> "FaultyFile":
        self._call("create" if create else "open", path)
        return FaultyFile(self, path, self.inner.open(path, create=create, write=write))

    def exists(self, path: str) -> bool:
        self._call("exists", path)
        return self.inner.exists(path)

    def list(self, path: str) -> builtins.list[str]:
        self._call("list", path)
        return self.inner.list(path)

    def size(self, path: str) -> int:
        self._call("size", path)
        return self.inner.size(path)

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)
        self.inner.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old, new)
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self._call("remove", path)
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", path)
        self.inner.remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        self.inner.sync_directory(path)

    def sync_all(self, path: str) -> None:
        self._call("sync_all", path)
        self.inner.sync_all(path)

    # --- what the calls meet ---

    def _call(self, kind: CallKind, *paths: str) -> _Fault | None:
        """Count a call and let it meet its fault; the fault if the caller has to act on it."""
        with self._lock:
            self.calls[kind] += 1
            due = self._due(kind, paths)
        for fault in due:
            if isinstance(fault, _PausedCall):
                fault.pause.stand_still()
        acting = next((fault for fault in due if not isinstance(fault, _PausedCall)), None)
        if acting is not None and acting.error:
            raise OSError(acting.error, os.strerror(acting.error), paths[0])
        return acting

    def _flip(self, path: str, data: bytes, position: int) -> bytes:
        """Apply the bit flips to what a read returned."""
        with self._lock:
            covered = range(position, position + len(data))
            for fault in self._faults:
                if (
                    isinstance(fault, _BitFlip)
                    and path.endswith(fault.suffix)
                    and data
                    and (fault.position is None or fault.position in covered)
                    and fault.is_due()
                ):
                    data = fault.flip(data, position)
        return data

    def _due(self, kind: CallKind, paths: Sequence[str]) -> builtins.list[_Fault]:
        due = [
            fault
            for fault in self._faults
            if fault.kind == kind
            and not isinstance(fault, _BitFlip)
            and any(path.endswith(fault.suffix) for path in paths)
            and fault.is_due()
        ]
        self._faults = [fault for fault in self._faults if fault.left is None or fault.left > 0]
        self._faults += [fault.aftermath() for fault in due if isinstance(fault, _ShortWrite)]
        return due


class FaultyFile:
    """A handle whose calls meet the faults of its FaultyFiles."""

    def __init__(self, files: FaultyFiles, path: str, inner: File) -> None:
        self.path = path
        self.inner = inner
        self._files = files

    def pread(self, size: int, position: int) -> bytes:
        self._files._call("read", self.path)
        return self._files._flip(self.path, self.inner.pread(size, position), position)

    def pwritev(self, parts: Sequence[bytes], position: int) -> int:
        fault = self._files._call("write", self.path)
        if isinstance(fault, _ShortWrite):
            return self.inner.pwritev([b"".join(parts)[: fault.written]], position)
        return self.inner.pwritev(parts, position)

    def size(self) -> int:
        self._files._call("size", self.path)
        return self.inner.size()

    def truncate(self, size: int) -> None:
        self._files._call("truncate", self.path)
        self.inner.truncate(size)

    def sync(self) -> None:
        try:
            self._files._call("sync", self.path)
        except OSError:
            if isinstance(self.inner, SimulatedFile):
                self.inner.fail_sync()
            raise
        self.inner.sync()

    def start_writeback(self, position: int, size: int) -> None:
        self.inner.start_writeback(position, size)

    def close(self) -> None:
        # The descriptor is gone even when close reports an error.
        try:
            self._files._call("close", self.path)
        finally:
            self.inner.close()
