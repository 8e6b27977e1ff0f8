"""The cache: values by scope and key, bounded by bytes, with a time to live.

When it is full, the value that was not used for longest goes. A value that has expired is gone at the next
read of it, and a heap of deadlines frees the memory of those that nobody reads. With a topic behind it
(storing.py) it survives a restart; by itself it is memory alone.

Knows no protocol. Lives on the event loop.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.errors import BrokerError, Code

SECOND_US: Final = 1_000_000
MILLISECOND_US: Final = 1_000
# What an entry takes in memory besides its bytes: its place in the dictionary, and two objects.
ENTRY_BYTES: Final = 256
# Expired values are removed this often, so that their memory does not wait for a read.
SWEEP_S: Final = 1.0
# Of one sweep: a millisecond or two of the event loop. The next comes at once when more is due.
SWEPT_AT_ONCE: Final = 1_000
# Deadlines of values that were replaced stay in the heap until they pass, up to this many more than values.
SPARE_DEADLINES: Final = 10_000

Name = tuple[str, str]


@dataclass(slots=True)
class CacheCounters:
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    expired: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Entry:
    value: bytes
    # None: never.
    deadline_us: int | None
    size: int
    number: int


class Cache:
    """`run_us`: a clock that nobody sets."""

    def __init__(
        self,
        max_bytes: Callable[[], int],
        run_us: Callable[[], int],
        schedule: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.counters = CacheCounters()
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._run_us = run_us
        self._schedule = schedule
        # The value that was not used for longest is the first.
        self._entries: dict[Name, _Entry] = {}
        self._deadlines: list[tuple[int, int, Name]] = []
        self._numbers = itertools.count()
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._entries)

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
        self._drop(name)
        if deadline_us is not None and deadline_us <= self._run_us():
            return
        entry = _Entry(value, deadline_us, _size(scope, key, value), next(self._numbers))
        self._entries[name] = entry
        self.used_bytes += entry.size
        if deadline_us is not None:
            heapq.heappush(self._deadlines, (deadline_us, entry.number, name))
            self._forget_old_deadlines()
            self._plan()
        self._evict()

    def get(self, scope: str, key: str) -> bytes | None:
        name = (scope, key)
        entry = self._entries.pop(name, None)
        if entry is None:
            self.counters.misses += 1
            return None
        if entry.deadline_us is not None and entry.deadline_us <= self._run_us():
            self.used_bytes -= entry.size
            self.counters.expired += 1
            self.counters.misses += 1
            return None
        self._entries[name] = entry  # used last
        self.counters.hits += 1
        return entry.value

    def delete(self, scope: str, key: str) -> None:
        self._drop((scope, key))

    def _drop(self, name: Name) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.used_bytes -= entry.size

    def _evict(self) -> None:
        most = self._max_bytes()
        while self.used_bytes > most:
            name = next(iter(self._entries))
            self._drop(name)
            self.counters.evicted += 1

    # --- time ------------------------------------------------------------------------------------

    def _forget_old_deadlines(self) -> None:
        if len(self._deadlines) > 2 * len(self._entries) + SPARE_DEADLINES:
            self._deadlines = [
                (entry.deadline_us, entry.number, name)
                for name, entry in self._entries.items()
                if entry.deadline_us is not None
            ]
            heapq.heapify(self._deadlines)

    def _plan(self) -> None:
        if not self._sweeping and self._deadlines:
            self._sweeping = True
            self._schedule(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now_us = self._run_us()
        self._sweeping = False
        for _ in range(SWEPT_AT_ONCE):
            if not self._deadlines or self._deadlines[0][0] > now_us:
                self._plan()
                return
            _, number, name = heapq.heappop(self._deadlines)
            entry = self._entries.get(name)
            if entry is not None and entry.number == number:
                self._drop(name)
                self.counters.expired += 1
        self._sweeping = True
        self._schedule(0.0, self._sweep)


def _size(scope: str, key: str, value: bytes) -> int:
    return len(scope.encode()) + len(key.encode()) + len(value) + ENTRY_BYTES
