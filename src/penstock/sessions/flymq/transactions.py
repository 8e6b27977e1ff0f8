"""TXN_BEGIN, TXN_COMMIT, TXN_ROLLBACK and TXN_PRODUCE, 0x40 to 0x43.

A transaction belongs to the user who began it, or to the connection where nobody is logged in; to others
its id does not exist. A run of TXN_PRODUCE is kept at once (wire/flymq/produce.py). Each message gets a
reply of its own, which tells no place, because the commit decides about it.
"""

from penstock.broker.errors import RecordTooLarge
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.flymq.conversation import Answering, Call, Conversation
from penstock.sessions.flymq.produces import MILLISECOND_US
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import encode_reply
from penstock.wire.flymq.produce import NO_KEY, TXN_PRODUCE, ProduceRun, encode_staged

NAME = "TXN_PRODUCE"


def begin(session: Conversation, call: Call, request: m.Nothing) -> None:
    user = None if session.is_logged_in else session
    begun = session.port.transactions.begin(session.principal, user)
    session.reply(call, a.TransactionDone(begun, True))


def commit(session: Conversation, call: Call, request: a.Transaction) -> None:
    """One that is unknown or whose time is over is an ERROR: SDKs do not look at the flag."""
    change = session.port.transactions.commit(session.principal, session, request.id)
    session.reply_when_durable(call, change, a.TransactionDone(request.id, True))


def roll_back(session: Conversation, call: Call, request: a.Transaction) -> None:
    """Of one that is unknown the flag tells."""
    change = session.port.transactions.roll_back(session.principal, session, request.id)
    if change is None:
        session.reply(call, a.TransactionDone(request.id, False))
    else:
        session.reply_when_durable(call, change, a.TransactionDone(request.id, True))


def stage(session: Conversation, run: ProduceRun, transaction_id: str) -> None:
    count = len(run.values)
    session.counters.frames_in += count
    session.counters.frames_out += count
    session.counters.messages_in += count
    _stage(session, run, transaction_id)


def _stage(session: Conversation, run: ProduceRun, transaction_id: str) -> None:
    try:
        moving = session.port.transactions.stage(
            session.principal, session, transaction_id, run.topic_name, run.values
        )
    except (RecordTooLarge, SchemaViolation) as error:
        if len(run.values) == 1 and isinstance(error, SchemaViolation) and error.diverts:
            _divert(session, run, transaction_id, error)
            return
        if len(run.values) == 1:
            session.answer(_refused(session, run, error))
            return
        for row in range(len(run.values)):  # the others are kept
            _stage(session, run.single(row), transaction_id)
        return
    except PenstockError as refused:
        session.answer(_refused(session, run, refused) * len(run.values))
        return
    _answer(session, run, moving, encode_staged(run, _now_ms(session)))


def _divert(
    session: Conversation, run: ProduceRun, transaction_id: str, violation: SchemaViolation
) -> None:
    """The topic wants it in its dead letters, which the reply names: it is there with the commit."""
    topic, value = run.topic_name, run.values[0]
    place = session.principal, session, transaction_id, topic
    try:
        moving = session.port.transactions.stage_letter(*place, value, violation, session.protocol)
    except PenstockError as refused:
        session.answer(_refused(session, run, refused))
        return
    name, partition = dead_letter_place(topic)
    sizes = NO_KEY, len(value)
    staged = m.RecordMetadata(name, partition, 0, _now_ms(session), *sizes)
    _answer(session, run, moving, encode_reply(TXN_PRODUCE, staged))


def _now_ms(session: Conversation) -> int:
    return session.port.clock_us() // MILLISECOND_US


def _answer(
    session: Conversation, run: ProduceRun, moving: Pending[object] | None, replies: bytes
) -> None:
    if moving is None:
        session.answer(replies)
        return
    slot = session.hold(run.size)
    session.answering = Answering(NAME, slot, len(run.values))

    def moved(done: Pending[object]) -> None:
        if done.error is None:
            session.settle(slot, replies)
        else:
            session.settle(slot, _refused(session, run, done.error) * len(run.values))

    moving.on_done(session.guarded(moved))


def _refused(session: Conversation, run: ProduceRun, error: BaseException) -> bytes:
    return session.error_to(NAME, m.Topic(run.topic_name), error)
