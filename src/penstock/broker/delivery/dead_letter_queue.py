"""What is done with dead letters: looking at them, publishing them again, and removing them.

An entry is a record of `<topic>.dlq`, whoever wrote it. Its id is `partition-offset`.
A replay publishes it to its topic without the headers that it got as a dead letter, but with one that says
where the record was at first. It notes that in the metadata: another replay is refused, unless it is
forced. The copy is written by a transaction that is named after the entry and the number of the replay. A
replay that a crash has cut off before the note is therefore finished by the next one, and the topic has one
copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.delivery.dead_letters import DEAD_LETTER_SUFFIX, HEADER_PREFIX
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.log.batch.view import BatchView, Headers
from penstock.log.engine import Pending, ReadResult, Target, TopicInfo
from penstock.log.errors import OffsetOutOfRange, RecordConflict
from penstock.log.records import ABSENT, Edit, Space, join_name, prefix_of, split_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Named id of the .dlq topic / partition / offset.
REPLAYED: Final = "replayed_letters"
# Of one list: an answer of FlyMQ has room for four times as much. One entry is given whatever its size is.
LIST_BYTES: Final = 8 * 1024 * 1024
MAX_LISTED: Final = 10_000
# Notes on entries that retention has removed, which each replay forgets: more than it makes.
FORGOTTEN_AT_ONCE: Final = 100
# Of a copy: where the record was at first.
ORIGIN_HEADER: Final = HEADER_PREFIX + b"origin"
# Offsets in names have a fixed length, so that notes stand in their order.
_OFFSET: Final = "{:020d}"


class ReplayRecord(msgspec.Struct, frozen=True, array_like=True):
    """How often an entry was replayed, and when for the last time."""

    count: int
    time_us: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`replays`: how often it was published again."""

    partition: int
    offset: int
    time_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    expiry_us: int
    replays: int = 0

    @property
    def id(self) -> str:
        return f"{self.partition}-{self.offset}"

    @property
    def reason(self) -> str:
        return self._header("reason")

    @property
    def deliveries(self) -> int:
        text = self._header("deliveries")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def origin(self) -> Headers:
        """A header for its copy: topic/partition/offset of the record that it was at first, so that whoever
        reads both takes them for one. Empty where the letter does not tell."""
        known = [content for name, content in self.headers if name == ORIGIN_HEADER]
        if known:
            return [(ORIGIN_HEADER, known[0])]
        place = [self._header(name) for name in ("topic", "partition", "offset")]
        return [(ORIGIN_HEADER, "/".join(place).encode())] if all(place) else []

    def _header(self, name: str) -> str:
        """Of one that a peer wrote there by hand it may be anything."""
        wanted = HEADER_PREFIX + name.encode()
        found = [content for header, content in self.headers if header == wanted]
        return found[-1].decode("utf-8", "replace") if found else ""


