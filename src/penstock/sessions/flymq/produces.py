"""PRODUCE and PRODUCE_WITH_TTL: a run of them is one batch for each partition, and one answer that holds
a reply for each.

A run comes from one read (wire/flymq/produce.py), so no request is delayed for it. Partitions are as the
peer says; where it says none, they follow from the keys, and records without a key take turns.
"""

from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.records import Part, Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken
from penstock.sessions.base import Slot
from penstock.sessions.flymq.conversation import Answering, Conversation
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import OPCODES, encode_reply
from penstock.wire.flymq.produce import (
    ANY_PARTITION,
    ProduceRun,
    encode_produced,
    encode_produced_one,
)

MILLISECOND_US = 1_000


def produce(session: Conversation, run: ProduceRun) -> None:
    count = len(run.values)
    session.counters.frames_in += count
    session.counters.frames_out += count
    session.counters.messages_in += count
    _produce(session, run)


def _produce(session: Conversation, run: ProduceRun) -> None:
    expiries: list[int] | None = None
    if run.times_ms:
        try:
            expiries = _expiries(session, run)
        except PenstockError as error:
            if len(run.values) == 1 or is_refused(error):
                session.answer(error_to(session, run, error) * len(run.values))
                return
            for row in range(len(run.values)):  # the others are stored
                _produce(session, run.single(row))
            return
    slot = session.hold(run.size)
    session.answering = Answering(OPCODES[run.opcode].name, slot, len(run.values))
    answers = _Answers(session, run, slot)
    try:
        parts = _parts(session, run, Records(run.values, run.keys, expiries=expiries))
    except PenstockError as refused:
        # Not `error` again: compiled, a name has one type in a function.
        slot.reply = error_to(session, run, refused) * len(run.values)
        return
    answers.begin(parts)


def _expiries(session: Conversation, run: ProduceRun) -> list[int]:
    """When each of them expires. Raises INVALID_REQUEST where one has no possible time to live."""
    session.port.require(session.principal, Operation.PUBLISH, run.topic_name)
    return [session.port.expiry_us(ttl_ms) for ttl_ms in run.times_ms]


def _parts(session: Conversation, run: ProduceRun, records: Records) -> list[Part]:
    if run.partition == ANY_PARTITION:
        return session.port.place(session.principal, run.topic_name, records)
    session.port.require(session.principal, Operation.PUBLISH, run.topic_name)
    info = session.port.ensure_topic(run.topic_name, session.principal)
    if not 0 <= run.partition < info.partitions:
        raise BrokerError(Code.UNKNOWN_PARTITION)
    return [Part(run.partition, records, None)]


def is_refused(error: PenstockError) -> bool:
    """Whether it is about the peer, and so about every message of a run."""
    code = from_exception(error).code
    return code in (Code.NOT_AUTHENTICATED, Code.NOT_AUTHORIZED, Code.SHUTTING_DOWN)


def error_to(session: Conversation, run: ProduceRun, error: BaseException) -> bytes:
    """The ERROR for one message of the run."""
    place = m.Produce(run.topic_name, b"", b"", run.partition)
    return session.error_to(OPCODES[run.opcode].name, place, error)


