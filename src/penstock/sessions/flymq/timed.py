"""PRODUCE_WITH_TTL: messages that expire. No protocol delivers one after that.

The log skips what has expired; nothing here looks at the clock.
"""

from penstock.broker.records import Records
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.single import publish_one
from penstock.wire.flymq import administration as a


def produce_with_ttl(session: Conversation, call: Call, request: a.ProduceWithTtl) -> None:
    session.counters.messages_in += 1
    records = Records([request.data], expiries=[session.port.expiry_us(request.ttl_ms)])
    publish_one(session, call, request.topic, records)
