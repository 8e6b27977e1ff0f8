"""Damage of one partition, whoever met it: counted once, told in the log once, kept for whoever asks.

Recovery finds damage at start, in what it walks. Sealed segments are read later, by readers, the cleaner
and the scrub: what they meet comes here. Refusing the reads is the reader's business.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.log.errors import CorruptLog, KeyUnknown
from penstock.log.statistics import Counters
from penstock.log.storage.scan import Damage

# Places that are told of one partition. A disk that dies has millions, and a hundred lines say as much.
MAX_TOLD: Final = 100

logger = logging.getLogger(__name__)


class DamageReport:
    """Any thread may tell of damage. `counters.damages` is the number of places."""

    def __init__(self, counters: Counters, known: Iterable[Damage] = ()) -> None:
        self._counters = counters
        self._places = {(damage.path, damage.position) for damage in known}
        counters.damages = len(self._places)
        self.found: list[Damage] = []

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Damage that a reader meets is reported where all can see it, not to this reader alone."""
        try:
            yield
        except CorruptLog as error:
            self.tell(error)
            raise

    def tell(self, error: CorruptLog) -> None:
        """A place that is known says nothing new; a batch with a key that is not known is not damaged."""
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
