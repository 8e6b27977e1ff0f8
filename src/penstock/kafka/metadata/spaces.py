"""All records of the metadata in memory, by space and in the order of their names. Thread-safe.

One thread applies changes (the follower), any thread reads. A reader sees all of a transaction or nothing
of it. Knows nothing of Kafka.
"""

import threading
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from sortedcontainers import SortedList

from penstock.log.feeds import Steps
from penstock.log.records import ABSENT, Record, RecordChange

# Steps that are applied while readers wait: one or two milliseconds. More are applied to a copy.
APPLIED_IN_PLACE: Final = 400


class _Space:
    __slots__ = ("names", "records")

    def __init__(self, records: dict[str, Record], names: SortedList) -> None:
        self.records = records
        self.names = names

    def copy(self) -> "_Space":
        return _Space(dict(self.records), SortedList(self.names))

    def apply(self, step: RecordChange) -> None:
        if step.value is not None:
            if step.name not in self.records:
                self.names.add(step.name)
            self.records[step.name] = Record(step.name, step.value, step.version)
        elif self.records.pop(step.name, None) is not None:
            self.names.remove(step.name)

    def names_from(self, prefix: str, after: str | None) -> Iterator[str]:
        if after is not None and after >= prefix:
            behind = self.names.irange(after, inclusive=(False, False))
        else:
            behind = self.names.irange(prefix)
        return takewhile(lambda name: name.startswith(prefix), behind)


class Spaces:
    def __init__(self) -> None:
        self._spaces: dict[str, _Space] = {}
        self._lock = threading.Lock()

    def get(self, space: str, name: str) -> Record | None:
        with self._lock:
            found = self._spaces.get(space)
            return None if found is None else found.records.get(name)

    def version(self, space: str, name: str) -> int:
        record = self.get(space, name)
        return ABSENT if record is None else record.version

    def page(self, space: str, prefix: str, after: str | None, limit: int | None) -> list[Record]:
        with self._lock:
            found = self._spaces.get(space)
            if found is None:
                return []
            return [found.records[name] for name in islice(found.names_from(prefix, after), limit)]

    def names(self, space: str, prefix: str) -> list[str]:
        with self._lock:
            found = self._spaces.get(space)
            return [] if found is None else [*found.names_from(prefix, None)]

    def apply(self, steps: Steps) -> None:
        """All of them at once. Only one thread calls it."""
        if len(steps) <= APPLIED_IN_PLACE:
            with self._lock:
                self.apply_unshared(steps)
            return
        touched = {space for space, _ in steps}
        copied = Spaces()
        copied._spaces = {
            space: one.copy() for space, one in self._spaces.items() if space in touched
        }
        copied.apply_unshared(steps)
        with self._lock:
            self._spaces.update(copied._spaces)

    def apply_unshared(self, steps: Steps) -> None:
        """For a time when nobody reads."""
        for space, step in steps:
            found = self._spaces.get(space)
            if found is None:
                found = self._spaces[space] = _Space({}, SortedList())
            found.apply(step)

    def take_over(self, other: "Spaces", version: int) -> Steps:
        """What the other holds takes the place of all that is here. Gives what differs; deletions have
        the version that is given. The other must not be used any more."""
        steps: Steps = []
        for space in sorted({*self._spaces, *other._spaces}):
            old, new = self._records(space), other._records(space)
            for name in sorted({*old, *new}):
                after = new.get(name)
                if after is None:
                    steps.append((space, RecordChange(name, None, version)))
                elif after != old.get(name):
                    steps.append((space, RecordChange(name, after.value, after.version)))
        with self._lock:
            self._spaces = other._spaces
        return steps

    def _records(self, space: str) -> dict[str, Record]:
        found = self._spaces.get(space)
        return {} if found is None else found.records
