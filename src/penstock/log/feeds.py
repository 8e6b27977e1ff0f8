"""The feeds of the metadata: who follows which space, and how a change is told. For every engine.

Knows neither where records are stored nor when something is durable: callbacks.py runs what `tell` gives,
in the order of the changes.
"""

import logging
from collections.abc import Iterator
from typing import Final

from penstock.log.records import RecordChange, Watcher

# Steps of a change that watchers are told in one turn of the event loop: a millisecond or two, when memory
# is cold.
FED_AT_ONCE: Final = 40

_logger = logging.getLogger(__name__)

# What was done to records, each with its space.
Steps = list[tuple[str, RecordChange]]


class Feeds:
    """Watchers come and go from any thread; `tell` is called where completions are called."""

    def __init__(self) -> None:
        self._watchers: dict[str, tuple[Watcher, ...]] = {}

    def watch(self, space: str, watcher: Watcher) -> None:
        self._watchers[space] = (*self._watchers.get(space, ()), watcher)

    def unwatch(self, space: str, watcher: Watcher) -> None:
        kept = tuple(one for one in self._watchers.get(space, ()) if one != watcher)
        self._watchers[space] = kept

    def tell(self, steps: Steps) -> Iterator[None] | None:
        """Takes the steps away as they are told. Very many are told part by part, by the iterator."""
        if len(steps) > FED_AT_ONCE:
            return self._tell_in_parts(steps)
        self._tell(steps)
        return None

    def _tell_in_parts(self, steps: Steps) -> Iterator[None]:
        """Also frees them part by part: 100,000 at once take 8 ms."""
        steps.reverse()
        while steps:
            part = steps[: -FED_AT_ONCE - 1 : -1]
            del steps[-FED_AT_ONCE:]
            self._tell(part)
            yield

    def _tell(self, steps: Steps) -> None:
        for space in dict.fromkeys(space for space, _ in steps):
            seen = [step for of_space, step in steps if of_space == space]
            for watcher in self._watchers.get(space, ()):
                try:
                    watcher(seen)
                except Exception:  # the others must see the change nevertheless
                    _logger.exception("a watcher of %s failed", space)
