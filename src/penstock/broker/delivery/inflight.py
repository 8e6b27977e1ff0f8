"""Deliveries that wait for their acknowledgement: ranges of tags, not one entry per message.

A consumer that acknowledges in order keeps this at a handful of ranges however fast it is; one that
acknowledges at random splits them. Deadlines are checked on demand, there is no timer here.
"""

import heapq
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(slots=True)
class Run:
    """Consecutive records of one partition with consecutive delivery tags."""

    first_tag: int
    count: int
    partition: int
    first_offset: int
    size_bytes: int
    queued_us: int
    at_most_once: bool
    # How often it was delivered, and until when its acknowledgement may come.
    deliveries: int = 0
    deadline_us: int = 0
    # The place in the queue: lower goes out first.
    place: int = 0

    @property
    def end_tag(self) -> int:
        return self.first_tag + self.count

    def part(self, first_tag: int, end_tag: int) -> "Run":
        """The run without what lies outside [first_tag, end_tag)."""
        before = first_tag - self.first_tag
        behind = end_tag - self.first_tag
        # Parts of one run, cut anywhere, have together as many bytes as the run.
        size = self.size_bytes * behind // self.count - self.size_bytes * before // self.count
        return Run(
            first_tag,
            end_tag - first_tag,
            self.partition,
            self.first_offset + before,
            size,
            self.queued_us,
            self.at_most_once,
            self.deliveries,
            self.deadline_us,
            self.place,
        )


class RunTable:
    """Runs by tag, none overlapping. Finds, takes out and splits them by range of tags."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[Run] = []
        self.messages = 0

    def add(self, run: Run) -> None:
        at = bisect_right(self._firsts, run.first_tag)
        self._firsts.insert(at, run.first_tag)
        self._runs.insert(at, run)
        self.messages += run.count

    def take(self, first_tag: int, end_tag: int) -> list[Run]:
        """Takes out what the table holds of [first_tag, end_tag)."""
        at = max(bisect_right(self._firsts, first_tag) - 1, 0)
        last = at
        taken: list[Run] = []
        kept: list[Run] = []
        while last < len(self._runs) and self._firsts[last] < end_tag:
            run = self._runs[last]
            start, end = max(run.first_tag, first_tag), min(run.end_tag, end_tag)
            if start < end:
                taken.append(run.part(start, end))
                if run.first_tag < start:
                    kept.append(run.part(run.first_tag, start))
                if end < run.end_tag:
                    kept.append(run.part(end, run.end_tag))
            else:
                kept.append(run)
            last += 1
        self._runs[at:last] = kept
        self._firsts[at:last] = [run.first_tag for run in kept]
        self.messages -= sum(run.count for run in taken)
        return taken

    def find(self, first_tag: int, end_tag: int) -> Run | None:
        """The first run of which some tags lie in [first_tag, end_tag)."""
        at = max(bisect_right(self._firsts, first_tag) - 1, 0)
        for run in self._runs[at : at + 2]:
            if run.first_tag < end_tag and run.end_tag > first_tag:
                return run
        return None


class Inflight:
    """Delivered runs with their deadlines."""

    def __init__(self) -> None:
        self._table = RunTable()
        self._deadlines: list[tuple[int, int, int]] = []

    @property
    def messages(self) -> int:
        return self._table.messages

    def add(self, run: Run) -> None:
        self._table.add(run)
        heapq.heappush(self._deadlines, (run.deadline_us, run.first_tag, run.end_tag))

    def take(self, first_tag: int, end_tag: int) -> list[Run]:
        return self._table.take(first_tag, end_tag)

    def next_deadline_us(self) -> int | None:
        """The earliest, which may be one of a run that was acknowledged meanwhile."""
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now_us: int) -> list[Run]:
        """Takes out every run whose deadline has passed."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, first_tag, end_tag = heapq.heappop(self._deadlines)
            for run in self._table.take(first_tag, end_tag):
                if run.deadline_us <= now_us:
                    found.append(run)
                else:
                    # Delivered again meanwhile: its later deadline stands in the heap too.
                    self._table.add(run)
        return found
