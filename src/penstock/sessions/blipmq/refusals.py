"""Refusals in the words and codes of BlipMQ: from the broker's errors to NACK frames."""

from typing import Final

from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.log.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    Overloaded,
    PartitionStopped,
)
from penstock.wire.blipmq import frames as wire

SHUTTING_DOWN = "log corruption: write-ahead log not available: broker shutting down"
NOT_AUTHORIZED = 401
INVALID = 400
NOT_FOUND = 404
FAILED = 500

# What the publisher can repair; he is told also of a QoS0 message.
REFUSED: Final = frozenset(
    {
        Code.INVALID_TOPIC_NAME,
        Code.RECORD_TOO_LARGE,
        Code.LIMIT_REACHED,
        Code.SCHEMA_VIOLATION,
        Code.UNKNOWN_SCHEMA,
        Code.SCHEMAS_NOT_INSTALLED,
    }
)


def publish_nack(error: Exception, durable: bool) -> wire.Nack | None:
    """The refusal of a publish; None for a QoS0 message, whose publisher gets no answer."""
    refusal = from_exception(error)
    if refusal.code is Code.NOT_AUTHORIZED:
        return wire.Nack(NOT_AUTHORIZED, str(refusal))
    if refusal.code in REFUSED:
        return wire.Nack(INVALID, str(refusal))
    if not durable:
        return None
    return wire.durable_publish_failed(_wal_reason(error))


def subscribe_nack(error: Exception) -> wire.Nack:
    refusal = from_exception(error)
    if refusal.code is Code.NOT_AUTHORIZED:
        return wire.Nack(NOT_AUTHORIZED, str(refusal))
    if refusal.code is Code.UNKNOWN_TOPIC:
        return wire.Nack(NOT_FOUND, str(refusal))
    return wire.Nack(FAILED if refusal.code.retriable else INVALID, str(refusal))


def large_rows(values: list[bytes], limit: int) -> list[int]:
    """The numbers of messages with more than `limit` bytes."""
    return [row for row, value in enumerate(values) if len(value) > limit]


def without_rows(
    values: list[bytes], packed: bytes, rows: list[int]
) -> tuple[list[bytes], bytes, bytes]:
    """The other messages, their packed ids, and the ids of these rows."""
    left_out = set(rows)
    kept = [value for row, value in enumerate(values) if row not in left_out]
    ids = bytearray()
    refused = bytearray()
    for row in range(len(values)):
        (refused if row in left_out else ids).extend(packed[8 * row : 8 * row + 8])
    return kept, bytes(ids), bytes(refused)


def _wal_reason(error: Exception) -> str:
    """The error text that the reference server sends in this case."""
    if isinstance(error, Overloaded):
        return "wal overload: wal channel full"
    if isinstance(error, PartitionStopped):
        return "wal writer stopped"
    if isinstance(error, AppendFailed | OutcomeUnknown):
        return f"I/O error: {error.reason}"
    if isinstance(error, LogClosed):
        return SHUTTING_DOWN
    if isinstance(error, BrokerError) and error.code is Code.SHUTTING_DOWN:
        return SHUTTING_DOWN
    return str(from_exception(error))
