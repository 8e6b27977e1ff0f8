"""The inside of the simulated disk: files, directories, and the journal of names.

Knows nothing of paths, handles or operations; `simulated_disk.py` tells the rules and uses this.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from kit.torn_content import Change, CrashMode, apply_change, content_after_crash


@dataclass(slots=True)
class FileNode:
    """Content as readers see it, content at the last sync, and the changes since."""

    number: int
    content: bytearray
    durable: bytes
    changes: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        apply_change(self.content, change)
        self.changes.append(change)

    def sync(self) -> None:
        # Not simply the content: after a failed sync that holds bytes which never reach the disk.
        durable = bytearray(self.durable)
        for change in self.changes:
            apply_change(durable, change)
        self.durable = bytes(durable)
        self.changes.clear()

    def fail_sync(self, random_: random.Random) -> None:
        """Some changes reach the disk, and all count as clean: no later sync writes the rest."""
        self.durable = content_after_crash(self.durable, self.changes, "any", random_)
        self.changes.clear()


@dataclass(slots=True)
class DirectoryNode:
    """Names as readers see them, and names as they are on the disk."""

    number: int
    names: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node = FileNode | DirectoryNode


@dataclass(frozen=True, slots=True)
class Edit:
    """One name set in a directory, or taken away when the node is None."""

    directory: DirectoryNode
    name: str
    node: Node | None

    def apply(self, names: dict[str, Node]) -> None:
        if self.node is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.node


@dataclass(slots=True)
class _Entry:
    """Edits that reach the disk together or not at all, and the directories not yet synced."""

    edits: tuple[Edit, ...]
    directories: frozenset[int]
    unsynced: set[int]


class NameJournal:
    """The changes of names that are not yet durable, oldest first."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def change(self, *edits: Edit) -> None:
        """Show the edits to readers at once and remember them as not durable."""
        for edit in edits:
            edit.apply(edit.directory.names)
        directories = frozenset(edit.directory.number for edit in edits)
        self._entries.append(_Entry(edits, directories, set(directories)))

    def sync(self, directory: DirectoryNode) -> None:
        """Make durable what waits for this directory alone, and what that builds on.

        An entry builds on all earlier ones in the same directories. Those that are left therefore
        share no directory with any later entry that became durable: their order stays right.
        """
        for entry in self._entries:
            entry.unsynced.discard(directory.number)
        durable: list[_Entry] = []
        waiting: list[_Entry] = []
        needed: set[int] = set()
        for entry in reversed(self._entries):
            if entry.unsynced and needed.isdisjoint(entry.directories):
                waiting.append(entry)
            else:
                durable.append(entry)
                needed |= entry.directories
        for entry in reversed(durable):
            for edit in entry.edits:
                edit.apply(edit.directory.durable)
        self._entries = waiting[::-1]

    def after_crash(self, mode: CrashMode, random_: random.Random) -> "FoundNames":
        """The names on the disk after a power loss: durable ones and a prefix of the others."""
        survivors = random_.randint(0, len(self._entries))
        if mode == "drop":
            survivors = 0
        elif mode == "keep":
            survivors = len(self._entries)
        return FoundNames(edit for entry in self._entries[:survivors] for edit in entry.edits)


class FoundNames:
    """The durable names of directories with some more edits on top. Changes no directory."""

    def __init__(self, edits: Iterable[Edit]) -> None:
        self._edited: dict[int, dict[str, Node]] = {}
        for edit in edits:
            edit.apply(self._edited.setdefault(edit.directory.number, dict(edit.directory.durable)))

    def of(self, directory: DirectoryNode) -> dict[str, Node]:
        return self._edited.get(directory.number, directory.durable)
