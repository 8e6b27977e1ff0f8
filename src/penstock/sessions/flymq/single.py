"""One record that is published by itself, and the RecordMetadata that answers it."""

from typing import Final

from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.log.engine import AppendToken
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.produce import NO_KEY

MILLISECOND_US: Final = 1_000


def publish_one(session: Conversation, call: Call, topic: str, records: Records) -> None:
    """What the schema of the topic refuses may become a dead letter; the answer says where it is."""
    port, name = session.port, topic
    (part,) = port.place(session.principal, topic, records)
    partition = part.partition
    try:
        token = port.publish(session.principal, topic, partition, records)
    except SchemaViolation as violation:
        if not violation.diverts:
            raise
        token = port.divert(topic, records, violation, session.protocol)
        name, partition = dead_letter_place(topic)
    session.changes += 1

    def written(done: AppendToken) -> None:
        session.changes -= 1
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        time_ms = records.time_us // MILLISECOND_US
        size = len(records.values[0])
        place = name, partition, done.base_offset
        session.reply_later(call, m.RecordMetadata(*place, time_ms, NO_KEY, size))

    token.on_done(session.guarded(written))
