"""The words and numbers of ERROR replies, from the broker's table of errors.

FlyMQ has no error codes of its own: SDKs show the number of our table, the document's dialect has a text
alone. Some texts are those of the existing server, because clients look for them.
"""

from typing import Final

from penstock.broker.errors import Code, from_exception
from penstock.broker.schemas.violations import SchemaViolation
from penstock.wire.errors import PeerError
from penstock.wire.flymq.layout import Message

_OUT_OF_RANGE: Final = "partition {partition} out of range"
_NOT_FOUND: Final = "partition {partition} not found"
# The operations that say it in other words than the rest.
OUT_OF_RANGE_NAMES: Final = frozenset({"PRODUCE", "CONSUME", "CONSUME_ZERO_COPY"})

_OF_AUDIT: Final = frozenset({"AUDIT_QUERY", "AUDIT_EXPORT"})
# Changes of schemas say what has failed, where it was for the schema.
_SCHEMA_CHANGES: Final = {"REGISTER_SCHEMA": "register", "DELETE_SCHEMA": "delete"}
_OF_SCHEMAS: Final = frozenset(
    {
        Code.INVALID_SCHEMA,
        Code.INCOMPATIBLE_SCHEMA,
        Code.UNKNOWN_SCHEMA,
        Code.SCHEMA_IN_USE,
        Code.SCHEMAS_NOT_INSTALLED,
    }
)


def refusal(name: str, request: Message | None, error: BaseException) -> tuple[int, str]:
    """Number and text for a request of the opcode `name` that failed."""
    if isinstance(error, PeerError):
        return Code.INVALID_REQUEST.number, str(error)
    refused = from_exception(error)
    topic = getattr(request, "topic", "")
    text = str(refused)
    if text.startswith("unsupported schema type"):
        return refused.code.number, text
    if name in _OF_AUDIT and refused.code is Code.NOT_AUTHORIZED:
        text = f"{text}; admin access required for audit queries"
    elif refused.code is Code.UNKNOWN_TOPIC and hasattr(request, "topic"):
        text = f"topic not found: {topic}"
    elif refused.code is Code.UNKNOWN_PARTITION:
        words = _OUT_OF_RANGE if name in OUT_OF_RANGE_NAMES else _NOT_FOUND
        text = words.format(partition=getattr(request, "partition", 0))
    elif refused.code is Code.UNKNOWN_GROUP:
        text = f"consumer group not found: {topic}:{getattr(request, 'group', '')}"
    elif isinstance(refused, SchemaViolation):
        text = f"schema validation failed: [{' '.join(refused.rows.values())}]"
    elif name in _SCHEMA_CHANGES and refused.code in _OF_SCHEMAS:
        text = f"failed to {_SCHEMA_CHANGES[name]} schema: {text}"
    elif refused.code is Code.UNKNOWN_SCHEMA and not getattr(request, "version", 1):
        text = f"no schema found for topic: {getattr(request, 'name', '')}"
    return refused.code.number, text
