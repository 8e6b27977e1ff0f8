"""Damage of one partition, found by any part of the server: counted once, logged once, kept for reports.

Recovery finds damage at start, in the segments that it reads. Readers, the cleaner and the scrub read
sealed segments later, and report what they find here. Refusing the reads is up to the reader.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.log.errors import CorruptLog, KeyUnknown
from penstock.log.statistics import Counters
from penstock.log.storage.scan import Damage

# Damaged places that are logged for one partition. A failing disk has millions, and a hundred say as much.
MAX_TOLD: Final = 100

logger = logging.getLogger(__name__)


def log_damages(damages: Iterable[Damage]) -> None:
    """Those that recovery has found."""
    for damage in damages:
        logger.error(
            "%s: damaged at byte %d: %s; offsets %d to %d cannot be read",
            damage.path,
            damage.position,
            damage.reason,
            damage.first_offset,
            damage.next_offset - 1,
        )


class DamageReport:
    """Any thread may report damage. `counters.damages` is the number of places."""

    def __init__(self, counters: Counters, known: Iterable[Damage] = ()) -> None:
        self._counters = counters
        self._places = {(damage.path, damage.position) for damage in known}
        counters.damages = len(self._places)
        self.found: list[Damage] = []

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Reports damage that a reader finds, beside the error that the reader gets."""
        try:
            yield
        except CorruptLog as error:
            self.tell(error)
            raise

    def tell(self, error: CorruptLog) -> None:
        """Ignores a known place, and a batch whose encryption key is unknown, which is not damaged."""
        place = error.path, error.position
        if isinstance(error, KeyUnknown) or place in self._places or len(self.found) >= MAX_TOLD:
            return
        self._places.add(place)
        self._counters.damages = len(self._places)
        first, end = error.first_offset, error.next_offset
        self.found.append(Damage(*place, error.position, error.reason, first, end))
        logger.error("%s", error)
        if len(self.found) == MAX_TOLD:
            logger.error("%s: further damage of this partition is not told", error.path)
