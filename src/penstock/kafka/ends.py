"""What this gateway knows of the ends of partitions: the first offset that is kept, and the one behind
the last that readers may see (the last stable one). Used by the event loop alone; who finds something out
tells it here.

Appends of this gateway and what its readers saw move an end at once. Of other gateways' writes it learns by
following a partition, or by the sweeps of the engine, which ask Kafka for all of them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

Place = tuple[str, int]
Callback = Callable[[], None]

# An end that Kafka told so short a time ago is not asked for again: a client that polls an idle partition
# costs Kafka twenty questions a second at the most.
FRESH_S: Final = 0.05
# Places that one sweep asks for at once.
SWEPT_AT_ONCE: Final = 2_000


@dataclass(slots=True)
class Known:
    """`stored`: behind the last record that this gateway has put there itself."""

    earliest: int = 0
    latest: int = 0
    stored: int = 0
    # When Kafka told it last, by the clock of the engine.
    told_s: float = 0.0
    watchers: list[tuple[int, Callback]] = field(default_factory=list)


class Ends:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._known: dict[Place, Known] = {}

    def of(self, place: Place) -> Known:
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = Known()
        return known

    def both(self, place: Place) -> tuple[int, int]:
        """The first offset kept, and the one after the last visible."""
        known = self.of(place)
        return known.earliest, max(known.latest, known.earliest)

    def places(self) -> list[Place]:
        return list(self._known)

    def watched(self) -> set[Place]:
        return {place for place, known in self._known.items() if known.watchers}

    def sums(self) -> tuple[int, int]:
        """Of the first offsets and of the last ones, over all partitions."""
        known = list(self._known.values())
        return sum(one.earliest for one in known), sum(one.latest for one in known)

    # --- news -------------------------------------------------------------------------------------

    def reached(self, place: Place, latest: int) -> None:
        """Everything below `latest` may be read."""
        for callback in self._advance(self.of(place), latest):
            callback()

    def _advance(self, known: Known, latest: int) -> list[Callback]:
        """Gives those who waited for it."""
        if latest <= known.latest:
            return []
        known.latest = latest
        if not known.watchers:
            return []
        due = [callback for offset, callback in known.watchers if offset < latest]
        known.watchers = [one for one in known.watchers if one[0] >= latest]
        return due

    def appended(self, place: Place, base_offset: int, end_offset: int) -> list[Callback]:
        """By this gateway. Where something of others lies before it, only Kafka knows whether that is
        visible already: `stored` is further then, and whoever reads asks. Gives those who waited."""
        known = self.of(place)
        known.stored = max(known.stored, end_offset)
        if base_offset <= known.latest:
            return self._advance(known, end_offset)
        return []

    def swept(self, earliest: Mapping[Place, int], latest: Mapping[Place, int]) -> None:
        for place, offset in earliest.items():
            known = self.of(place)
            known.earliest = max(known.earliest, offset)
        now_s = self._clock_s()
        for place, offset in latest.items():
            self.of(place).told_s = now_s
            self.reached(place, offset)

    def is_fresh(self, place: Place) -> bool:
        """Whether its end is known as it is now, near enough. Of a partition that is watched, the follower
        tells what comes."""
        known = self.of(place)
        return bool(known.watchers) or self._clock_s() - known.told_s <= FRESH_S

    def forget(self, place: Place) -> list[Callback]:
        """Gives those who watch: there is nothing left to wait for."""
        known = self._known.pop(place, None)
        return [] if known is None else [callback for _, callback in known.watchers]

    # --- watchers ---------------------------------------------------------------------------------

    def watch(self, place: Place, offset: int, callback: Callback) -> bool:
        """False when there is something at `offset` already."""
        known = self.of(place)
        if offset < known.latest:
            return False
        known.watchers.append((offset, callback))
        return True

    def unwatch(self, place: Place, callback: Callback) -> None:
        known = self._known.get(place)
        if known is not None:
            known.watchers = [one for one in known.watchers if one[1] != callback]