class DeadLetterQueue:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._notes: Space[ReplayRecord] = Space(broker.engine.metadata, REPLAYED, ReplayRecord)

    # --- looking -----------------------------------------------------------------------------------

    def page(
        self, principal: Principal, topic: str, most: int, after: str | None = None
    ) -> Pending[list[DeadLetter]]:
        """In the order of their ids, from the first one behind `after` on. None where there is no topic
        for them."""
        self._broker.require(principal, Operation.READ_DEAD_LETTERS, topic)
        info = self._broker.engine.topic(topic + DEAD_LETTER_SUFFIX)
        found: Pending[list[DeadLetter]] = Pending()
        if info is None or most <= 0:
            found.settle([], None)
            return found
        partition, offset = (0, 0) if after is None else parse_id(after)
        start = offset if after is None else offset + 1
        _Walk(self._broker, info, min(most, MAX_LISTED), partition, start, found).go_on()
        noted: Pending[list[DeadLetter]] = Pending()

        def listed(done: Pending[list[DeadLetter]]) -> None:
            if done.error is not None or not done.result():
                noted.settle(done.value, done.error)
                return
            letters = done.result()
            aside = self._broker.aside(lambda: [self._noted(info, one) for one in letters])
            aside.on_done(lambda made: noted.settle(made.value, made.error))

        found.on_done(listed)
        return noted

    def _noted(self, info: TopicInfo, letter: DeadLetter) -> DeadLetter:
        note = self._notes.get(_name(info, letter))
        return letter if note is None else replace(letter, replays=note.value.count)

    # --- replaying ---------------------------------------------------------------------------------

    def replay(
        self, principal: Principal, topic: str, letter_id: str, *, force: bool = False
    ) -> Pending[object]:
        """Publishes one entry to its topic, durably when it is done."""
        broker = self._broker
        broker.require(principal, Operation.REPLAY_DEAD_LETTER, topic)
        info = broker.engine.topic(topic + DEAD_LETTER_SUFFIX)
        partition, offset = parse_id(letter_id)
        if info is None or partition >= info.partitions:
            raise not_found(letter_id)
        if broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        done: Pending[object] = Pending()
        read = broker.engine.read(info.name, partition, offset, 1)

        def found(result: Pending[ReadResult]) -> None:
            try:
                letter = _letter_at(result, partition, offset)
                work = self._publication(principal, topic, info, letter, force)
            except Exception as error:  # whatever it is, the one who waits is told
                done.settle(None, error)
                return
            broker.aside(work).on_done(lambda made: done.settle(made.value, made.error))

        read.on_done(found)
        details = {"id": letter_id, "force": force}
        return broker.audit.when_done(done, principal, events.LETTER_REPLAYED, topic, details)

    def _publication(
        self, principal: Principal, topic: str, info: TopicInfo, letter: DeadLetter, force: bool
    ) -> Callable[[], None]:
        """What a thread has to do."""
        broker = self._broker
        headers = [one for one in letter.headers if not one[0].startswith(HEADER_PREFIX)]
        headers += letter.origin()
        records = Records(
            [letter.value],  # type: ignore[list-item]  # a null is one too, as in dead_letters.py
            [letter.key],
            [headers],
            expiries=[letter.expiry_us],
        )
        source = broker.engine.topic(topic)
        if source is not None:
            broker.schemas.check(source, records)
        (part,) = broker.place(principal, topic, records)
        source = broker.ensure_topic(topic, principal)
        if source.settings.schema:
            broker.schemas.check(source, records)
        target = topic, part.partition, records.encoded(broker.clock_us)
        earliest = broker.engine.offsets(info.name, letter.partition)[0]
        return lambda: self._commit(info, letter, target, earliest, force)

    def _commit(
        self, info: TopicInfo, letter: DeadLetter, target: Target, earliest: int, force: bool
    ) -> None:
        name = _name(info, letter)
        note = self._notes.get(name)
        count = 0 if note is None else note.value.count
        if count and not force:
            raise _already(letter.id)
        engine = self._broker.engine
        engine.transactions.commit_at_once(f"{REPLAYED}/{name}/{count}", [target])
        version = ABSENT if note is None else note.version
        mark = ReplayRecord(count + 1, self._broker.clock_us())
        edits: list[Edit] = [self._notes.put(name, mark, version)]
        edits += self._outdated(info, letter.partition, earliest)
        try:
            engine.metadata.change(edits).result()
        except RecordConflict:  # another replay at the same time, which wrote the same copy
            raise _already(letter.id) from None

    def _outdated(self, info: TopicInfo, partition: int, earliest: int) -> list[Edit]:
        metadata = self._broker.engine.metadata
        notes = metadata.list(REPLAYED, prefix_of(info.id, partition), limit=FORGOTTEN_AT_ONCE)
        return [
            self._notes.delete(one.name)
            for one in notes
            if int(split_name(one.name)[-1]) < earliest
        ]

    # --- removing ----------------------------------------------------------------------------------

    def purge(self, principal: Principal, topic: str) -> Pending[int]:
        """Removes every entry; the topic stays. Gives how many bytes that gave back."""
        broker = self._broker
        broker.require(principal, Operation.PURGE_DEAD_LETTERS, topic)
        info = broker.engine.topic(topic + DEAD_LETTER_SUFFIX)
        if info is None:
            nothing: Pending[int] = Pending()
            nothing.settle(0, None)
            return nothing
        purge = broker.engine.purge_topic(info.name)
        purge.on_done(lambda done: None if done.error is not None else self.forget(info.id))
        return broker.audit.when_done(purge, principal, events.LETTERS_PURGED, topic)

    def forget(self, topic_id: int) -> None:
        """The entries of this topic are gone: so are the notes on them."""
        self._broker.engine.metadata.change([self._notes.delete_all(prefix_of(topic_id))])


