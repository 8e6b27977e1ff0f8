"""Refusals in the words and codes of BlipMQ: from the broker's errors to NACK frames."""

from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.log.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    Overloaded,
    PartitionStopped,
)
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.split import PublishRun

SHUTTING_DOWN = "log corruption: write-ahead log not available: broker shutting down"
NOT_AUTHORIZED = 401
INVALID = 400
NOT_FOUND = 404
FAILED = 500


def publish_nack(error: Exception, durable: bool) -> wire.Nack | None:
    """The refusal of a publish; None for a QoS0 message, whose publisher gets no answer."""
    refusal = from_exception(error)
    if refusal.code is Code.NOT_AUTHORIZED:
        return wire.Nack(NOT_AUTHORIZED, str(refusal))
    if refusal.code in (Code.INVALID_TOPIC_NAME, Code.RECORD_TOO_LARGE, Code.LIMIT_REACHED):
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


def without_large(run: PublishRun, limit: int) -> tuple[list[bytes], bytes, bytes]:
    """The messages of up to `limit` bytes, their packed ids, and the ids of the others."""
    packed = run.correlation_ids
    values: list[bytes] = []
    ids = bytearray()
    refused = bytearray()
    for number, value in enumerate(run.values):
        fits = len(value) <= limit
        (ids if fits else refused).extend(packed[8 * number : 8 * number + 8])
        if fits:
            values.append(value)
    return values, bytes(ids), bytes(refused)


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
