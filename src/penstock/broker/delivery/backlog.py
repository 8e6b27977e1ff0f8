"""What QoS1 subscribers have not acknowledged, kept over restarts.

One record for each QoS1 subscription, named topic / number: which offsets of its topic are settled.
Written off the event loop in group commits; an acknowledgement has no answer on the wire, so nothing
waits for it. After a restart the first QoS1 subscriber of a topic gets the records of that topic, merged.
"""

import itertools
import logging
from dataclasses import dataclass
from typing import Final

from penstock.broker.delivery.settled import Settled, union
from penstock.broker.delivery.subscription import Subscription
from penstock.errors import PenstockError
from penstock.log.pending import Pending
from penstock.log.records import Edit, Metadata, Space, join_name, split_name

logger = logging.getLogger(__name__)

Ranges = dict[int, list[tuple[int, int]]]
# By partition: the floor, then start and end of each range above it.
Stored = dict[int, list[int]]
SETTLED = "settled"
# Of one change: the event loop makes its records, in a millisecond or two.
WRITTEN_AT_ONCE: Final = 250
REMOVED_AT_ONCE: Final = 1_000


@dataclass(slots=True)
class _Left:
    """The state of a subscription that a former process left."""

    name: str
    settled: dict[int, Settled]


class Backlog:
    """Lives on the event loop; the store calls back there."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._records: Space[Stored] = Space(metadata, SETTLED, Stored)
        self._left: dict[str, list[_Left]] = {}
        self._names: dict[Subscription, str] = {}
        self._dirty: set[Subscription] = set()
        self._noted: dict[Subscription, int] = {}
        self._removed: list[str] = []
        self._writing: Pending[int] | None = None
        self._failing = False
        self._next_number = 1
        for record in self._records.all():
            topic, number = split_name(record.name)
            settled = {p: Settled.decode(values) for p, values in record.value.items()}
            self._left.setdefault(topic, []).append(_Left(record.name, settled))
            self._next_number = max(self._next_number, int(number) + 1)

    def topics_left(self) -> list[str]:
        """Topics with messages that an earlier process had not delivered to its subscribers."""
        return list(self._left)

    def claim(self, topic: str, ends: list[int]) -> Ranges:
        """What former subscribers of the topic left unsettled below `ends`; only the first gets it."""
        left = self._left.pop(topic, [])
        self._removed.extend(entry.name for entry in left)
        ranges: Ranges = {}
        for partition, end in enumerate(ends):
            opened = []
            for entry in left:
                if partition in entry.settled:
                    opened += entry.settled[partition].open_ranges(end)
            if opened:
                ranges[partition] = union(opened)
        return ranges

    def forget_topic(self, topic: str) -> None:
        self._removed.extend(entry.name for entry in self._left.pop(topic, []))
        self._write()

    def track(self, subscription: Subscription) -> None:
        """From now on the subscription's state is written down whenever it changes."""
        self._names[subscription] = join_name(subscription.topic, self._next_number)
        self._next_number += 1
        self.changed(subscription)

    def changed(self, subscription: Subscription) -> None:
        if subscription in self._names:
            self._dirty.add(subscription)
            self._write()

    def changed_if_settled(self, subscription: Subscription) -> None:
        """Writes the state down only if something was settled since it was written last."""
        if subscription.qos == 0:
            return
        if subscription in self._dirty or (
            subscription.settled_changes != self._noted.get(subscription)
        ):
            self.changed(subscription)

    def drop(self, subscription: Subscription) -> None:
        """The subscription has ended: its state is removed."""
        name = self._names.pop(subscription, None)
        self._dirty.discard(subscription)
        self._noted.pop(subscription, None)
        if name is not None:
            self._removed.append(name)
            self._write()

    def try_again(self) -> None:
        """What could not be written down goes with the next write, even if nothing else changes."""
        self._write()

    def _write(self) -> None:
        """Writes what changed, a part of it where that is much; the rest goes with the next."""
        if self._writing is not None or not (self._dirty or self._removed):
            return
        dirty = set(itertools.islice(self._dirty, WRITTEN_AT_ONCE))
        removed = self._removed[:REMOVED_AT_ONCE]
        edits: list[Edit] = [
            *(self._records.delete(name) for name in removed),
            *(self._records.put(self._names[s], _stored(s)) for s in dirty),
        ]
        try:
            change = self._metadata.change(edits)
        except PenstockError as error:  # too much waits there, or it is closed
            self._failed(error)
            return
        self._dirty -= dirty
        self._removed = self._removed[REMOVED_AT_ONCE:]
        self._noted.update((s, s.settled_changes) for s in dirty)
        self._writing = change
        change.on_done(lambda done: self._written(done, dirty, removed))

    def _written(self, change: Pending[int], dirty: set[Subscription], removed: list[str]) -> None:
        if self._writing is not change:
            return  # `flush` has handled it
        self._writing = None
        if change.error is None:
            self._failing = False
            self._write()
            return
        # Not lost: it goes with the next write, at the latest at the next tick.
        self._dirty.update(s for s in dirty if s in self._names)
        self._removed = removed + self._removed
        self._failed(change.error)

    def _failed(self, error: BaseException) -> None:
        if not self._failing:  # one line, however long it lasts
            self._failing = True
            logger.error("acknowledgements cannot be written down, tried again: %s", error)

    def flush(self) -> None:
        """At a stop: everything that is known is written before this returns."""
        while self._writing is not None or self._dirty or self._removed:
            self._write()
            writing, self._writing = self._writing, None
            if writing is None:
                return  # refused, and reported
            error = _wait(writing)
            if error is not None:
                logger.error("acknowledgements could not be written down: %s", error)
                return


def _wait(change: Pending[int]) -> Exception | None:
    try:
        change.result()
    except Exception as error:  # whatever the store reports, the stop continues
        return error
    return None


def _stored(subscription: Subscription) -> Stored:
    return {p: settled.encode() for p, settled in subscription.settled.items()}
