"""Follows an hour that several processes append to, for the one that delivers it: its last mark, then all
requests to cancel, then all messages, and then what comes of both.

The index is complete when everything is in it that was there at the beginning. Hot: compiled by mypyc.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.hour import CANCELS, MAX_OFFSET, MESSAGES, PLACE
from penstock.broker.delayed.marks import Mark, last_mark
from penstock.broker.delayed.shared_hour import SharedHour
from penstock.broker.tail import Tail
from penstock.log.batch.view import BatchView
from penstock.log.engine import Pending
from penstock.log.errors import LogError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MILLISECOND_US: Final = 1_000
RETRY_S: Final = 1.0


class Following:
    """`news` is called when there may be something to do: the hour is loaded, messages or requests have
    come. `gone` when its topic is."""

    def __init__(
        self,
        broker: "Broker",
        hour: SharedHour,
        news: Callable[[SharedHour], None],
        gone: Callable[[SharedHour], None],
    ) -> None:
        self.hour = hour
        self._broker = broker
        self._news = news
        self._gone = gone
        self._stopped = False
        # Of requests and messages, as they are at the beginning.
        self._cancels_there = 0
        self._messages_there = 0
        self._cancels: Tail | None = None
        self._messages: Tail | None = None

    def begin(self) -> None:
        if self._stopped:
            return
        try:
            last_mark(self._broker.engine, self.hour.name).on_done(self._marked)
        except LogError:
            self._ended()

    def stop(self) -> None:
        self._stopped = True
        for tail in (self._cancels, self._messages):
            if tail is not None:
                tail.stop()

    def _ended(self) -> None:
        if not self._stopped:
            self.stop()
            self._gone(self.hour)

    def look(self) -> None:
        """Something was appended here."""
        if self._messages is not None:
            self._messages.go_on()

    # --- the beginning ----------------------------------------------------------------------------

    def _marked(self, found: Pending[Mark]) -> None:
        if self._stopped:
            return
        if found.error is not None:
            self._broker.later(RETRY_S, self.begin)
            return
        self.hour.begin(found.result())
        self._ask(CANCELS, self._begin_cancels)

    def _ask(self, partition: int, told: Callable[[int], None]) -> None:
        """For the end as it is now."""
        if self._stopped:
            return

        def answered(ends: Pending[tuple[int, int]]) -> None:
            if self._stopped:
                return
            if ends.error is not None:
                self._broker.later(RETRY_S, lambda: self._ask(partition, told))
            else:
                told(ends.result()[1])

        try:
            self._broker.engine.fresh_offsets(self.hour.name, partition).on_done(answered)
        except LogError:
            self._ended()

    def _begin_cancels(self, there: int) -> None:
        # What the mark knows has to be here too, however old the end is that was told.
        self._cancels_there = max(there, self.hour.cancels_end)
        self._cancels = self._tail(CANCELS, self._take_cancels, self._cancels_moved)
        self._cancels.go_on()

    def _begin_messages(self, there: int) -> None:
        known = 0 if self.hour.end == MAX_OFFSET else self.hour.end
        self._messages_there = max(there, known)
        self._messages = self._tail(MESSAGES, self._take_messages, self._messages_moved)
        self._messages.go_on()

    def _tail(
        self, partition: int, take: Callable[[BatchView], None], moved: Callable[[int], None]
    ) -> Tail:
        broker = self._broker
        name = self.hour.name
        return Tail(broker.engine, broker.later, name, partition, 0, take, moved, self._ended)

    # --- what comes -------------------------------------------------------------------------------

    def _take_cancels(self, view: BatchView) -> None:
        for row in range(view.first_row, view.last_row):
            value = view.value(row)
            if len(value) == PLACE.size:
                due_ms, offset = PLACE.unpack(value)
                self.hour.decide(view.offset_of(row), (due_ms, offset))

    def _cancels_moved(self, reached: int) -> None:
        if self._stopped:
            return
        if self._messages is not None:
            self._news(self.hour)
        elif self._cancels_there >= 0 and reached >= self._cancels_there:
            self._cancels_there = -1  # once
            self._ask(MESSAGES, self._begin_messages)

    def _take_messages(self, view: BatchView) -> None:
        hour = self.hour
        for row in range(view.first_row, view.last_row):
            hour.add_followed(max(view.time_of(row) // MILLISECOND_US, 0), view.offset_of(row))

    def _messages_moved(self, reached: int) -> None:
        hour = self.hour
        hour.known_end = max(hour.known_end, reached)
        if not hour.loaded and reached >= self._messages_there:
            hour.complete()
        self._news(hour)
