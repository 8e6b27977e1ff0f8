"""What QoS1 subscribers have not acknowledged, kept over restarts.

One row for each QoS1 subscription: which offsets of its topic are settled. Written behind the event
loop in group commits; an acknowledgement has no answer on the wire, so nothing waits for it. After a
restart the rows of a topic are handed, as one, to its first QoS1 subscriber.
"""

import logging
import sqlite3
from dataclasses import dataclass

import msgspec

from penstock.broker.delivery.settled import Settled, union
from penstock.broker.delivery.subscription import Subscription
from penstock.errors import PenstockError
from penstock.log.metadata.store import Change, MetadataStore

logger = logging.getLogger(__name__)

Ranges = dict[int, list[tuple[int, int]]]


@dataclass(slots=True)
class _Left:
    """The state of a subscription that a former process left."""

    row_id: int
    settled: dict[int, Settled]


class Backlog:
    """Lives on the event loop; the store calls back there."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._left: dict[str, list[_Left]] = {}
        self._rows: dict[Subscription, int] = {}
        self._dirty: set[Subscription] = set()
        self._noted: dict[Subscription, int] = {}
        self._removed: list[int] = []
        self._writing: Change[None] | None = None
        self._failing = False
        self._next_row = 1
        for row_id, topic, state in metadata.query("SELECT id, topic, state FROM backlogs"):
            numbers = msgspec.json.decode(state, type=dict[int, list[int]])
            settled = {p: Settled.decode(values) for p, values in numbers.items()}
            self._left.setdefault(topic, []).append(_Left(row_id, settled))
            self._next_row = max(self._next_row, row_id + 1)

    def claim(self, topic: str, ends: list[int]) -> Ranges:
        """What former subscribers of the topic left unsettled below `ends`; only the first gets it."""
        left = self._left.pop(topic, [])
        self._removed.extend(entry.row_id for entry in left)
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
        self._removed.extend(entry.row_id for entry in self._left.pop(topic, []))
        self._write()

    def track(self, subscription: Subscription) -> None:
        """From now on the subscription's state is written down whenever it changes."""
        self._rows[subscription] = self._next_row
        self._next_row += 1
        self.changed(subscription)

    def changed(self, subscription: Subscription) -> None:
        if subscription in self._rows:
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
        """The subscription is over: nothing of it is owed to anybody."""
        row_id = self._rows.pop(subscription, None)
        self._dirty.discard(subscription)
        self._noted.pop(subscription, None)
        if row_id is not None:
            self._removed.append(row_id)
            self._write()

    def _write(self) -> None:
        """Writes all that changed in one go; what changes meanwhile goes with the next."""
        if self._writing is not None or not (self._dirty or self._removed):
            return
        dirty, removed = self._dirty, self._removed
        rows = [(self._rows[s], s.topic, _encode(s)) for s in dirty]
        try:
            change = self._metadata.submit(lambda db: _store(db, rows, removed))
        except PenstockError as error:  # too much waits there, or it is closed
            self._failed(error)
            return
        self._dirty = set()
        self._removed = []
        self._noted.update((s, s.settled_changes) for s in dirty)
        self._writing = change
        change.add_done_callback(lambda done: self._written(done, dirty, removed))

    def _written(self, change: Change[None], dirty: set[Subscription], removed: list[int]) -> None:
        if self._writing is not change:
            return  # `flush` has seen to it
        self._writing = None
        if change.error is None:
            self._failing = False
            self._write()
            return
        # Not lost: it goes with the next write, at the latest at the next tick.
        self._dirty.update(s for s in dirty if s in self._rows)
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


def _wait(change: Change[None]) -> Exception | None:
    try:
        change.result()
    except Exception as error:  # whatever the store reports, the stop goes on
        return error
    return None


def _encode(subscription: Subscription) -> str:
    state = {str(p): settled.encode() for p, settled in subscription.settled.items()}
    return msgspec.json.encode(state).decode()


def _store(db: sqlite3.Connection, rows: list[tuple[int, str, str]], removed: list[int]) -> None:
    db.executemany("DELETE FROM backlogs WHERE id = ?", [(row_id,) for row_id in removed])
    db.executemany("INSERT OR REPLACE INTO backlogs (id, topic, state) VALUES (?, ?, ?)", rows)
