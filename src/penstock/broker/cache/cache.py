"""The cache: values by scope and key, bounded by bytes, with a time to live.

When it is full, the value that was not used for longest goes. A value that has expired is gone at the next
read of it, and a heap of deadlines frees the memory of those that nobody reads. With a topic behind it
(storing.py) it survives a restart; by itself it is memory alone.

    order       entries are linked, the one that was not used for longest first
    deadlines   a heap with at most one item for each entry that may expire; items of entries that are gone
                stay until their time, or until they are too many: then a new heap is built in small steps

No call costs more the more values there are: what takes long is done in turns. Knows no protocol. Lives on
the event loop. Hot: compiled by mypyc.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.broker.errors import BrokerError, Code
from penstock.turns import GrowingDict, Turn

SECOND_US: Final = 1_000_000
MILLISECOND_US: Final = 1_000
# What an entry takes in memory besides its bytes: its place in the dictionary, its objects and a deadline.
ENTRY_BYTES: Final = 400
# Expired values are removed this often, so that their memory does not wait for a read.
SWEEP_S: Final = 1.0
# Entries between two looks at the clock.
REMOVED_BETWEEN_LOOKS: Final = 64
# Deadlines of values that are gone stay in the heap until they pass, up to this many more than values.
SPARE_DEADLINES: Final = 10_000
# Items of the old heap that are moved with each new deadline: it is gone long before the new one is full.
MOVED_AT_ONCE: Final = 4

Name = tuple[str, str]


@dataclass(slots=True)
class CacheCounters:
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    expired: int = 0
    refused: int = 0


class _Entry:
    """One value. `deadline_us`: None: never. `due_us`: of its item in the heap, 0 where it has none."""

    __slots__ = ("deadline_us", "due_us", "name", "newer", "number", "older", "size", "value")

    def __init__(self, name: Name, number: int) -> None:
        self.name = name
        self.number = number
        self.value = b""
        self.size = 0
        self.deadline_us: int | None = None
        self.due_us = 0
        self.older: _Entry = self
        self.newer: _Entry = self

    def unlink(self) -> None:
        self.older.newer = self.newer
        self.newer.older = self.older

    def link_before(self, head: "_Entry") -> None:
        """As the one that was used last: the list ends at its head."""
        self.older, self.newer = head.older, head
        head.older.newer = self
        head.older = self


_Due = tuple[int, int, _Entry]


class Cache:
    """`run_us`: a clock that nobody sets. `gone` is told the names of values that it gave up by itself."""

    def __init__(
        self,
        max_bytes: Callable[[], int],
        run_us: Callable[[], int],
        schedule: Callable[[float, Callable[[], None]], object],
        gone: Callable[[Name], None] = lambda name: None,
    ) -> None:
        self.counters = CacheCounters()
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._run_us = run_us
        self._schedule = schedule
        self._gone = gone
        self._entries: GrowingDict[Name, _Entry] = GrowingDict()
        self._head = _Entry(("", ""), -1)
        self._deadlines: list[_Due] = []
        # The heap before, while it is moved to the new one.
        self._old_deadlines: list[_Due] = []
        self._numbers = itertools.count()
        self._sweeping = False
        self._evicting = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: Name) -> bool:
        return name in self._entries

    def deadline_us(self, ttl_ms: int | None) -> int | None:
        return None if ttl_ms is None else self._run_us() + ttl_ms * MILLISECOND_US

    def check(self, scope: str, key: str, value: bytes) -> None:
        """Raises BrokerError for a value that the cache can never hold."""
        size = _size(scope, key, value)
        if size > self._max_bytes():
            self.counters.refused += 1
            raise BrokerError(
                Code.RECORD_TOO_LARGE,
                f"a value of {len(value)} bytes does not fit the cache, which has {self._max_bytes()}",
            )

    def put(self, scope: str, key: str, value: bytes, deadline_us: int | None) -> None:
        """Replaces value and deadline. Raises as `check` does."""
        self.check(scope, key, value)
        name = (scope, key)
        entry = self._entries.get(name)
        if deadline_us is not None and deadline_us <= self._run_us():
            if entry is not None:
                self._remove(entry)
            return
        if entry is None:
            entry = _Entry(name, next(self._numbers))
            self._entries[name] = entry
        else:
            entry.unlink()
        entry.link_before(self._head)
        size = _size(scope, key, value)
        self.used_bytes += size - entry.size
        entry.value, entry.size, entry.deadline_us = value, size, deadline_us
        if deadline_us is not None and not 0 < entry.due_us <= deadline_us:
            self._push(entry, deadline_us)
            self._plan()
        self._evict()

    def get(self, scope: str, key: str) -> bytes | None:
        entry = self._entries.get((scope, key))
        if entry is None:
            self.counters.misses += 1
            return None
        if entry.deadline_us is not None and entry.deadline_us <= self._run_us():
            self._expired(entry)
            self.counters.misses += 1
            return None
        entry.unlink()
        entry.link_before(self._head)
        self.counters.hits += 1
        return entry.value

    def get_some(
        self, scope: str, keys: list[str], first: int, most_bytes: int | None
    ) -> list[bytes | None]:
        """The values of the keys from the first on: of all, or until they have so many bytes together."""
        found: list[bytes | None] = []
        size = 0
        for at in range(first, len(keys)):
            value = self.get(scope, keys[at])
            found.append(value)
            if value is not None and most_bytes is not None:
                size += len(value)
                if size >= most_bytes:
                    break
        return found

    def delete(self, scope: str, key: str) -> None:
        entry = self._entries.get((scope, key))
        if entry is not None:
            self._remove(entry)

    def names(self, scope: str) -> Iterator[Name | None]:
        """The names of one scope that are there now and when their turn comes; None for each name of
        another one, so that who asks can stop in between."""
        for name in self._entries:
            yield name if name[0] == scope else None

    def _remove(self, entry: _Entry) -> None:
        self._entries.pop(entry.name)
        entry.unlink()
        # The heap may hold it longer: not its neighbours too. Itself would be a cycle that stays for ever.
        entry.older = entry.newer = self._head
        self.used_bytes -= entry.size
        entry.value, entry.size, entry.deadline_us = b"", 0, None

    def _expired(self, entry: _Entry) -> None:
        self._remove(entry)
        self.counters.expired += 1
        self._gone(entry.name)

    def _evict(self) -> None:
        """In turns: one large value may take the place of very many small ones."""
        most = self._max_bytes()
        if self._evicting or self.used_bytes <= most:
            return
        turn = Turn()
        done = 0
        while self.used_bytes > most:
            if done % REMOVED_BETWEEN_LOOKS == 0 and turn.over():
                self._evicting = True
                self._schedule(0.0, self._go_on_evicting)
                return
            oldest = self._head.newer
            self._remove(oldest)
            self.counters.evicted += 1
            self._gone(oldest.name)
            done += 1

    def _go_on_evicting(self) -> None:
        self._evicting = False
        self._evict()

    # --- time ------------------------------------------------------------------------------------

    def _push(self, entry: _Entry, due_us: int) -> None:
        entry.due_us = due_us
        heapq.heappush(self._deadlines, (due_us, next(self._numbers), entry))
        if (
            not self._old_deadlines
            and len(self._deadlines) > 2 * len(self._entries) + SPARE_DEADLINES
        ):
            self._old_deadlines, self._deadlines = self._deadlines, []
        # Without its last items a heap is one still.
        for _ in range(min(MOVED_AT_ONCE, len(self._old_deadlines))):
            item = self._old_deadlines.pop()
            if _is_live(item):
                heapq.heappush(self._deadlines, item)

    def _plan(self) -> None:
        if not self._sweeping and (self._deadlines or self._old_deadlines):
            self._sweeping = True
            self._schedule(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now_us = self._run_us()
        self._sweeping = False
        turn = Turn()
        done = 0
        for heap in (self._deadlines, self._old_deadlines):
            while heap and heap[0][0] <= now_us:
                if done % REMOVED_BETWEEN_LOOKS == 0 and turn.over():
                    self._sweeping = True
                    self._schedule(0.0, self._sweep)
                    return
                self._due(heapq.heappop(heap), now_us)
                done += 1
        self._plan()

    def _due(self, item: _Due, now_us: int) -> None:
        entry = item[2]
        if not _is_live(item):
            return
        entry.due_us = 0
        deadline_us = entry.deadline_us
        if deadline_us is None:
            return
        if deadline_us <= now_us:
            self._expired(entry)
        else:  # it was given a later one
            self._push(entry, deadline_us)


def _is_live(item: _Due) -> bool:
    """Whether it is the item of its entry, and the entry may expire."""
    return item[2].deadline_us is not None and item[2].due_us == item[0]


def _size(scope: str, key: str, value: bytes) -> int:
    return len(scope.encode()) + len(key.encode()) + len(value) + ENTRY_BYTES
