"""Plain counters of the sockets; metrics.py shows them. Nothing here is thread-safe but Histogram."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# A connection counts here until its first bytes have told its protocol.
UNDECIDED: Final = "undecided"


@dataclass(slots=True)
class Traffic:
    """Connections and bytes of one protocol."""

    opened: int = 0
    open: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(slots=True)
class SocketCounters:
    """`refused`: connections not served at all. `closed`: by us, before the peer was done.
    `paused`: how often reading stopped. Each by reason."""

    traffic: dict[str, Traffic] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    paused: Counter[str] = field(default_factory=Counter)
    failed_logins: int = 0

    def of(self, protocol: str) -> Traffic:
        return self.traffic.setdefault(protocol, Traffic())


class Histogram:
    """Counts by upper bound, with the sum. Any thread may observe."""

    __slots__ = ("_counts", "_lock", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        bucket = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[tuple[str, float]], float]:
        """Prometheus buckets (upper bound as text, all at or below it), and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        return buckets, total
