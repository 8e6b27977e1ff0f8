"""Delayed messages where several processes serve the log: any of them takes one, and they divide the hours.

A message is acknowledged when it is durable in the topic of its hour, wherever it came in. The process
that has the share of the hour (`Engine.share_duty`) follows the topic (following.py), has the index and
delivers. The share of an hour is its number modulo SHARES: an hour is one topic with one chain of marks
already, so nothing has to be divided further, and the hours of a day belong to all processes.

Runs are numbered within the hour, and a transaction under the number of a run is committed once, whoever
tries. Each run is made from the state behind the run before it: a process that was paused, and does not
know that another one has gone on, is refused by that number, reads the marks and begins anew. So who has a
share need not be certain; it only says who does the work.

An hour is deleted long after its end (DELETED_AFTER_MS). An append that completes late (ACKNOWLEDGED_MS) is
not acknowledged, so nothing that was acknowledged can come into a topic that is about to go.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.following import Following
from penstock.broker.delayed.hour import MARKS, MESSAGES, PREFIX, hour_name, hour_number
from penstock.broker.delayed.marks import Mark, last_mark
from penstock.broker.delayed.shared_hour import SharedHour
from penstock.log.engine import Pending
from penstock.log.errors import LogError

if TYPE_CHECKING:
    from penstock.broker.delayed.messages import DelayedMessages

DUTY: Final = "delayed"
# A few for each of some gateways; more hours than that are seldom full at the same time.
SHARES: Final = 8
# After the end of an hour, by the clock of the process. Between the two lies what clocks of processes may
# differ by.
ACKNOWLEDGED_MS: Final = 5 * 60_000
DELETED_AFTER_MS: Final = 15 * 60_000
# Where another process has delivered a run, its mark may be visible a moment later than the run itself.
BEGIN_ANEW_S: Final = 0.2
# How old the count of what is pending may be, and of what others have delivered.
COUNTED_MS: Final = 100
LOOK_S: Final = 1.0
NAMES_AT_ONCE: Final = 500


class SharedHours:
    def __init__(self, messages: "DelayedMessages") -> None:
        self._messages = messages
        self._broker = messages.broker
        self._engine = messages.broker.engine
        self._held: set[int] = set()
        self._following: dict[int, Following] = {}
        # Of hours that others deliver: messages that are gone, and the end of the marks that told it.
        self._gone: dict[int, tuple[int, int]] = {}
        self._counted: tuple[int, int] = (0, 0)
        self._last_fired = -1
        self._engine.watch_topics(self._seen)
        self._engine.share_duty(DUTY, SHARES, self._gained, self._lost)
        self._broker.later(LOOK_S, self._look)

    # --- which hours ------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """All hours that there are, in their order."""
        return sorted(self._walk())

    def _walk(self) -> Iterator[int]:
        after = PREFIX
        while names := self._engine.topic_names(after, NAMES_AT_ONCE):
            for name in names:
                number = hour_number(name)
                if number is not None:
                    yield number
                elif not name.startswith(PREFIX):
                    return
            after = names[-1]

    def _gained(self, share: int) -> None:
        self._held.add(share)
        for number in self._walk():
            if number % SHARES == share:
                self._follow(number)

    def _lost(self, share: int) -> None:
        self._held.discard(share)
        for number in list(self._following):
            if number % SHARES == share:
                self.drop(number)

    def _seen(self, name: str) -> None:
        number = hour_number(name)
        if number is not None and number % SHARES in self._held:
            self._follow(number)

    def _follow(self, number: int) -> None:
        info = self._engine.topic(hour_name(number))
        if number in self._following or info is None or self._messages.closed:
            return
        if self._engine.topic_durable(info.name) is not None:
            return  # it is being made, and seen again then
        hour = SharedHour(number, info.id)
        self._messages.by_number[number] = hour
        following = Following(self._broker, hour, self._messages.followed, self._topic_gone)
        self._following[number] = following
        following.begin()

    def _topic_gone(self, hour: SharedHour) -> None:
        if self._messages.by_number.get(hour.number) is hour:
            self.drop(hour.number)

    def drop(self, number: int) -> None:
        """What is known of it."""
        following = self._following.pop(number, None)
        if following is not None:
            following.stop()
        self._messages.forget(number)

    def begin_anew(self, hour: SharedHour) -> None:
        """Another process has delivered something of it."""
        if self._messages.by_number.get(hour.number) is not hour:
            return
        self.drop(hour.number)

        def again() -> None:
            if hour.number % SHARES in self._held:
                self._follow(hour.number)

        self._broker.later(BEGIN_ANEW_S, again)

    def appended(self, number: int) -> None:
        following = self._following.get(number)
        if following is not None:
            following.look()

    # --- turns ------------------------------------------------------------------------------------

    def loaded(self) -> list[SharedHour]:
        """Hours of this process, in the order of their turns: the one that had a run last comes last."""
        numbers = sorted(number for number, one in self._following.items() if one.hour.loaded)
        behind = [number for number in numbers if number > self._last_fired]
        turns = behind + [number for number in numbers if number <= self._last_fired]
        return [self._following[number].hour for number in turns]

    def fires(self, hour: SharedHour) -> None:
        self._last_fired = hour.number

    def end(self, hour: SharedHour, now_ms: int) -> None:
        """Deletes it when it is long over and nothing is left in it."""
        if hour.ending or not _is_done(hour) or now_ms < hour.end_ms + DELETED_AFTER_MS:
            return
        hour.ending = True

        def told(ends: Pending[tuple[int, int]]) -> None:
            hour.ending = False
            known = self._messages.by_number.get(hour.number) is hour and _is_done(hour)
            if ends.error is None and known and ends.result()[1] <= hour.known_end:
                self.drop(hour.number)
                self._gone.pop(hour.number, None)
                self._engine.delete_topic(hour.name).on_done(lambda _: self._seen(hour.name))

        try:
            self._engine.fresh_offsets(hour.name, MESSAGES).on_done(told)
        except LogError:
            self._topic_gone(hour)

    # --- counting ---------------------------------------------------------------------------------

    def pending(self, now_ms: int) -> int:
        """Over all processes; what others take and deliver is up to a second old."""
        counted_ms, count = self._counted
        if not counted_ms <= now_ms < counted_ms + COUNTED_MS:
            count = sum(map(self._pending_in, self._walk()))
            self._counted = (now_ms, count)
        return count

    def _pending_in(self, number: int) -> int:
        following = self._following.get(number)
        if following is not None and following.hour.loaded:
            return following.hour.pending
        try:
            appended = self._engine.offsets(hour_name(number), MESSAGES)[1]
        except LogError:
            return 0
        return max(appended - self._gone.get(number, (0, 0))[0], 0)

    def _look(self) -> None:
        """What others have delivered."""
        if self._messages.closed:
            return
        numbers = set(self._walk())
        for number in self._gone.keys() - numbers:
            del self._gone[number]
        for number in numbers - self._following.keys():
            self._look_at(number)
        self._broker.later(LOOK_S, self._look)

    def _look_at(self, number: int) -> None:
        try:
            end = self._engine.offsets(hour_name(number), MARKS)[1]
            if end == self._gone.get(number, (0, 0))[1]:
                return
            found = last_mark(self._engine, hour_name(number))
        except LogError:
            return  # its topic is gone

        def noted(mark: Pending[Mark]) -> None:
            if mark.error is None:
                self._gone[number] = (mark.result().gone, end)

        found.on_done(noted)


def _is_done(hour: SharedHour) -> bool:
    """Whether all that is known of it is delivered for sure."""
    return not hour.pending and not hour.running and not hour.must_tell
