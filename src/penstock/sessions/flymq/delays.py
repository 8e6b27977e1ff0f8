"""PRODUCE_DELAYED and CANCEL_DELAYED: messages that come later.

A run of PRODUCE_DELAYED is one call of the broker and one answer that holds a reply for each message. The
broker delivers what is due; nothing here looks at the clock. Hot: compiled by mypyc.
"""

from typing import Final

from penstock.broker.delayed.accepting import Accepted
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken, Pending
from penstock.sessions.base import Slot
from penstock.sessions.flymq.conversation import Answering, Call, Conversation
from penstock.sessions.flymq.produces import error_to, is_refused
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import OPCODES, encode_reply
from penstock.wire.flymq.produce import ProduceRun, encode_produced_rows

MILLISECOND_US: Final = 1_000


def delay(session: Conversation, run: ProduceRun) -> None:
    """The offset of an answer is the id of the message, for CANCEL_DELAYED."""
    count = len(run.values)
    session.counters.frames_in += count
    session.counters.frames_out += count
    session.counters.messages_in += count
    _delay(session, run)


def _delay(session: Conversation, run: ProduceRun) -> None:
    try:
        accepted = session.port.delayed.produce_run(
            session.principal, run.topic_name, run.values, run.times_ms
        )
    except PenstockError as error:
        if len(run.values) == 1 and isinstance(error, SchemaViolation) and error.diverts:
            _divert(session, run, error)
            return
        if len(run.values) == 1 or is_refused(error):
            session.answer(error_to(session, run, error) * len(run.values))
            return
        for row in range(len(run.values)):  # perhaps it is one of them alone
            _delay(session, run.single(row))
        return
    slot = _hold(session, run)
    accepted.on_done(
        session.guarded(lambda done: session.settle(slot, _replies(session, run, done)))
    )


def _hold(session: Conversation, run: ProduceRun) -> Slot:
    slot = session.hold(run.size)
    session.answering = Answering(OPCODES[run.opcode].name, slot, len(run.values))
    return slot


def _divert(session: Conversation, run: ProduceRun, violation: SchemaViolation) -> None:
    """The topic wants it in its dead letters, now and not when it is due: the reply says where it is."""
    records = Records(run.values)
    try:
        token = session.port.divert(run.topic_name, records, violation, session.protocol)
    except PenstockError as error:
        session.answer(error_to(session, run, error))
        return
    slot = _hold(session, run)
    token.on_done(
        session.guarded(lambda done: session.settle(slot, _diverted(session, run, records, done)))
    )


def _diverted(
    session: Conversation, run: ProduceRun, records: Records, token: AppendToken
) -> bytes:
    if token.error is not None:
        return error_to(session, run, token.error)
    place = *dead_letter_place(run.topic_name), token.base_offset
    time_ms = records.time_us // MILLISECOND_US
    stored = m.RecordMetadata(*place, time_ms, run.key_size(0), len(run.values[0]))
    return encode_reply(run.opcode, stored)


def _replies(session: Conversation, run: ProduceRun, accepted: Accepted) -> bytes:
    time_ms = session.port.clock_us() // MILLISECOND_US
    replies: list[bytes] = []
    for part in accepted.in_order():
        if part.error is None:
            rows = encode_produced_rows(run, part.first_row, part.count, 0, part.first_id, time_ms)
            replies.append(rows)
        else:
            replies.append(error_to(session, run, part.error) * part.count)
    return b"".join(replies)


def cancel(session: Conversation, call: Call, request: a.CancelDelayed | a.CancelDelayedOf) -> None:
    """An id that is not there is no ERROR but a reply that says false."""
    try:
        change = session.port.delayed.cancel(session.principal, _number(request))
    except BrokerError as error:
        if error.code is not Code.UNKNOWN_DELAYED_MESSAGE:
            raise
        session.reply(call, m.Ok(False, str(error)))
        return
    session.blocking = True

    def cancelled(done: Pending[object]) -> None:
        session.blocking = False
        error = done.error
        if error is None:
            session.reply_later(call, m.Ok())
        elif isinstance(error, BrokerError) and error.code is Code.UNKNOWN_DELAYED_MESSAGE:
            session.reply_later(call, m.Ok(False, str(error)))
        else:
            session.refuse_later(call, error)

    change.on_done(session.guarded(cancelled))


def _number(request: a.CancelDelayed | a.CancelDelayedOf) -> int:
    if isinstance(request, a.CancelDelayedOf):
        return request.id
    digits = request.id.removeprefix("delayed-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        detail = f"message not found: {request.id[:40]}"
        raise BrokerError(Code.UNKNOWN_DELAYED_MESSAGE, detail)
    return int(digits)
