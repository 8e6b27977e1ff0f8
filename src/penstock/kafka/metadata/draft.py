"""What changes would do, one after the other, checked against the records as they are. Writes nothing.

Each change sees the records with what the changes before it in the same draft do. One that is not as
expected leaves nothing behind in the draft.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sortedcontainers import SortedDict

from penstock.kafka.metadata.layout import MAX_RECORD_BYTES, record_key
from penstock.kafka.metadata.spaces import Spaces
from penstock.log.errors import RecordConflict, TooLarge
from penstock.log.records import ABSENT, ANY, PRESENT, Delete, DeleteAll, Edit, Put, Require


class Message(NamedTuple):
    """What is to be written for one step; no value: a deletion."""

    key: bytes
    value: bytes | None
    version: int


class Draft:
    """`messages`, in order, and `last_version`: what one transaction shall write."""

    def __init__(self, spaces: Spaces, last_version: int) -> None:
        self.messages: list[Message] = []
        self.last_version = last_version
        self._spaces = spaces
        # Versions of the records that differ from `spaces`, by space and name; ABSENT: deleted.
        self._changed: dict[str, SortedDict] = {}
        # What to put back if the change at hand is refused.
        self._undo: list[tuple[str, str, int | None]] = []

    def add(self, edits: Sequence[Edit]) -> int:
        """The version of the change. Raises RecordConflict or what the edit has for it, TooLarge, and
        whatever a bad edit causes; then it is as if there were no such change."""
        version = self.last_version + 1
        kept = len(self.messages)
        self._undo.clear()
        try:
            for edit in edits:
                self._add_edit(edit, version)
        except BaseException:
            del self.messages[kept:]
            self._put_back()
            raise
        self.last_version = version
        return version

    def _add_edit(self, edit: Edit, version: int) -> None:
        if isinstance(edit, DeleteAll):
            for name in self._names(edit.space, edit.prefix):
                self._delete(edit.space, name, version)
            return
        found = self._version(edit.space, edit.name)
        _check(edit, found)
        if isinstance(edit, Put):
            self._put(edit, version)
        elif isinstance(edit, Delete) and found != ABSENT:
            self._delete(edit.space, edit.name, version)

    def _put(self, edit: Put, version: int) -> None:
        key = record_key(edit.space, edit.name)
        size = len(key) + len(edit.value)
        if size > MAX_RECORD_BYTES:
            raise TooLarge("a record of the metadata with its name", size, MAX_RECORD_BYTES)
        self.messages.append(Message(key, bytes(edit.value), version))
        self._note(edit.space, edit.name, version)

    def _delete(self, space: str, name: str, version: int) -> None:
        self.messages.append(Message(record_key(space, name), None, version))
        self._note(space, name, ABSENT)

    def _note(self, space: str, name: str, version: int) -> None:
        changed = self._changed.setdefault(space, SortedDict())
        self._undo.append((space, name, changed.get(name)))
        changed[name] = version

    def _put_back(self) -> None:
        for space, name, version in reversed(self._undo):
            if version is None:
                del self._changed[space][name]
            else:
                self._changed[space][name] = version

    def _version(self, space: str, name: str) -> int:
        changed = self._changed.get(space)
        found = None if changed is None else changed.get(name)
        return self._spaces.version(space, name) if found is None else int(found)

    def _names(self, space: str, prefix: str) -> list[str]:
        """Of the records that are there, in order."""
        stored = self._spaces.names(space, prefix)
        changed = self._changed.get(space)
        if not changed:
            return stored
        kept = [name for name in stored if changed.get(name) != ABSENT]
        there = set(stored)
        for name in changed.irange(prefix):
            if not name.startswith(prefix):
                break
            if changed[name] != ABSENT and name not in there:
                kept.append(name)
        return sorted(kept)


def _check(edit: Put | Delete | Require, found: int) -> None:
    """Raises RecordConflict, or what the edit has for it."""
    if edit.expected in (ANY, found):
        return
    if edit.expected == PRESENT and found != ABSENT:
        return
    if isinstance(edit, Require) and edit.otherwise is not None:
        raise edit.otherwise
    raise RecordConflict(edit.space, edit.name, edit.expected, found)