class _Answers:
    """Gathers the answers of one run; its slot is filled when all of its parts are written."""

    __slots__ = ("_left", "_replies", "_run", "_session", "_slot")

    def __init__(self, session: Conversation, run: ProduceRun, slot: Slot) -> None:
        self._session = session
        self._run = run
        self._slot = slot
        self._left = 0
        # By record, where the run went to more than one partition.
        self._replies: list[bytes] = []

    def begin(self, parts: list[Part]) -> None:
        """Every part is counted before the first is appended: its callback may come at once."""
        if parts[0].rows is not None:
            self._replies = [b""] * len(self._run.values)
        self._left = len(parts)
        for part in parts:
            self._append(part)

    def _append(self, part: Part) -> None:
        try:
            token = self._session.port.publish(
                self._session.principal, self._run.topic_name, part.partition, part.records
            )
        except RecordTooLarge as error:
            self._append_singly(part, error)
            return
        except SchemaViolation as violation:
            self._append_valid(part, violation)
            return
        except PenstockError as refused:
            # Not `error` again: compiled, a name has one type in a function.
            self._refuse(part, refused)
            return
        token.on_done(self._session.guarded(lambda done: self._written(part, done)))

    def _append_singly(self, part: Part, error: RecordTooLarge) -> None:
        """Perhaps only one record is too large: the others are stored."""
        rows = self._rows(part)
        if len(rows) == 1:
            self._refuse(part, error)
            return
        self._left += len(rows) - 1
        for number, row in enumerate(rows):
            self._append(Part(part.partition, part.records.some([number]), [row]))

    def _rows(self, part: Part) -> list[int]:
        """The numbers of its records in the run, each of which gets its own reply."""
        if not self._replies:
            self._replies = [b""] * len(self._run.values)
        return part.rows if part.rows is not None else list(range(len(self._run.values)))

    def _append_valid(self, part: Part, violation: SchemaViolation) -> None:
        """The records that the schema refuses get errors, or become dead letters; others are stored."""
        rows = self._rows(part)
        fitting = violation.others()
        if violation.diverts:
            self._left += 1
            self._divert(part.records, violation, [rows[one] for one in violation.refused()])
        else:
            for one in violation.refused():
                self._replies[rows[one]] = error_to(self._session, self._run, violation.of(one))
        if not fitting:
            self._part_is_done()
            return
        records = part.records.some(fitting)
        records.checked = True
        self._append(Part(part.partition, records, [rows[one] for one in fitting]))

    def _divert(self, records: Records, violation: SchemaViolation, rows: list[int]) -> None:
        topic = self._run.topic_name
        letters = Part(0, records, rows)
        try:
            token = self._session.port.divert(topic, records, violation, self._session.protocol)
        except PenstockError as error:
            self._refuse(letters, error)
            return
        token.on_done(self._session.guarded(lambda done: self._diverted(letters, done)))

    def _diverted(self, letters: Part, token: AppendToken) -> None:
        """The replies name the topic of the dead letters: there is where the records are."""
        if token.error is not None:
            self._refuse(letters, token.error)
            return
        topic, partition = dead_letter_place(self._run.topic_name)
        time_ms = letters.records.time_us // MILLISECOND_US
        for number, row in enumerate(letters.rows or ()):
            stored = m.RecordMetadata(
                topic,
                partition,
                token.offset_of(number),
                time_ms,
                self._run.key_size(row),
                len(self._run.values[row]),
            )
            self._replies[row] = encode_reply(self._run.opcode, stored)
        self._part_is_done()

    def _written(self, part: Part, token: AppendToken) -> None:
        if token.error is not None:
            self._refuse(part, token.error)
            return
        time_ms = part.records.time_us // MILLISECOND_US
        offsets = token.offsets
        if part.rows is None and offsets is None:
            offset = token.base_offset
            self._slot.reply = encode_produced(self._run, part.partition, offset, time_ms)
        elif part.rows is None and offsets is not None:
            self._slot.reply = b"".join(
                encode_produced_one(self._run, row, part.partition, offset, time_ms)
                for row, offset in enumerate(offsets)
            )
        elif part.rows is not None:
            for number, row in enumerate(part.rows):
                self._replies[row] = encode_produced_one(
                    self._run, row, part.partition, token.offset_of(number), time_ms
                )
        self._part_is_done()

    def _refuse(self, part: Part, error: BaseException) -> None:
        reply = error_to(self._session, self._run, error)
        if part.rows is None:
            self._slot.reply = reply * len(self._run.values)
        for row in part.rows or ():
            self._replies[row] = reply
        self._part_is_done()

    def _part_is_done(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._replies:
            self._slot.reply = b"".join(self._replies)
        self._session.go_on()
