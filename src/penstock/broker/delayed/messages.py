"""Delayed messages: accepted durably, delivered into their topics when they are due, in that order.

A message is appended to the topic of the hour in which it is due (hour.py); all that come in one turn of
the event loop are one append. When some are due, one transaction writes them to their topics and a mark
behind them to the hour, so each is delivered exactly once, whenever the process dies. When an hour is over,
its topic is deleted. After a start the topics of hours that are left are read (loading.py).

Time is that of Engine.run_us: nobody can set it while the server runs.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delayed.hour import (
    CANCELS,
    HOUR_MS,
    MARKS,
    MAX_OFFSET,
    MESSAGES,
    PARTITIONS,
    PLACE,
    Hour,
    Place,
    message_id,
    split_id,
)
from penstock.broker.delayed.loading import load_hours
from penstock.broker.delayed.targets import targets_of
from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.inflight import Run
from penstock.broker.errors import BrokerError, Code, RecordTooLarge
from penstock.broker.records import Records
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import encode_values
from penstock.log.engine import AppendToken, Pending, ReadResult, Target
from penstock.log.errors import LogError, OffsetOutOfRange, TooLarge, UnknownTopic
from penstock.log.settings import MAX_RECORD_BYTES, TopicSettings

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MILLISECOND_US: Final = 1_000
# One transaction, which is written twice: some megabytes of ordinary messages.
FIRED_AT_ONCE: Final = 2_000
# And of large ones: what is over it waits for the next one. A single message may pass it.
FIRED_BYTES: Final = 4 * 1024 * 1024
# What is read of an hour at once for it.
READ_BYTES: Final = 1024 * 1024
# A disk that cannot be read may recover; what is damaged must not hold up the others for ever.
READ_ATTEMPTS: Final = 10
# An append of an hour is closed at this size; a single large message may pass it.
APPEND_BYTES: Final = 1024 * 1024
# After a delivery that failed, and at the longest between two looks at the clock.
RETRY_S: Final = 1.0
HOUR_SETTINGS: Final = TopicSettings(
    retention_ms=0, retention_bytes=0, record_bytes=MAX_RECORD_BYTES
)

logger = logging.getLogger(__name__)


class _Gathered:
    """Messages for one append to an hour."""

    def __init__(self, hour: Hour) -> None:
        self.hour = hour
        self.builder = BatchBuilder()
        self.dues: list[int] = []
        self.accepted: list[Pending[int]] = []


class DelayedMessages:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._hours: dict[int, Hour] = {}
        # Due times before it are settled; a message that is to come earlier comes then.
        self._floor_ms = 0
        self._gathered: dict[int, _Gathered] = {}
        # Appends that are not durable, and the first due time of each: nothing behind it is delivered yet.
        self._unsettled: dict[_Gathered, int] = {}
        # Messages of these.
        self._accepting = 0
        self._firing = False
        self._armed_ms: int | None = None
        self._warned = False
        self.closed = False
        self.delivered = 0
        self.cancelled = 0
        load_hours(broker, self._hours, self._loaded)
        self.encrypt_hours()

    @property
    def pending(self) -> int:
        return sum(hour.pending for hour in self._hours.values())

    def hours(self) -> list[Hour]:
        """In their order. One that is not loaded yet is left out: what is pending in it is not known."""
        return [self._hours[number] for number in sorted(self._hours) if self._hours[number].loaded]

    def _now_ms(self) -> int:
        return self._broker.engine.run_us() // MILLISECOND_US

    def _loaded(self, hour: Hour) -> None:
        self._floor_ms = max(self._floor_ms, hour.taken[0] + 1)
        self._fire()

    # --- accepting ---------------------------------------------------------------------------------

    def produce(
        self, principal: Principal, topic: str, value: bytes, delay_ms: int
    ) -> Pending[int]:
        """Gives the id of the message when it is durable. A delay below 0 is none."""
        broker = self._broker
        broker.require(principal, Operation.PUBLISH, topic)
        most_ms = broker.options.max_delay_us // MILLISECOND_US
        if delay_ms > most_ms:
            detail = f"delay {_words(delay_ms)} exceeds maximum allowed delay {_words(most_ms)}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
        if broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        limit = broker.options.max_delayed_messages
        if self.pending + self._accepting >= limit:
            detail = f"{limit} delayed messages are pending, as limits.delayed_messages allows"
            raise BrokerError(Code.LIMIT_REACHED, detail)
        info = broker.ensure_topic(topic, principal.name)
        if len(value) > info.settings.record_bytes:
            raise RecordTooLarge(info.settings.record_bytes)
        if info.settings.schema:
            broker.schemas.check(info, Records([value]))
        due_ms = max(self._now_ms() + max(delay_ms, 0), self._floor_ms)
        gathered = self._gathering(due_ms // HOUR_MS, encrypted=info.settings.encryption)
        accepted: Pending[int] = Pending()
        gathered.builder.add(value, due_ms * MILLISECOND_US, topic.encode())
        gathered.dues.append(due_ms)
        gathered.accepted.append(accepted)
        self._accepting += 1
        first_ms = self._unsettled.get(gathered, due_ms)
        self._unsettled[gathered] = min(first_ms, due_ms)
        if gathered.builder.size() >= APPEND_BYTES:
            self._append(self._gathered.pop(gathered.hour.number))
        return accepted

    def _gathering(self, number: int, *, encrypted: bool) -> _Gathered:
        """`encrypted`: for a message of a topic that is."""
        engine = self._broker.engine
        hour = self._hours.get(number)
        if encrypted and hour is not None:
            self._check_encrypted(hour)
        found = self._gathered.get(number)
        if found is not None:
            return found
        if hour is None:
            hour = Hour(number, loaded=True)
            # Whatever the topics: messages of many share an append.
            settings = HOUR_SETTINGS.changed({"encryption": engine.can_encrypt})
            engine.create_topic(hour.name, PARTITIONS, settings)
            self._hours[number] = hour
        if not self._gathered:
            self._broker.later(0.0, self._append_all)
        found = self._gathered[number] = _Gathered(hour)
        return found

    def encrypt_hours(self) -> None:
        """Those that were made before there was a key. Called when there is one."""
        engine = self._broker.engine
        for hour in self._hours.values():
            info = engine.topic(hour.name)
            if info is not None and engine.can_encrypt and not info.settings.encryption:
                engine.change_topic(hour.name, {"encryption": True})

    def _check_encrypted(self, hour: Hour) -> None:
        """The change of `encrypt_hours` counts when it is durable: a moment after the start."""
        info = self._broker.engine.topic(hour.name)
        if info is not None and not info.settings.encryption:
            text = "delayed messages are about to be encrypted, try again"
            raise BrokerError(Code.OVERLOADED, text)

    def _append_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for one in gathered.values():
            self._append(one)

    def _append(self, gathered: _Gathered) -> None:
        try:
            batch = gathered.builder.build()
            token = self._broker.engine.append(gathered.hour.name, MESSAGES, batch)
        except Exception as error:  # those who wait are told
            self._refused(gathered, error)
            return
        token.on_done(lambda done: self._appended(gathered, done))

    def _appended(self, gathered: _Gathered, token: AppendToken) -> None:
        if token.error is not None:
            self._refused(gathered, token.error)
            return
        self._settled(gathered)
        hour, first = gathered.hour, token.base_offset
        for number, due_ms in enumerate(gathered.dues):
            hour.add(due_ms, first + number)
        for number, accepted in enumerate(gathered.accepted):
            accepted.settle(message_id(hour.number, first + number), None)
        self._arm()

    def _settled(self, gathered: _Gathered) -> None:
        del self._unsettled[gathered]
        self._accepting -= len(gathered.accepted)

    def _refused(self, gathered: _Gathered, error: BaseException) -> None:
        self._settled(gathered)
        for accepted in gathered.accepted:
            accepted.settle(None, error)
        self._arm()

    # --- cancelling --------------------------------------------------------------------------------

    def cancel(self, principal: Principal, number: int) -> Pending[object]:
        """Durable when it is done: the message is not delivered then. Needs the right to publish to its
        topic; without it the message seems not to exist."""
        self._broker.require(principal, Operation.CANCEL_DELAYED)
        place = split_id(number)
        hour = self._hours.get(place[0])
        if hour is None:
            raise not_found(number)
        if not hour.loaded:
            raise BrokerError(Code.OVERLOADED, "delayed messages are still being read, try again")
        done: Pending[object] = Pending()
        try:
            read = self._broker.engine.read(hour.name, MESSAGES, place[1], 1)
        except OffsetOutOfRange:
            raise not_found(number) from None

        def found(result: Pending[ReadResult]) -> None:
            try:
                self._cancel(principal, hour, number, result, done)
            except Exception as error:  # whatever it is, the one who waits is told
                done.settle(None, error)

        read.on_done(found)
        return done

    def _cancel(
        self,
        principal: Principal,
        hour: Hour,
        number: int,
        read: Pending[ReadResult],
        done: Pending[object],
    ) -> None:
        offset = number & MAX_OFFSET
        if isinstance(read.error, OffsetOutOfRange):
            raise not_found(number)
        view = next(iter(read.result().views), None)
        if view is None or view.first_offset() != offset:
            raise not_found(number)
        topic = (view.key(view.first_row) or b"").decode()
        due_ms = view.time_of(view.first_row) // MILLISECOND_US
        if not self._broker.access.permits(principal, Operation.PUBLISH, topic):
            raise not_found(number)
        if not hour.is_pending((due_ms, offset)):
            raise not_found(number)
        hour.cancel(offset)
        batch = encode_values([PLACE.pack(due_ms, offset)], self._broker.clock_us())
        try:
            token = self._broker.engine.append(hour.name, CANCELS, batch)
        except Exception:
            hour.restore(offset)
            raise

        def written(token: AppendToken) -> None:
            if token.error is None:
                self.cancelled += 1
            else:
                hour.restore(offset)
            done.settle(None, token.error)

        token.on_done(written)

    # --- delivering --------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wakes up when the next one is due."""
        if self._firing or self.closed or not self._hours:
            return
        hour = self._hours[min(self._hours)]
        due_ms = hour.next_due_ms() if hour.loaded else None
        if due_ms is None:
            due_ms = hour.end_ms
        now_ms = self._now_ms()
        wake_ms = min(max(due_ms, now_ms), now_ms + int(RETRY_S * 1_000))
        if self._armed_ms is None or wake_ms < self._armed_ms:
            self._armed_ms = wake_ms
            self._broker.later((wake_ms - now_ms) / 1_000, lambda: self._wake(wake_ms))

    def _wake(self, armed_ms: int) -> None:
        if self._armed_ms == armed_ms:
            self._armed_ms = None
            self._fire()

    def _fire(self) -> None:
        """Begins the delivery of what is due, hour by hour."""
        if self._firing or self.closed or self._broker.stopping:
            return
        until_ms = min([self._now_ms(), *(due_ms - 1 for due_ms in self._unsettled.values())])
        self._floor_ms = max(self._floor_ms, until_ms + 1)
        for number in sorted(self._hours):
            hour = self._hours[number]
            if not hour.loaded:
                return  # it goes on when this hour is there
            places = hour.take(until_ms, FIRED_AT_ONCE)
            if places:
                self._firing = True
                self._read(hour, places)
                return
            if self._floor_ms < hour.end_ms or number in self._gathered:
                break
            del self._hours[number]
            self._broker.engine.delete_topic(hour.name)
        self._arm()

    def _read(self, hour: Hour, places: list[Place], attempts: int = READ_ATTEMPTS) -> None:
        runs: list[Run] = []
        for offset in sorted(offset for _, offset in places):
            if runs and runs[-1].first_offset + runs[-1].count == offset:
                runs[-1].count += 1
            else:
                runs.append(Run(0, 1, MESSAGES, offset, READ_BYTES, 0, False))
        self._broker.collect(
            hour.name, runs, lambda delivery: self._write(hour, places, delivery, attempts - 1)
        )

    def _write(self, hour: Hour, places: list[Place], delivery: Delivery, attempts: int) -> None:
        messages: dict[int, tuple[bytes, bytes]] = {}
        for _, views in delivery:
            for view in views:
                for row in range(view.first_row, view.last_row):
                    messages[view.offset_of(row)] = view.key(row) or b"", view.value(row)
        if len(messages) < len(places):
            text = f"{len(places) - len(messages)} messages of {hour.name} cannot be read"
            if attempts:
                self._try_again(text, partial(self._read, hour, places, attempts))
                return
            logger.error("%s: they are not delivered", text)
        by_topic: dict[bytes, list[bytes]] = {}
        size = 0
        for number, (_, offset) in enumerate(places):
            topic, value = messages.get(offset, (b"", b""))
            size += len(value)
            if size > FIRED_BYTES and number:
                hour.put_back(places[number:], places[number - 1])
                places = places[:number]
                break
            if offset in messages:
                by_topic.setdefault(topic, []).append(value)
        self._commit(hour, places, by_topic)

    def _commit(self, hour: Hour, places: list[Place], values: dict[bytes, list[bytes]]) -> None:
        broker = self._broker
        now_us = broker.clock_us()
        try:
            targets: list[Target] = []
            for topic, found in values.items():
                targets += targets_of(broker, topic.decode(), found)
        except (
            BrokerError,
            LogError,
        ) as error:  # such as: a topic was deleted, and there is no room
            self._try_again(error, lambda: self._commit(hour, places, values))
            return
        mark = encode_values([PLACE.pack(*places[-1])], now_us)
        name = f"{hour.name}-{hour.marks}"
        targets.append((hour.name, MARKS, mark))
        count = sum(map(len, values.values()))
        self._transact(hour, name, targets, count, lambda: self._commit(hour, places, values))

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
                self._firing = False
                hour.marks += 1
                self.delivered += count
                self._fire()

        broker.aside(lambda: broker.engine.transactions.commit_at_once(name, targets)).on_done(done)

    def _try_again(self, error: BaseException | str, work: Callable[[], None]) -> None:
        if self.closed or self._broker.stopping:
            return  # nothing of it is lost: the next start goes on with it
        if not self._warned:
            self._warned = True
            logger.error("delayed messages that are due wait: %s", error)
        self._broker.later(RETRY_S, work)


def not_found(number: int) -> BrokerError:
    return BrokerError(Code.UNKNOWN_DELAYED_MESSAGE, f"message not found: delayed-{number}")


def _words(delay_ms: int) -> str:
    """As clients know it: 25h0m0s."""
    seconds, milliseconds = divmod(delay_ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{milliseconds:03}".rstrip("0") if milliseconds else ""
    return f"{hours}h{minutes}m{seconds}{fraction}s"
