"""A disk in memory with a page cache that loses power.

`SimulatedDisk` implements `penstock.log.storage.files.FileSystem` and promises no more than a journalling
file system under Linux does:

- Content: each file has a durable image, its content at the last `sync`, and the changes since.
  What a power loss makes of those is told in `torn_content.py`.
- Names: creating, renaming, removing and making a directory change the names at once, but durably
  only after `sync_directory` of the directory (for a rename: of both). Of the changes not yet
  durable a power loss keeps a prefix in their order. `sync_directory` of one directory makes
  nothing of another durable, except what it builds on (an earlier rename into this one).
- Syncing a file does not make its name durable, and syncing the name not the content: a file that
  was renamed into place unsynced may be found empty or torn.
- A failed sync (`SimulatedFile.fail_sync`, used by the fault wrapper) leaves some of the changes on
  the disk and forgets that the others are missing: reads still show them, and a later sync succeeds
  without writing them.

Three ways to the state after a power loss, each one a new disk to run recovery on:

- `crash(mode)`: now. The old disk and all its handles are dead from then on.
- `crash_after(n, mode)`: as if power had gone before operation number n. The old disk lives on.
- `crash_points(modes)`: every n there is. To prove recovery exhaustively, run a workload once and
  note `len(disk.operations)` at each acknowledgement; then go through the crash points: whatever
  was acknowledged at or before point n must be found there.

All choices come from seeds: the same operations with the same seed give the same disk. Every
method may be called from several threads.
"""

import builtins
import errno
import itertools
import os
import posixpath
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NoReturn

from kit.disk_nodes import DirectoryNode, Edit, FileNode, NameJournal, Node
from kit.torn_content import PURE_MODES, CrashMode, Cut, Write, content_after_crash

OperationKind = Literal[
    "create",
    "write",
    "truncate",
    "sync",
    "failed_sync",
    "rename",
    "remove",
    "make_directory",
    "remove_directory",
    "sync_directory",
]

# Path -> content of a file, or None for a directory.
Contents = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the disk, complete enough to be done again. Reads are not recorded."""

    kind: OperationKind
    path: str
    new_path: str = ""
    file: int = -1  # a file keeps its number when it is renamed
    position: int = 0
    size: int = 0
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The disk as found when power goes before operation number `operation`."""

    operation: int
    mode: CrashMode
    seed: int
    disk: "SimulatedDisk"


