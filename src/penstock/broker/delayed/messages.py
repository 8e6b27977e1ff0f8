"""Delayed messages: accepted durably, delivered into their topics when they are due, in that order.

A message is appended to the topic of the hour in which it is due (hour.py); all that come in one turn of
the event loop are one append (accepting.py). When some are due, one transaction delivers them (firing.py).
After a start the topics of hours that are left are read (loading.py). Where several processes serve the
log, they divide the hours, and what is said here of one holds for all together (sharing.py).

Time is that of Engine.run_us: nobody can set it while the server runs. Hot: compiled by mypyc.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit.events import DELAYED_CANCELLED, time_text
from penstock.broker.delayed.accepting import MILLISECOND_US, Accepted, Gathered
from penstock.broker.delayed.cancelling import Request
from penstock.broker.delayed.firing import Firing
from penstock.broker.delayed.hour import (
    CANCELS,
    HOUR_MS,
    MAX_OFFSET,
    MESSAGES,
    PARTITIONS,
    PLACE,
    Hour,
    hour_name,
    split_id,
)
from penstock.broker.delayed.loading import load_hours
from penstock.broker.delayed.shared_hour import SharedHour
from penstock.broker.delayed.sharing import ACKNOWLEDGED_MS, SharedHours
from penstock.broker.errors import BrokerError, Code, RecordTooLarge
from penstock.broker.records import Records
from penstock.log.batch.format import encode_values
from penstock.log.engine import AppendToken, Pending, ReadResult, TopicInfo
from penstock.log.errors import OffsetOutOfRange, OutcomeUnknown, UnknownTopic
from penstock.log.settings import MAX_RECORD_BYTES, TopicSettings

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# An append of an hour is closed at this size; a single large message may pass it. A message that is due
# is read with its whole append, so it is not large.
APPEND_BYTES: Final = 64 * 1024
HOUR_SETTINGS: Final = TopicSettings(
    retention_ms=0, retention_bytes=0, record_bytes=MAX_RECORD_BYTES
)


class DelayedMessages:
    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.by_number: dict[int, Hour] = {}
        # Due times before it are settled; a message that is to come earlier comes then.
        self._floor_ms = 0
        self._gathered: dict[int, Gathered] = {}
        # Appends that are not durable, and cancels, each with its first due time: nothing from there on is
        # delivered yet.
        self._unsettled: dict[object, int] = {}
        # Messages of these appends.
        self._accepting = 0
        self.closed = False
        self.cancelled = 0
        self._firing = Firing(self)
        # Appends of this process to hours that it delivers, until they are in the index: end and append.
        self._unfollowed: dict[int, list[tuple[int, Gathered]]] = {}
        # Where this process alone has them all, there are none.
        self.shared: SharedHours | None = None
        if broker.engine.shared:
            self.shared = SharedHours(self)
        else:
            load_hours(broker, self.by_number, self._loaded)
            self.encrypt_hours()

    @property
    def pending(self) -> int:
        if self.shared is not None:
            return self.shared.pending(self.now_ms())
        return sum([hour.pending for hour in self.by_number.values()])

    def hour_numbers(self) -> list[int]:
        """In their order."""
        return sorted(self.by_number) if self.shared is None else self.shared.numbers()

    @property
    def delivered(self) -> int:
        return self._firing.delivered

    def _loaded(self, hour: Hour) -> None:
        self._floor_ms = max(self._floor_ms, hour.taken[0] + 1)
        self._firing.fire()

    def followed(self, hour: SharedHour) -> None:
        """There is something new in an hour that others append to as well."""
        waiting = self._unfollowed.get(hour.number)
        if waiting is not None:
            left = [one for one in waiting if one[0] > hour.known_end]
            for _, gathered in waiting[: len(waiting) - len(left)]:
                self._unsettled.pop(gathered, None)
            if left:
                self._unfollowed[hour.number] = left
            else:
                del self._unfollowed[hour.number]
        self._firing.arm()

    # --- time -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.broker.engine.run_us() // MILLISECOND_US

    def hour_of(self, due_ms: int) -> Hour | None:
        return self.by_number.get(due_ms // HOUR_MS)

    def settled_ms(self, now_ms: int) -> int:
        """Up to when nothing more can come that is due."""
        settled_ms = now_ms
        for gathered in self._gathered.values():
            settled_ms = min(settled_ms, gathered.first_ms - 1)
        for due_ms in self._unsettled.values():
            settled_ms = min(settled_ms, due_ms - 1)
        return settled_ms

    def settle_until(self, until_ms: int) -> None:
        """From now on no message gets a due time up to there."""
        self._floor_ms = max(self._floor_ms, until_ms + 1)

    def is_over(self, hour: Hour) -> bool:
        """Whether nothing more comes into it, and nothing waits in it: after a start with a clock that
        went back, messages may have come into an hour before a mark was found in a later one."""
        if self._floor_ms < hour.end_ms or hour.pending > 0:
            return False
        return self.settled_ms(hour.end_ms) == hour.end_ms

    # --- accepting ---------------------------------------------------------------------------------

    def produce(
        self, principal: Principal, topic: str, value: bytes, delay_ms: int
    ) -> Pending[int]:
        """Gives the id of the message when it is durable. A delay below 0 is none."""
        result: Pending[int] = Pending()

        def done(accepted: Accepted) -> None:
            (part,) = accepted.in_order()
            result.settle(part.first_id, part.error)

        self.produce_run(principal, topic, [value], [delay_ms]).on_done(done)
        return result

    def produce_run(
        self, principal: Principal, topic: str, values: list[bytes], delays_ms: list[int]
    ) -> Accepted:
        """Several messages with a delay each. Raises what is wrong with the request or with one of
        them: then none is taken."""
        broker = self.broker
        broker.require(principal, Operation.PUBLISH, topic)
        self._check_delay(max(delays_ms))
        if broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        self._check_room(len(values))
        info = broker.ensure_topic(topic, principal)
        self._check_records(info, values)
        dues_ms = self._dues(delays_ms)
        for number in {due_ms // HOUR_MS for due_ms in dues_ms}:
            self._ensure_hour(number, encrypted=info.settings.encryption)
        key = topic.encode()
        accepted = Accepted(len(values))
        self._accepting += len(values)
        gathered: Gathered | None = None
        for row, value in enumerate(values):
            due_ms = dues_ms[row]
            if gathered is None or due_ms // HOUR_MS != gathered.number:
                gathered = self._gathering(due_ms)
            gathered.add(accepted, row, key, value, due_ms)
            if gathered.builder.size() >= APPEND_BYTES:
                self._append(self._gathered.pop(gathered.number))
                gathered = None
        return accepted

    def _dues(self, delays_ms: list[int]) -> list[int]:
        now_ms, floor_ms = self.now_ms(), self._floor_ms
        return [max(now_ms + max(delay_ms, 0), floor_ms) for delay_ms in delays_ms]

    def _check_delay(self, delay_ms: int) -> None:
        most_ms = self.broker.options.max_delay_us // MILLISECOND_US
        if delay_ms > most_ms:
            detail = f"delay {_words(delay_ms)} exceeds maximum allowed delay {_words(most_ms)}"
            raise BrokerError(Code.INVALID_REQUEST, detail)

    def _check_room(self, count: int) -> None:
        limit = self.broker.options.max_delayed_messages
        if self.pending + self._accepting + count > limit:
            detail = f"{limit} delayed messages are pending, as limits.delayed_messages allows"
            raise BrokerError(Code.LIMIT_REACHED, detail)

    def _check_records(self, info: TopicInfo, values: list[bytes]) -> None:
        if max(map(len, values)) > info.settings.record_bytes:
            raise RecordTooLarge(info.settings.record_bytes)
        if info.settings.schema:
            self.broker.schemas.check(info, Records(values))

    def _ensure_hour(self, number: int, *, encrypted: bool) -> None:
        """`encrypted`: for a message of a topic that is."""
        engine = self.broker.engine
        if self.shared is not None:
            if engine.topic(hour_name(number)) is None:
                engine.create_topic(hour_name(number), PARTITIONS, HOUR_SETTINGS)
            return
        hour = self.by_number.get(number)
        if hour is not None:
            if encrypted:
                self._check_encrypted(hour)
            return
        hour = Hour(number, loaded=True)
        # Whatever the topics: messages of many share an append.
        settings = HOUR_SETTINGS.changed({"encryption": engine.can_encrypt})
        engine.create_topic(hour.name, PARTITIONS, settings)
        self.by_number[number] = hour

    def encrypt_hours(self) -> None:
        """Those that were made before there was a key. Called when there is one."""
        engine = self.broker.engine
        for hour in self.by_number.values():
            info = engine.topic(hour.name)
            if info is not None and engine.can_encrypt and not info.settings.encryption:
                engine.change_topic(hour.name, {"encryption": True})

    def _check_encrypted(self, hour: Hour) -> None:
        """The change of `encrypt_hours` counts when it is durable: a moment after the start."""
        info = self.broker.engine.topic(hour.name)
        if info is not None and not info.settings.encryption:
            text = "delayed messages are about to be encrypted, try again"
            raise BrokerError(Code.OVERLOADED, text)

    def _gathering(self, due_ms: int) -> Gathered:
        number = due_ms // HOUR_MS
        found = self._gathered.get(number)
        if found is not None:
            return found
        if not self._gathered:
            self.broker.later(0.0, self._append_all)
        found = self._gathered[number] = Gathered(number, due_ms)
        return found

    def _append_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for one in gathered.values():
            self._append(one)

    def _append(self, gathered: Gathered) -> None:
        self._unsettled[gathered] = gathered.first_ms
        try:
            batch = gathered.builder.build()
            token = self.broker.engine.append(hour_name(gathered.number), MESSAGES, batch)
        except Exception as error:  # those who wait are told
            self._settle(gathered, 0, error)
            return
        if self.shared is not None:
            token.on_done(lambda done: self._settle_shared(gathered, done))
        else:
            token.on_done(lambda done: self._settle(gathered, done.base_offset, done.error))

    def _settle(self, gathered: Gathered, offset: int, error: BaseException | None) -> None:
        del self._unsettled[gathered]
        self._accepting -= len(gathered.dues_ms)
        if error is None:
            self.by_number[gathered.number].add_all(gathered.dues_ms, offset)
        gathered.settle(offset, error)
        self._firing.arm()

    def _settle_shared(self, gathered: Gathered, token: AppendToken) -> None:
        """The index gets them from the topic, as it gets those of others. Until it has them, nothing that
        is due behind them is delivered by this process."""
        number = gathered.number
        error: BaseException | None = token.error
        if error is None and self.now_ms() > (number + 1) * HOUR_MS + ACKNOWLEDGED_MS:
            error = OutcomeUnknown(hour_name(number), "its hour was over long before it was stored")
        self._accepting -= len(gathered.dues_ms)
        hour = self.by_number.get(number)
        if error is None and isinstance(hour, SharedHour) and hour.known_end < token.end_offset():
            self._unfollowed.setdefault(number, []).append((token.end_offset(), gathered))
        else:
            del self._unsettled[gathered]
        gathered.settle(token.base_offset, error, token.offsets)
        if self.shared is not None:
            self.shared.appended(number)
        self._firing.arm()

    def forget(self, number: int) -> None:
        """This process does not deliver that hour any more."""
        self.by_number.pop(number, None)
        for _, gathered in self._unfollowed.pop(number, ()):
            self._unsettled.pop(gathered, None)
        self._firing.arm()  # what waited for these

    # --- cancelling --------------------------------------------------------------------------------

    def cancel(self, principal: Principal, number: int) -> Pending[object]:
        """Durable when it is done: the message is not delivered then. Needs the right to publish to its
        topic; without it the message seems not to exist."""
        self.broker.require(principal, Operation.CANCEL_DELAYED)
        place = split_id(number)
        done: Pending[object] = Pending()
        if self.shared is not None:
            self._look_up(principal, number, done)
            return done
        hour = self.by_number.get(place[0])
        if hour is None:
            raise not_found(number)
        if not hour.loaded:
            raise BrokerError(Code.OVERLOADED, "delayed messages are still being read, try again")
        try:
            read = self.broker.engine.read(hour.name, MESSAGES, place[1], 1)
        except OffsetOutOfRange:
            raise not_found(number) from None

        def found(result: Pending[ReadResult]) -> None:
            try:
                topic, due_ms = self._found(principal, number, result)
                self._cancel(principal, hour, topic, number, due_ms, done)
            except Exception as error:  # whatever it is, the one who waits is told
                done.settle(None, error)

        read.on_done(found)
        return done

    def _look_up(self, principal: Principal, number: int, done: Pending[object]) -> None:
        """Where another process has taken the message: this one may know neither the topic of its hour nor
        how far that goes, and asks. Raises BrokerError NOT_FOUND for an hour that cannot be."""
        number_of_hour, offset = split_id(number)
        name = hour_name(number_of_hour)
        engine = self.broker.engine

        def guarded(step: Callable[[], None]) -> None:
            try:
                step()
            except (UnknownTopic, OffsetOutOfRange):
                done.settle(None, not_found(number))
            except Exception as error:  # whatever it is, the one who waits is told
                done.settle(None, error)

        def known(found: Pending[TopicInfo | None]) -> None:
            if found.error is not None or found.result() is None:
                done.settle(None, found.error or not_found(number))
            else:
                guarded(ask)

        def ask() -> None:
            engine.fresh_offsets(name, MESSAGES, offset + 1).on_done(told)

        def told(ends: Pending[tuple[int, int]]) -> None:
            if ends.error is not None:
                done.settle(None, ends.error)
            else:
                guarded(look)

        def look() -> None:
            engine.read(name, MESSAGES, offset, 1).on_done(lambda read: guarded(lambda: tell(read)))

        def tell(read: Pending[ReadResult]) -> None:
            topic, due_ms = self._found(principal, number, read)
            self._request(principal, topic, number, due_ms, done)

        if engine.topic(name) is not None:
            guarded(ask)
        elif self._may_be_new(number_of_hour):
            engine.fresh_topic(name, expected=True).on_done(known)
        else:
            raise not_found(number)

    def _may_be_new(self, hour: int) -> bool:
        """Whether another process may have made its topic, and this one has not heard of it."""
        first_ms, last_ms = self.now_ms(), self.now_ms() + self.broker.options.max_delay_us // 1_000
        return first_ms // HOUR_MS <= hour <= last_ms // HOUR_MS

    def _found(
        self, principal: Principal, number: int, read: Pending[ReadResult]
    ) -> tuple[str, int]:
        """Its topic and when it is due; for who may cancel it."""
        if isinstance(read.error, OffsetOutOfRange):
            raise not_found(number)
        view = next(iter(read.result().views), None)
        if view is None or view.first_offset() != number & MAX_OFFSET:
            raise not_found(number)
        topic = (view.key(view.first_row) or b"").decode()
        if not self.broker.access.permits(principal, Operation.PUBLISH, topic):
            raise not_found(number)
        return topic, view.time_of(view.first_row) // MILLISECOND_US

    def _request(
        self, principal: Principal, topic: str, number: int, due_ms: int, done: Pending[object]
    ) -> None:
        """Asks whoever delivers its hour. Raises LogError."""
        hour, offset = split_id(number)
        request = Request(self.broker, hour, (due_ms, offset))

        def decided(result: Pending[bool]) -> None:
            if result.error is None and not result.result():
                done.settle(None, not_found(number))
                return
            if result.error is None:
                self.cancelled += 1
            self._record(principal, topic, number, due_ms, result.error).on_done(
                lambda _: done.settle(None, result.error)
            )

        request.result.on_done(decided)
        request.begin()

    def _cancel(
        self,
        principal: Principal,
        hour: Hour,
        topic: str,
        number: int,
        due_ms: int,
        done: Pending[object],
    ) -> None:
        offset = number & MAX_OFFSET
        if not hour.is_pending((due_ms, offset)):
            raise not_found(number)
        hour.cancel(offset)
        # Until it is known whether it is stored, the message is neither delivered nor passed.
        self._unsettled[done] = due_ms
        batch = encode_values([PLACE.pack(due_ms, offset)], self.broker.clock_us())
        try:
            token = self.broker.engine.append(hour.name, CANCELS, batch)
        except Exception:
            del self._unsettled[done]
            hour.restore(offset)
            raise

        def written(token: AppendToken) -> None:
            del self._unsettled[done]
            if token.error is None:
                self.cancelled += 1
            else:
                hour.restore(offset)
            self._firing.arm()
            self._record(principal, topic, number, due_ms, token.error).on_done(
                lambda _: done.settle(None, token.error)
            )

        token.on_done(written)

    def _record(
        self, who: Principal, topic: str, number: int, due_ms: int, error: BaseException | None
    ) -> Pending[None]:
        """In the audit trail: who waits for the cancel waits for that too."""
        details = {"id": f"delayed-{number}", "due": time_text(due_ms * MILLISECOND_US)}
        written = self.broker.audit.changed(who, DELAYED_CANCELLED, topic, details, error)
        if written is None:
            written = Pending()
            written.settle(None, None)
        return written


def not_found(number: int) -> BrokerError:
    return BrokerError(Code.UNKNOWN_DELAYED_MESSAGE, f"message not found: delayed-{number}")


def _words(delay_ms: int) -> str:
    """As clients know it: 25h0m0s."""
    seconds, milliseconds = divmod(delay_ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{milliseconds:03}".rstrip("0") if milliseconds else ""
    return f"{hours}h{minutes}m{seconds}{fraction}s"