class _Walk:
    """Reads the entries of one list, partition by partition."""

    def __init__(
        self,
        broker: "Broker",
        info: TopicInfo,
        most: int,
        partition: int,
        offset: int,
        done: Pending[list[DeadLetter]],
    ) -> None:
        self._engine = broker.engine
        self._info = info
        self._most = most
        self._partition = partition
        self._offset = offset
        self._done = done
        self._bytes_left = LIST_BYTES
        self._letters: list[DeadLetter] = []

    def go_on(self) -> None:
        """Until it has to wait for the disk, or is done."""
        while self._partition < self._info.partitions:
            if len(self._letters) >= self._most or self._bytes_left <= 0:
                break
            try:
                earliest, latest = self._engine.offsets(self._info.name, self._partition)
                start = max(self._offset, earliest)
                if start >= latest:
                    self._partition, self._offset = self._partition + 1, 0
                    continue
                read = self._engine.read(self._info.name, self._partition, start, self._bytes_left)
            except Exception as error:  # such as: the topic was deleted
                self._done.settle(None, error)
                return
            if not read.done:
                read.on_done(self._read)
                return
            if not self._took(read):
                return
        self._done.settle(self._letters, None)

    def _read(self, read: Pending[ReadResult]) -> None:
        if self._took(read):
            self.go_on()

    def _took(self, read: Pending[ReadResult]) -> bool:
        if read.error is not None:
            self._done.settle(None, read.error)
            return False
        result = read.result()
        for view in result.views:
            self._bytes_left -= view.payload_bytes(view.first_row, view.last_row)
            for row in range(view.first_row, view.last_row):
                if len(self._letters) < self._most:
                    self._letters.append(_letter(view, row, self._partition))
        self._offset = result.next_offset
        return True


def parse_id(letter_id: str) -> tuple[int, int]:
    """Partition and offset of the id of an entry."""
    parts = letter_id.split("-")
    if len(parts) != 2 or not all(one.isascii() and one.isdigit() for one in parts):
        raise not_found(letter_id)
    if len(parts[0]) > 10 or len(parts[1]) > 19:
        raise not_found(letter_id)
    return int(parts[0]), int(parts[1])


def not_found(letter_id: str) -> BrokerError:
    shown = letter_id[:40]
    return BrokerError(Code.UNKNOWN_DEAD_LETTER, f"message not found: {shown!r}")


def _already(letter_id: str) -> BrokerError:
    detail = f"message {letter_id} was replayed already; replay it with force to do so again"
    return BrokerError(Code.REPLAYED_ALREADY, detail)


def _name(info: TopicInfo, letter: DeadLetter) -> str:
    return join_name(info.id, letter.partition, _OFFSET.format(letter.offset))


def _letter(view: BatchView, row: int, partition: int) -> DeadLetter:
    record = view.record(row)
    place = partition, record.offset, record.time_us
    return DeadLetter(*place, record.key, record.value, record.headers, record.expiry_us)


def _letter_at(read: Pending[ReadResult], partition: int, offset: int) -> DeadLetter:
    missing = not_found(f"{partition}-{offset}")
    if isinstance(read.error, OffsetOutOfRange):
        raise missing
    views = read.result().views
    if not views or views[0].first_offset() != offset:
        raise missing
    return _letter(views[0], views[0].first_row, partition)
