"""PRODUCE_WITH_TTL: messages that expire. No protocol delivers one after that.

The log skips what has expired; nothing here looks at the clock.
"""

from typing import Final

from penstock.broker.records import Records
from penstock.log.engine import AppendToken
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.produce import NO_KEY

MILLISECOND_US: Final = 1_000


def produce_with_ttl(session: Conversation, call: Call, request: a.ProduceWithTtl) -> None:
    session.counters.messages_in += 1
    records = Records([request.data], expiries=[session.port.expiry_us(request.ttl_ms)])
    (part,) = session.port.place(session.principal, request.topic, records)
    token = session.port.publish(session.principal, request.topic, part.partition, records)

    def written(done: AppendToken) -> None:
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        time_ms = records.time_us // MILLISECOND_US
        place = request.topic, part.partition, done.base_offset
        session.reply_later(call, m.RecordMetadata(*place, time_ms, NO_KEY, len(request.data)))

    token.on_done(session.guarded(written))
