"""The schema operations 0x10 to 0x15."""

from penstock.broker.records import Records
from penstock.broker.schemas.registry import Schema
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.single import publish_one
from penstock.sessions.flymq.topics import OK
from penstock.wire.flymq import administration as a

MILLISECOND_US = 1_000


def register(session: Conversation, call: Call, request: a.RegisterSchema) -> None:
    registered = session.port.schema_operations.register(
        session.principal, request.name, request.type, request.definition
    )
    session.reply_when_done(call, registered, _row)


def get(session: Conversation, call: Call, request: a.SchemaVersion) -> None:
    found = session.port.schema_operations.schema(session.principal, request.name, request.version)
    created_ms = found.created_us // MILLISECOND_US
    reply = a.Schema([_row(found)], found.definition, found.compatibility, created_ms)
    session.reply(call, reply)


def list_schemas(session: Conversation, call: Call, request: a.SchemaFilter) -> None:
    found = session.port.schema_operations.schemas(session.principal, request.name)
    session.reply_when_done(call, found, lambda rows: a.SchemaRows([_row(one) for one in rows]))


def validate(session: Conversation, call: Call, request: a.ValidateSchema) -> None:
    errors = session.port.schema_operations.validate(
        session.principal, request.name, request.message
    )
    session.reply_when_done(call, errors, lambda found: a.Validity(not found, found))


def delete(session: Conversation, call: Call, request: a.SchemaVersion) -> None:
    deleted = session.port.schema_operations.delete(
        session.principal, request.name, request.version
    )
    session.reply_when_done(call, deleted, lambda _: OK)


def produce(
    session: Conversation, call: Call, request: a.ProduceWithSchema | a.SdkProduceWithSchema
) -> None:
    session.counters.messages_in += 1
    making = session.port.schema_operations.making(request.schema)
    if making is None:
        _produce(session, call, request)
        return
    session.blocking = True

    def made(done: Pending[object]) -> None:
        session.blocking = False
        try:
            done.result()
            _produce(session, call, request)
        except PenstockError as error:
            session.refuse(call, error)
        session.go_on()

    making.on_done(session.guarded(made))


def _produce(
    session: Conversation, call: Call, request: a.ProduceWithSchema | a.SdkProduceWithSchema
) -> None:
    errors = session.port.schema_operations.errors(request.schema, request.data)
    if errors:
        raise SchemaViolation(request.schema, {0: " ".join(errors)}, 1, False)
    # The topic may be bound to another schema.
    publish_one(session, call, request.topic, Records([request.data]))


def _row(schema: Schema) -> a.SchemaRow:
    return a.SchemaRow(schema.name, schema.kind, schema.version)
