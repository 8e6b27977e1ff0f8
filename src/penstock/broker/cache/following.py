"""Follows the topic of a cache that several processes share: every record of it, in the order of the log,
so that the last one to write a name wins everywhere alike.

A put of this process is in its memory when it is durable, mostly a moment before it comes along here: until
then its offset is remembered, and what stands before it is passed over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.cache.cache import Cache, Name
from penstock.broker.cache.marking import EXPIRES, Marking, Stored
from penstock.broker.errors import BrokerError
from penstock.broker.tail import Tail
from penstock.log.batch.view import BatchView
from penstock.log.engine import AppendToken, Pending
from penstock.log.errors import LogError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Of one step: about as many small values as two milliseconds are enough for.
STEP_BYTES: Final = 64 * 1024
RETRY_S: Final = 1.0

_NAMES: Final = msgspec.json.Decoder(tuple[str, str])


class CacheFollowing:
    """`loaded` is called when everything is in memory that was there at the beginning. `writing`: whether
    a put of this process is on its way."""

    def __init__(
        self,
        broker: "Broker",
        topic: str,
        memory: Cache,
        writing: Callable[[Name], bool],
        loaded: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._memory = memory
        self._loaded = loaded
        self._marking = Marking(broker, topic, memory, writing)
        self._tail: Tail | None = None
        # What was there at the beginning; None: it is all read.
        self._there: int | None = None
        # Puts of this process that are in memory and were not met in the topic yet, with their offsets.
        self._ahead: dict[Name, int] = {}
        # There is no topic to follow; the next one of its name is.
        self._over = False
        broker.engine.watch_topics(self._seen)

    def begin(self) -> None:
        """Of a topic that is there or is being made."""
        made = self._broker.engine.topic_durable(self._topic)
        if made is not None:
            made.on_done(lambda _: self._ask())
        else:
            self._ask()

    def _seen(self, name: str) -> None:
        """Of a topic that was deleted and made anew, offsets are others."""
        if name == self._topic and self._over and self._broker.engine.topic_durable(name) is None:
            self._tail = None
            self._ask()

    def _ask(self) -> None:
        self._over = False
        try:
            self._broker.engine.fresh_offsets(self._topic, 0).on_done(self._told)
        except LogError:  # deleted meanwhile: there is nothing to read
            self._ended()

    def _told(self, ends: Pending[tuple[int, int]]) -> None:
        if ends.error is not None:
            self._broker.later(RETRY_S, self._ask)
            return
        engine, later = self._broker.engine, self._broker.later
        first, self._there = ends.result()
        self._tail = Tail(
            engine, later, self._topic, 0, first, self._take, self._moved, self._ended, STEP_BYTES
        )
        self._tail.go_on()

    def _ended(self) -> None:
        """There is no topic: what is in memory is what there is."""
        self._over = True
        self._there = None
        self._ahead.clear()
        self._loaded()

    # --- what comes -------------------------------------------------------------------------------

    def _moved(self, reached: int) -> None:
        self._marking.reached(reached)
        if self._there is not None and reached >= self._there:
            self._there = None
            self._loaded()

    def _take(self, view: BatchView) -> None:
        for row in range(view.first_row, view.last_row):
            try:
                name = _NAMES.decode(view.key(row) or b"")
            except (msgspec.DecodeError, UnicodeDecodeError):  # somebody else wrote to the topic
                continue
            value = None if view.is_null(row) else view.value(row)
            self._follow(view.offset_of(row), Stored(name, value, deadline_of(view, row)))

    def _follow(self, offset: int, stored: Stored) -> None:
        name = stored.name
        self._marking.followed(offset, stored)
        ahead = self._ahead.get(name)
        if ahead is not None:
            if offset < ahead:
                return
            del self._ahead[name]
            if offset == ahead:
                return
        if stored.value is None:
            self._memory.delete(*name)
            return
        try:
            self._memory.put(*name, stored.value, stored.deadline_us)
        except BrokerError:  # the cache of another process is larger
            self._memory.delete(*name)
        if name not in self._memory:  # it has expired, or is too large: the topic need not keep it
            self._marking.gone(name)

    # --- of this process --------------------------------------------------------------------------

    def written(self, token: AppendToken, stored: Stored, value: bytes) -> None:
        """It is durable. `value`: also where the record is a deletion mark."""
        tail = self._tail
        if tail is not None and token.base_offset < tail.offset:
            return  # it came along already, in its order
        if not self._over:
            self._ahead[stored.name] = token.base_offset
        self._memory.put(*stored.name, value, stored.deadline_us)

    def gone(self, name: Name) -> None:
        """The cache no longer has it: the topic need not keep it."""
        self._marking.gone(name)


def deadline_of(view: BatchView, row: int) -> int | None:
    """When the value expires; None: never."""
    for header, content in view.headers(row):
        if header == EXPIRES and content.isdigit():
            return int(content)
    return view.expiry_of(row) or None
