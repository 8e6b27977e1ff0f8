"""Deletion marks in the topic of a cache that several processes share: for values that have expired or were
evicted, so that the topic does not keep them for ever.

One process writes them (`Engine.share_duty`), some time after a value went. Another process may put the
name anew at that very moment, and its record may come to stand before the mark. So what comes of the names
of a mark on its way is noted, and when the mark stands behind a put that it does not know, that value is
written again behind it, and watched in the same way.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.broker.cache.cache import Cache, Name
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.records import Records
from penstock.errors import PenstockError
from penstock.log.batch.builder import BatchBuilder
from penstock.log.engine import AppendToken

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

DUTY: Final = "cache"
# Who finds that a value is gone often puts it anew, by whichever process: a mark waits until that is known.
MARKED_AFTER_US: Final = 10_000_000
# Deletion marks of one append.
MARKS_AT_ONCE: Final = 1_000
LOOK_S: Final = 1.0
# When the value expires, in microseconds. It is no expiry of the record: an expired record is not read, and
# who has not read it goes on with the value before it.
EXPIRES: Final = b"penstock-cache-expires-us"


class Stored(NamedTuple):
    """A record of the topic. `value`: None for a deletion mark. `deadline_us`: None: never."""

    name: Name
    value: bytes | None
    deadline_us: int | None


class Seen(NamedTuple):
    offset: int
    stored: Stored


def add_to(builder: BatchBuilder, stored: Stored, time_us: int) -> None:
    headers = None
    if stored.deadline_us is not None and stored.value is not None:
        headers = [(EXPIRES, b"%d" % stored.deadline_us)]
    builder.add(stored.value, time_us, msgspec.json.encode(stored.name), headers, 0)


class Marking:
    """`writing`: whether a put of this process is on its way."""

    def __init__(
        self, broker: "Broker", topic: str, memory: Cache, writing: Callable[[Name], bool]
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._memory = memory
        self._writing = writing
        self._held = False
        # When it may be marked, and its name.
        self._due: deque[tuple[int, Name]] = deque()
        self._planned = False
        # Of the append that is on its way: what was written, and what has come of these names since.
        self._sent: list[Stored] = []
        self._seen: dict[Name, list[Seen]] = {}
        # Where its records stand, and the offset behind them, once that is known.
        self._offsets: dict[Name, int] = {}
        self._end: int | None = None
        self._reached = 0
        broker.engine.share_duty(DUTY, 1, self._gained, self._lost)

    def _gained(self, _share: int) -> None:
        self._held = True

    def _lost(self, _share: int) -> None:
        self._held = False

    # --- what goes --------------------------------------------------------------------------------

    def gone(self, name: Name) -> None:
        """Noted by all: whoever has the duty by then writes the mark."""
        self._due.append((self._broker.engine.run_us() + MARKED_AFTER_US, name))
        self._plan()

    def _plan(self) -> None:
        if self._due and not self._planned and not self._sent:
            self._planned = True
            # What is due already goes at once: more may expire in a second than one append marks.
            is_due = self._due[0][0] <= self._broker.engine.run_us()
            self._broker.later(0.0 if is_due else LOOK_S, self._look)

    def _look(self) -> None:
        self._planned = False
        now_us = self._broker.engine.run_us()
        names: dict[Name, None] = {}
        for _ in range(MARKS_AT_ONCE):
            if not self._due or self._due[0][0] > now_us:
                break
            name = self._due.popleft()[1]
            if self._held and name not in self._memory and not self._writing(name):
                names[name] = None
        if names and not self._sent:
            self._send([Stored(name, None, None) for name in names])
        else:
            self._plan()

    # --- what is on its way -----------------------------------------------------------------------

    def _send(self, records: list[Stored]) -> None:
        builder = BatchBuilder()
        for stored in records:
            add_to(builder, stored, self._broker.clock_us())
        self._sent = records
        self._seen = {stored.name: [] for stored in records}
        self._end = None
        try:
            batch = Records([], batch=builder.build())
            token = self._broker.publish(ITSELF, self._topic, 0, batch)
        except PenstockError:  # the server stops, or the topic was deleted
            self._done()
            return
        token.on_done(self._written)

    def _written(self, token: AppendToken) -> None:
        if token.error is not None:
            self._done()
            return
        self._offsets = {one.name: token.offset_of(at) for at, one in enumerate(self._sent)}
        self._end = token.end_offset()
        self.reached(self._reached)

    def followed(self, offset: int, stored: Stored) -> None:
        """A record of the topic, in the order of the log."""
        seen = self._seen.get(stored.name)
        if seen is not None:
            seen.append(Seen(offset, stored))

    def reached(self, offset: int) -> None:
        """Everything below it was followed."""
        self._reached = offset
        if self._end is None or offset < self._end:
            return
        overtaken = [
            last.stored
            for name, at in self._offsets.items()
            if (last := self._overtaken(name, at)) is not None
        ]
        if overtaken:
            self._send(overtaken)
        else:
            self._done()

    def _overtaken(self, name: Name, at: int) -> Seen | None:
        """The last that was put before the own record at this offset, unless there is another behind it."""
        others = [one for one in self._seen[name] if one.offset != at]
        if not others or others[-1].offset > at:
            return None
        last = others[-1].stored
        expired = last.deadline_us is not None and last.deadline_us <= self._broker.engine.run_us()
        return None if last.value is None or expired else others[-1]

    def _done(self) -> None:
        self._sent, self._seen, self._offsets, self._end = [], {}, {}, None
        self._plan()
