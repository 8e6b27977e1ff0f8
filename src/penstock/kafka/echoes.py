"""Commits of this gateway that it has not yet read again in Kafka's topic of offsets.

A gateway follows that topic and is a moment behind it. What it reads may so be older than a commit that it
has been answered itself: believed, it would take the group back until the next record is read. Commits of
one group are sent one after the other, so that they are read in the order in which they were sent, and
whatever is read before the echo of an answered commit is older than that commit.

Knows neither clients nor threads. Belongs to the event loop.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.kafka.cluster import Place

# An echo comes within a fraction of a second. One that never comes (Kafka has compacted the topic before it
# was read) must not hide what others commit for good.
LONGEST_S: Final = 30.0
# Of one place, and of all: more than are sent in the time that an echo takes, and some megabytes.
MOST_OF_A_PLACE: Final = 64
MOST_PLACES: Final = 10_000


@dataclass(slots=True, eq=False)
class Sent:
    """`offset`: None for a deletion. `answered_s`: when Kafka said that it is stored."""

    offset: int | None
    answered_s: float | None = None
    is_read: bool = False


class Echoes:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._sent: dict[tuple[str, Place], deque[Sent]] = {}

    def send(self, group: str, place: Place, offset: int | None) -> Sent:
        """A call that commits this, or deletes what is committed, is about to begin."""
        found = self._sent.setdefault((group, place), deque(maxlen=MOST_OF_A_PLACE))
        made = Sent(offset)
        found.append(made)
        while len(self._sent) > MOST_PLACES:
            del self._sent[next(iter(self._sent))]
        return made

    def is_newest(self, sent: Sent) -> bool:
        """The call has succeeded. Whether what it has stored is newer than all that was read."""
        sent.answered_s = self._clock_s()
        return not sent.is_read

    def failed(self, group: str, place: Place, sent: Sent) -> None:
        """The call has failed, or its outcome is not known: what is read is the truth."""
        found = self._sent.get((group, place), ())
        self._keep(group, place, [one for one in found if one is not sent])

    def is_news(self, group: str, place: Place, offset: int | None) -> bool:
        """Whether what was read is newer than all that this gateway was answered; else it is to be left."""
        found = self._sent.get((group, place))
        if found is None:
            return True
        since_s = self._clock_s() - LONGEST_S
        left = [one for one in found if one.answered_s is None or one.answered_s >= since_s]
        for number, one in enumerate(left):
            if one.offset == offset:
                for before in left[: number + 1]:
                    before.is_read = True
                del left[: number + 1]
                break
        self._keep(group, place, left)
        return all(one.answered_s is None for one in left)

    def _keep(self, group: str, place: Place, left: list[Sent]) -> None:
        if left:
            self._sent[group, place] = deque(left, MOST_OF_A_PLACE)
        else:
            self._sent.pop((group, place), None)

    def __len__(self) -> int:
        return len(self._sent)
