"""PRODUCE_WITH_TTL, PRODUCE_DELAYED and CANCEL_DELAYED: messages that expire, or that come later.

The log skips what has expired, and the broker delivers what is due; nothing here looks at the clock.
"""

from typing import Final

from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.log.engine import Pending
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.single import publish_one
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.produce import NO_KEY

MILLISECOND_US: Final = 1_000


def produce_with_ttl(session: Conversation, call: Call, request: a.ProduceWithTtl) -> None:
    session.counters.messages_in += 1
    records = Records([request.data], expiries=[session.port.expiry_us(request.ttl_ms)])
    publish_one(session, call, request.topic, records)


def produce_delayed(session: Conversation, call: Call, request: a.ProduceDelayed) -> None:
    """The offset of the answer is the id of the message, for CANCEL_DELAYED."""
    session.counters.messages_in += 1
    accepted = session.port.delayed.produce(
        session.principal, request.topic, request.data, request.delay_ms
    )

    def written(done: Pending[int]) -> None:
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        time_ms = session.port.clock_us() // MILLISECOND_US
        place = request.topic, 0, done.result()
        session.reply_later(call, m.RecordMetadata(*place, time_ms, NO_KEY, len(request.data)))

    accepted.on_done(session.guarded(written))


def cancel_delayed(
    session: Conversation, call: Call, request: a.CancelDelayed | a.CancelDelayedOf
) -> None:
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
