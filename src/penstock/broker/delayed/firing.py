"""Delivers what is due: one run of messages at a time, each exactly once.

One transaction writes the messages of a run to their topics, and a mark behind them to their hour: whenever
the process dies, the mark tells what was delivered. When an hour is over, its topic is deleted.
Hot: compiled by mypyc.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.hour import MARKS, PLACE, SECOND_MS, Hour, Taken
from penstock.broker.delayed.reading import Reading
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
        hour = hours[min(hours)]
        due_ms = hour.next_due_ms() if hour.loaded else None
        if due_ms is None:
            due_ms = hour.end_ms
        now_ms = self._messages.now_ms()
        if due_ms <= now_ms and due_ms > self._messages.settled_ms(now_ms):
            return
        wake_ms = max(due_ms, now_ms, min(self._began_ms, due_ms) + FIRE_EVERY_MS)
        wake_ms = min(wake_ms, now_ms + int(RETRY_S * 1_000))
        if self._armed_ms is None or wake_ms < self._armed_ms:
            self._armed_ms = wake_ms
            self._broker.later((wake_ms - now_ms) / 1_000, lambda: self._wake(wake_ms))

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
        if self._busy or messages.closed or self._broker.stopping or not messages.active:
            return
        self._prepare()
        hours = messages.by_number
        until_ms = messages.settled_ms(messages.now_ms())
        messages.settle_until(until_ms)
        for number in sorted(hours):
            hour = hours[number]
            if not hour.loaded:
                return  # it goes on when this hour is there
            taken = hour.take(until_ms, FIRED_AT_ONCE)
            if taken.offsets:
                self._busy = True
                full = len(taken.offsets) == FIRED_AT_ONCE
                self._began_ms = 0 if full else messages.now_ms()
                self._read(hour, taken, READ_ATTEMPTS)
                return
            if not messages.is_over(hour):
                break
            del hours[number]
            self._broker.engine.delete_topic(hour.name)
        self.arm()

    def _read(self, hour: Hour, taken: Taken, attempts: int) -> None:
        def found(reading: Reading) -> None:
            self._write(hour, taken, reading, attempts - 1)

        Reading(self._broker.engine, hour.name, taken.offsets, found).go_on()

    def _write(self, hour: Hour, taken: Taken, reading: Reading, attempts: int) -> None:
        if reading.missing:
            text = f"{reading.missing} messages of {hour.name} cannot be read"
            if attempts:
                self._try_again(text, partial(self._read, hour, taken, attempts))
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
            self._try_again(error, lambda: self._commit(hour, taken, values))
            return
        place = PLACE.pack(*taken.last(len(taken.offsets)))
        targets.append((hour.name, MARKS, encode_values([place], self._broker.clock_us())))
        # Two processes may for a moment both deliver what is due: the same run has the same name, so it is
        # written once, and another run is not taken for it.
        last_due_ms, last_offset = taken.last(len(taken.offsets))
        name = f"{hour.name}-{hour.marks}-{last_due_ms}-{last_offset}-{len(taken.offsets)}"
        count = sum(map(len, values.values()))
        self._transact(hour, name, targets, count, lambda: self._commit(hour, taken, values))

    def _transact(
        self,
        hour: Hour,
        name: str,
        targets: list[Target],
        count: int,
        anew: Callable[[], None],
    ) -> None:
        """The name and the content stay the same however often it is tried, so it is written once. `anew`
        begins again with other targets: for a topic that was deleted or changed before it was decided."""
        broker = self._broker

        def done(commit: Pending[None]) -> None:
            if isinstance(commit.error, UnknownTopic | TooLarge):
                self._try_again(commit.error, anew)
            elif commit.error is not None:
                again = partial(self._transact, hour, name, targets, count, anew)
                self._try_again(commit.error, again)
            else:
                self._warned = False
                self._busy = False
                hour.marks += 1
                self.delivered += count
                self.arm()

        broker.aside(lambda: broker.engine.transactions.commit_at_once(name, targets)).on_done(done)

    def _try_again(self, error: BaseException | str, work: Callable[[], None]) -> None:
        if self._messages.closed or self._broker.stopping:
            return  # nothing of it is lost: the next start goes on with it
        if not self._warned:
            self._warned = True
            logger.error("delayed messages that are due wait: %s", error)
        self._broker.later(RETRY_S, work)