class SimulatedFile:
    """A handle on a file of a SimulatedDisk."""

    def __init__(self, disk: "SimulatedDisk", path: str, file: int, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._file = file
        self._writable = writable
        self._closed = False

    def pread(self, size: int, position: int) -> bytes:
        with self._disk._lock:
            content = self._node().content
            _check_not_negative(position, self.path)
            return bytes(content[position : position + size])

    def pwritev(self, parts: Sequence[bytes], position: int) -> int:
        data = b"".join(parts)
        with self._disk._lock:
            self._node()
            _check_not_negative(position, self.path)
            if not self._writable:
                _fail(errno.EBADF, self.path)
            if data:
                self._do("write", position=position, data=data)
        return len(data)

    def size(self) -> int:
        with self._disk._lock:
            return len(self._node().content)

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._node()
            _check_not_negative(size, self.path)
            if not self._writable:
                _fail(errno.EINVAL, self.path)
            self._do("truncate", size=size)

    def sync(self) -> None:
        with self._disk._lock:
            self._node()
            self._do("sync")

    def start_writeback(self, position: int, size: int) -> None:
        """Changes nothing here: without a sync any part of a write may be lost or kept anyway."""

    def fail_sync(self) -> None:
        """A sync that went wrong. The caller raises the error; this does the damage."""
        with self._disk._lock:
            self._node()
            self._do("failed_sync")

    def close(self) -> None:
        self._closed = True

    def _node(self) -> FileNode:
        if self._closed or not self._disk.powered:
            _fail(errno.EBADF, self.path)
        return self._disk._files[self._file]

    def _do(
        self, kind: OperationKind, *, position: int = 0, size: int = 0, data: bytes = b""
    ) -> None:
        self._disk._do(
            Operation(kind, self.path, file=self._file, position=position, size=size, data=data)
        )


class SimulatedDisk:
    """See the head of the module. `contents` is what lies durably on the disk at the start."""

    def __init__(self, seed: int, contents: Mapping[str, bytes | None] | None = None) -> None:
        self.seed = seed
        self.powered = True
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._start = dict(contents or {})
        self._files: dict[int, FileNode] = {}
        self._numbers = itertools.count()
        self._journal = NameJournal()
        self._root = DirectoryNode(next(self._numbers))
        for path in sorted(self._start):
            self._put(path, self._start[path])

    # --- the file system ---

    def open(self, path: str, *, create: bool = False, write: bool = False) -> SimulatedFile:
        with self._lock:
            node = self._find(path)
            if node is None and create:
                self._parent(path)
                self._do(Operation("create", path))
                node = self._find(path)
            if node is None:
                _fail(errno.ENOENT, path)
            if isinstance(node, DirectoryNode):
                _fail(errno.EISDIR, path)
            return SimulatedFile(self, path, node.number, create or write)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self._find(path) is not None

    def list(self, path: str) -> builtins.list[str]:
        with self._lock:
            return [] if self._find(path) is None else sorted(self._directory(path).names)

    def size(self, path: str) -> int:
        with self._lock:
            return len(self._file(path).content)

    def make_directory(self, path: str) -> None:
        with self._lock:
            present = _normal(path)
            missing: builtins.list[str] = []
            while (node := self._find(present)) is None:
                missing.append(present)
                present = posixpath.dirname(present)
            if not isinstance(node, DirectoryNode):
                _fail(errno.ENOTDIR if missing else errno.EEXIST, present)
            # As on the real disk: the name of an existing one may not be durable yet.
            self.sync_directory(posixpath.dirname(present))
            for directory in reversed(missing):
                self._do(Operation("make_directory", directory))
                self.sync_directory(posixpath.dirname(directory))

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            node = self._existing(old)
            self._parent(new)
            target = self._find(new)
            if isinstance(node, DirectoryNode):
                if isinstance(target, FileNode):
                    _fail(errno.ENOTDIR, new)
                if target is not None and target is not node and target.names:
                    _fail(errno.ENOTEMPTY, new)
                if _normal(new).startswith(_normal(old) + "/"):
                    _fail(errno.EINVAL, new)
            elif isinstance(target, DirectoryNode):
                _fail(errno.EISDIR, new)
            if target is not node:
                self._do(Operation("rename", old, new))

    def remove(self, path: str) -> None:
        with self._lock:
            self._file(path)
            self._do(Operation("remove", path))

    def remove_tree(self, path: str) -> None:
        with self._lock:
            if self._find(path) is None:
                return
            for name in self.list(path):
                child = posixpath.join(path, name)
                if isinstance(self._find(child), DirectoryNode):
                    self.remove_tree(child)
                else:
                    self.remove(child)
            self._do(Operation("remove_directory", path))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._directory(path)
            self._do(Operation("sync_directory", path))

    def sync_all(self, path: str) -> None:
        """File by file and directory by directory: power may go in between."""
        with self._lock:
            self._directory(path)
            for each, content in self.contents().items():
                if content is not None:
                    self._do(Operation("sync", each, file=self._file(each).number))
            for each, content in {"/": None, **self.contents()}.items():
                if content is None:
                    self._do(Operation("sync_directory", each))

    # --- power loss ---

    def crash(self, mode: CrashMode, seed: int | None = None) -> "SimulatedDisk":
        """Power goes now. Returns the disk as found afterwards; this one is dead."""
        with self._lock:
            found = self._after_power_loss(mode, self.seed if seed is None else seed)
            self.powered = False
            return found

    def crash_after(self, n: int, mode: CrashMode, seed: int | None = None) -> "SimulatedDisk":
        """The disk found if power had gone after the first n operations. This one lives on."""
        with self._lock:
            replay = SimulatedDisk(self.seed, self._start)
            for operation in self.operations[:n]:
                replay._do(operation)
            return replay.crash(mode, seed)

    def crash_points(
        self, modes: Iterable[CrashMode] = PURE_MODES, seeds: Iterable[int] = (0,)
    ) -> Iterator[CrashPoint]:
        """The disks found after each prefix of the operations, in each mode, for each seed."""
        variants = [(mode, seed) for mode in modes for seed in seeds]
        with self._lock:
            operations = list(self.operations)
        replay = SimulatedDisk(self.seed, self._start)
        for n in range(len(operations) + 1):
            for mode, seed in variants:
                yield CrashPoint(n, mode, seed, replay._after_power_loss(mode, seed))
            if n < len(operations):
                replay._do(operations[n])

    def contents(self) -> Contents:
        """All that a reader sees now, to compare two disks."""
        with self._lock:
            return _flatten(self._root, lambda node: node.names, lambda node: bytes(node.content))

    def _after_power_loss(self, mode: CrashMode, seed: int) -> "SimulatedDisk":
        random_ = random.Random(f"{seed}/{len(self.operations)}/{mode}")
        names = self._journal.after_crash(mode, random_)
        contents = _flatten(
            self._root,
            names.of,
            lambda node: content_after_crash(node.durable, node.changes, mode, random_),
        )
        return SimulatedDisk(random_.getrandbits(32), contents)

    # --- doing (or doing again) an operation that has been checked ---

    def _do(self, operation: Operation) -> None:
        match operation.kind:
            case "write":
                change = Write(operation.position, operation.data)
                self._files[operation.file].change(change)
            case "truncate":
                self._files[operation.file].change(Cut(operation.size))
            case "sync":
                self._files[operation.file].sync()
            case "failed_sync":
                random_ = random.Random(f"{self.seed}/{len(self.operations)}/failed_sync")
                self._files[operation.file].fail_sync(random_)
            case "create":
                self._journal.change(self._edit(operation.path, self._new_file(b"")))
            case "make_directory":
                directory = DirectoryNode(next(self._numbers))
                self._journal.change(self._edit(operation.path, directory))
            case "remove" | "remove_directory":
                self._journal.change(self._edit(operation.path, None))
            case "rename":
                node = self._existing(operation.path)
                gone = self._edit(operation.path, None)
                self._journal.change(gone, self._edit(operation.new_path, node))
            case "sync_directory":
                self._journal.sync(self._directory(operation.path))
        self.operations.append(operation)

    def _edit(self, path: str, node: Node | None) -> Edit:
        return Edit(self._parent(path), posixpath.basename(_normal(path)), node)

    def _new_file(self, content: bytes) -> FileNode:
        node = FileNode(next(self._numbers), bytearray(content), content)
        self._files[node.number] = node
        return node

    def _put(self, path: str, content: bytes | None) -> None:
        """Lay a file or directory durably on the new disk."""
        node = DirectoryNode(next(self._numbers)) if content is None else self._new_file(content)
        edit = self._edit(path, node)
        edit.apply(edit.directory.names)
        edit.apply(edit.directory.durable)

    # --- finding nodes ---

    def _find(self, path: str) -> Node | None:
        if not self.powered:
            _fail(errno.ENODEV, path)
        node: Node | None = self._root
        for name in _names(path):
            node = node.names.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def _existing(self, path: str) -> Node:
        return self._find(path) or _fail(errno.ENOENT, path)

    def _file(self, path: str) -> FileNode:
        node = self._existing(path)
        return node if isinstance(node, FileNode) else _fail(errno.EISDIR, path)

    def _directory(self, path: str) -> DirectoryNode:
        node = self._existing(path)
        return node if isinstance(node, DirectoryNode) else _fail(errno.ENOTDIR, path)

    def _parent(self, path: str) -> DirectoryNode:
        return self._directory(posixpath.dirname(_normal(path)))


def _flatten(
    root: DirectoryNode,
    names_of: Callable[[DirectoryNode], dict[str, Node]],
    content_of: Callable[[FileNode], bytes],
) -> Contents:
    """Walk the tree in the order of names, so that random choices fall the same way each time."""
    contents: Contents = {}

    def walk(directory: DirectoryNode, prefix: str) -> None:
        for name, node in sorted(names_of(directory).items()):
            path = f"{prefix}/{name}"
            if isinstance(node, FileNode):
                contents[path] = content_of(node)
            else:
                contents[path] = None
                walk(node, path)

    walk(root, "")
    return contents


# A workload names the same few files again and again, in thousands of crash points.
@lru_cache(maxsize=4096)
def _normal(path: str) -> str:
    """Absolute and without dots; a relative path starts at the root."""
    return posixpath.normpath("/" + path.lstrip("/"))


@lru_cache(maxsize=4096)
def _names(path: str) -> tuple[str, ...]:
    """From the root down."""
    return tuple(name for name in _normal(path).split("/") if name)


def _check_not_negative(number: int, path: str) -> None:
    if number < 0:
        _fail(errno.EINVAL, path)


def _fail(error: int, path: str) -> NoReturn:
    raise OSError(error, os.strerror(error), path)
