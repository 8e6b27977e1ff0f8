"""Delivers what is due: one run of messages at a time, each exactly once.

One transaction writes the messages of a run to their topics, and a mark behind them to their hour: whenever
the process dies, the mark tells what was delivered. When an hour is over, its topic is deleted.
Where several processes serve the log, the number of a run names its transaction: who was overtaken by
another process is refused by it, and begins the hour anew (sharing.py). Hot: compiled by mypyc.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.hour import MARKS, PLACE, SECOND_MS, Hour, Taken
from penstock.broker.delayed.marks import Mark
from penstock.broker.delayed.reading import Reading
from penstock.broker.delayed.shared_hour import SharedHour
from penstock.broker.delayed.sharing import SharedHours
from penstock.broker.delayed.targets import targets_of
from penstock.broker.errors import BrokerError
from penstock.log.batch.format import encode_values
from penstock.log.engine import Pending, Target
from penstock.log.errors import LogError, TooLarge, UnknownTopic

if TYPE_CHECKING:
    from penstock.broker.delayed.messages import DelayedMessages

# One transaction, which is written twice: some megabytes of ordinary messages.
FIRED_AT_ONCE: Final = 2_000
# And of large ones: what is over it waits for the next one. A single message may pass it.
FIRED_BYTES: Final = 4 * 1024 * 1024
# A transaction costs several flushes, whatever its size: none begins sooner after another one than this,
# unless a message has waited as long.
FIRE_EVERY_MS: Final = 10
# A disk that cannot be read may recover; what is damaged must not hold up the others for ever.
READ_ATTEMPTS: Final = 10
# After a delivery that failed, and at the longest between two looks at the clock.
RETRY_S: Final = 1.0

logger = logging.getLogger(__name__)


class Firing:
    def __init__(self, messages: "DelayedMessages") -> None:
        self._messages = messages
        self._broker = messages.broker
        self._busy = False
        # When the last delivery began; 0 when it was full: then more wait.
        self._began_ms = 0
        self._armed_ms: int | None = None
        self._preparing = False
        self._warned = False
        self.delivered = 0

    # --- time -------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Wakes up when the next one is due. What waits for an append has to wait: its end calls again."""
        hours = self._messages.by_number
        if self._busy or self._messages.closed or not hours:
            return
        now_ms = self._messages.now_ms()
        if self._messages.shared is None:
            hour = hours[min(hours)]
            due_ms = hour.next_due_ms() if hour.loaded else None
            if due_ms is None:
                due_ms = hour.end_ms
        else:
            due_ms = self._next_shared_ms(now_ms)
        if due_ms <= now_ms and due_ms > self._messages.settled_ms(now_ms):
            return
        wake_ms = max(due_ms, now_ms, min(self._began_ms, due_ms) + FIRE_EVERY_MS)
        wake_ms = min(wake_ms, now_ms + int(RETRY_S * 1_000))
        if self._armed_ms is None or wake_ms < self._armed_ms:
            self._armed_ms = wake_ms
            self._broker.later((wake_ms - now_ms) / 1_000, lambda: self._wake(wake_ms))

    def _next_shared_ms(self, now_ms: int) -> int:
        """Without anything to do, the next look at what is over."""
        shared = self._messages.shared
        found_ms = now_ms + int(RETRY_S * 1_000)
        for hour in () if shared is None else shared.loaded():
            if hour.must_tell or hour.has_late:
                return self._messages.settled_ms(now_ms)  # it waits for nothing
            due_ms = hour.next_due_ms()
            if due_ms is not None:
                found_ms = min(found_ms, due_ms)
        return found_ms

    def _wake(self, armed_ms: int) -> None:
        if self._armed_ms == armed_ms:
            self._armed_ms = None
            self.fire()

    def _prepare(self) -> None:
        """Puts the messages of the next second in order, in small steps."""
        if not self._preparing:
            self._preparing = True
            self._prepare_some()

    def _prepare_some(self) -> None:
        second = self._messages.now_ms() // SECOND_MS + 1
        hour = self._messages.hour_of(second * SECOND_MS)
        self._preparing = hour is not None and hour.prepare(second)
        if self._preparing:
            self._broker.later(0.0, self._prepare_some)

    # --- delivering -------------------------------------------------------------------------------

    def fire(self) -> None:
        """Begins the delivery of what is due, hour by hour."""
        messages = self._messages
        if self._busy or messages.closed or self._broker.stopping:
            return
        self._prepare()
        hours = messages.by_number
        until_ms = messages.settled_ms(messages.now_ms())
        if messages.shared is not None:
            self._fire_shared(messages.shared, until_ms)
            return
        messages.settle_until(until_ms)
        for number in sorted(hours):
            hour = hours[number]
            if not hour.loaded:
                return  # it goes on when this hour is there
            taken = hour.take(until_ms, FIRED_AT_ONCE)
            if taken.offsets:
                self._begin(hour, taken)
                return
            if not messages.is_over(hour):
                break
            del hours[number]
            self._broker.engine.delete_topic(hour.name)
        self.arm()

    def _fire_shared(self, shared: SharedHours, until_ms: int) -> None:
        """One hour after the other has a turn. A run without messages tells what was cancelled."""
        now_ms = self._messages.now_ms()
        for hour in shared.loaded():
            taken = hour.take(until_ms, FIRED_AT_ONCE)
            if taken.offsets or hour.must_tell:
                shared.fires(hour)
                hour.running = True
                self._begin(hour, taken)
                return
            shared.end(hour, now_ms)
        self.arm()

    def _begin(self, hour: Hour, taken: Taken) -> None:
        self._busy = True
        full = len(taken.offsets) == FIRED_AT_ONCE
        self._began_ms = 0 if full else self._messages.now_ms()
        self._read(hour, taken, READ_ATTEMPTS)

    def _read(self, hour: Hour, taken: Taken, attempts: int) -> None:
        def found(reading: Reading) -> None:
            self._write(hour, taken, reading, attempts - 1)

        Reading(self._broker.engine, hour.name, taken.offsets, found).go_on()

    def _write(self, hour: Hour, taken: Taken, reading: Reading, attempts: int) -> None:
        if reading.missing:
            text = f"{reading.missing} messages of {hour.name} cannot be read"
            # Kafka that is away comes back; a disk that cannot be read mostly does not.
            away = reading.unreachable and self._messages.shared is not None
            if attempts or away:
                self._try_again(hour, text, partial(self._read, hour, taken, max(attempts, 1)))
                return
            logger.error("%s: they are not delivered", text)
        by_topic: dict[bytes, list[bytes]] = {}
        size = 0
        for row, topic in enumerate(reading.topics):
            value = reading.values[row]
            size += len(value)
            if size > FIRED_BYTES and row:
                hour.put_back(taken, row, taken.last(row))
                self._began_ms = 0
                break
            if topic is not None:
                values = by_topic.get(topic)
                if values is None:
                    values = by_topic[topic] = []
                values.append(value)
        self._commit(hour, taken, by_topic)

    def _commit(self, hour: Hour, taken: Taken, values: dict[bytes, list[bytes]]) -> None:
        targets: list[Target] = []
        try:
            for topic, found in values.items():
                targets += targets_of(self._broker, topic.decode(), found)
        except (
            BrokerError,
            LogError,
        ) as error:  # such as: a topic was deleted, and there is no room
            self._try_again(hour, error, lambda: self._commit(hour, taken, values))
            return
        mark: Mark | None = None
        if isinstance(hour, SharedHour):
            mark = hour.mark()
            place = mark.encode()
            # Of a topic that was made anew under the same name, runs are others.
            name = f"{hour.name}-{hour.topic_id}-{mark.run}"
        else:
            last_due_ms, last_offset = taken.last(len(taken.offsets))
            place = PLACE.pack(last_due_ms, last_offset)
            name = f"{hour.name}-{hour.marks}-{last_due_ms}-{last_offset}-{len(taken.offsets)}"
        targets.append((hour.name, MARKS, encode_values([place], self._broker.clock_us())))
        count = sum(map(len, values.values()))
        self._transact(hour, mark, name, targets, count, lambda: self._commit(hour, taken, values))

    def _transact(
        self,
        hour: Hour,
        mark: Mark | None,
        name: str,
        targets: list[Target],
        count: int,
        anew: Callable[[], None],
    ) -> None:
        """The name and the content stay the same however often it is tried, so it is written once. `anew`
        begins again with other targets: for a topic that was deleted or changed before it was decided."""
        broker = self._broker

        def done(commit: Pending[bool]) -> None:
            if isinstance(commit.error, UnknownTopic | TooLarge):
                self._try_again(hour, commit.error, anew)
            elif commit.error is not None:
                again = partial(self._transact, hour, mark, name, targets, count, anew)
                self._try_again(hour, commit.error, again)
            else:
                self._warned = False
                self._busy = False
                self._committed(hour, mark, count, commit.result())
                self.arm()

        broker.aside(lambda: broker.engine.transactions.commit_at_once(name, targets)).on_done(done)

    def _committed(self, hour: Hour, mark: Mark | None, count: int, by_this: bool) -> None:
        shared = self._messages.shared
        if shared is None or mark is None or not isinstance(hour, SharedHour):
            hour.marks += 1
            self.delivered += count
        elif by_this:
            hour.running = False
            hour.marked(mark)
            self.delivered += count
        else:
            # A run of this number was delivered by another process, or by a try of this one whose outcome
            # was not known: the marks tell.
            shared.begin_anew(hour)

    def _try_again(self, hour: Hour, error: BaseException | str, work: Callable[[], None]) -> None:
        if self._messages.closed or self._broker.stopping:
            return  # nothing of it is lost: the next start goes on with it
        if not self._warned:
            self._warned = True
            logger.error("delayed messages that are due wait: %s", error)

        def again() -> None:
            if self._messages.by_number.get(hour.number) is hour:
                work()
            else:  # another process delivers it now
                self._busy = False
                self.arm()

        self._broker.later(RETRY_S, again)
