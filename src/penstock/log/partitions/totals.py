"""Sums of what partitions count, over the life of the process."""

from collections.abc import Sequence
from dataclasses import fields

from penstock.log.partitions.partition import Partition
from penstock.log.statistics import Counters


class LogTotals:
    """Sums that never go down when a topic is deleted."""

    def __init__(self) -> None:
        self._gone = Counters()
        self._last: dict[Partition, Counters] = {}

    def of(self, partitions: Sequence[Partition]) -> Counters:
        now = {partition: partition.counters for partition in partitions}
        for partition, counters in self._last.items():
            if partition not in now:
                _add(self._gone, counters)
        self._last = now
        total = Counters()
        _add(total, self._gone)
        for counters in now.values():
            _add(total, counters)
        # A damage counts while it is there; unlike the rest it can go away.
        total.damages = sum(counters.damages for counters in now.values())
        return total


def _add(total: Counters, more: Counters) -> None:
    for field in fields(Counters):
        setattr(total, field.name, getattr(total, field.name) + getattr(more, field.name))
