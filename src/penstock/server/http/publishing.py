"""The call of the HTTP API that publishes: keys, headers, a time to live, a delay, a schema.

A request is a batch. It is refused as a whole where one of its records does not fit a schema, and the
answer names the first; where the topic wants refused records as dead letters, the others are stored.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place
from penstock.broker.schemas.violations import SchemaViolation
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.key_partition import partition_of
from penstock.log.batch.view import Headers
from penstock.log.engine import AppendToken, Pending, TopicInfo
from penstock.server.http.api import Api, Json, invalid
from penstock.server.http.api_types import PublishRequest, RecordToPublish

# Of one request: they are made into batches on the event loop, which takes about a microsecond each.
MAX_PUBLISHED: Final = 1_000
# A larger request is decoded in a thread.
DECODED_AT_ONCE_BYTES: Final = 64 * 1024
PROTOCOL: Final = "http"
# The protocols count them as 32 bits; a header name that is longer is a mistake.
MAX_HEADER_NAME_BYTES: Final = 1024


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


async def publish(api: Api, who: Principal, name: str, request: PublishRequest) -> Json:
    """Answered when all of it is as durable as the topic asks for."""
    broker = api.broker
    broker.require(who, Operation.PUBLISH, name)
    rows = await rows_of(request.records, request.encoding)
    if request.schema is not None:
        await _check_named_schema(api, request.schema, rows)
    if request.delay_ms is not None:
        return await _delay(api, who, name, request, rows)
    expiry_us = broker.expiry_us(request.ttl_ms or 0)
    named = request.partition is not None
    info = api.info(name) if named else broker.ensure_topic(name, who)
    _check_sizes(rows, info)
    whole = _records(rows, range(len(rows)), broker.clock_us(), expiry_us)
    violation = await _violation(api, info, whole)
    answers: list[Json] = [{} for _ in rows]
    stored = range(len(rows)) if violation is None else violation.others()
    # Looked up again: it may have been bound to another schema meanwhile.
    checked = api.info(name).settings == info.settings
    tokens: list[tuple[AppendToken, tuple[str, int], Sequence[int]]] = []
    if violation is not None:
        token = broker.divert(name, whole, violation, PROTOCOL)
        place = dead_letter_place(name)
        tokens.append((token, place, violation.refused()))
    for partition, some in _placed(api, info, request.partition, rows, stored).items():
        part = _records(rows, some, broker.clock_us(), expiry_us)
        part.checked = checked
        tokens.append((broker.publish(who, name, partition, part), (name, partition), some))
    for token, place, chosen in tokens:
        first = await token
        for number, row in enumerate(chosen):
            answers[row] = {"topic": place[0], "partition": place[1], "offset": first + number}
    return {"records": answers}


async def rows_of(records: Sequence[RecordToPublish], encoding: str) -> list[Row]:
    if not records:
        raise invalid("records: there is none")
    if len(records) > MAX_PUBLISHED:
        raise invalid(f"records: {len(records)}, and a request has {MAX_PUBLISHED} at most")
    size = sum(len(one.value or "") + len(one.key or "") for one in records)
    if size <= DECODED_AT_ONCE_BYTES:
        return _rows(records, encoding)
    return await asyncio.to_thread(_rows, records, encoding)


def _rows(records: Sequence[RecordToPublish], encoding: str) -> list[Row]:
    found = []
    for number, one in enumerate(records):
        try:
            key = None if one.key is None else _decoded(one.key, encoding)
            value = None if one.value is None else _decoded(one.value, encoding)
            headers = [(name.encode(), _decoded(text, encoding)) for name, text in one.headers]
        except binascii.Error as error:
            detail = f'record {number} is not base64: {error}; or say "encoding": "text"'
            raise invalid(detail) from None
        except UnicodeEncodeError:
            raise invalid(f"record {number} is not UTF-8") from None
        if value is None and key is None:
            raise invalid(f"record {number} has neither key nor value")
        if any(not 0 < len(name) <= MAX_HEADER_NAME_BYTES for name, _ in headers):
            detail = f"the name of a header has 1 to {MAX_HEADER_NAME_BYTES} bytes"
            raise invalid(f"record {number}: {detail}")
        found.append(Row(key, value, headers))
    return found


def _decoded(text: str, encoding: str) -> bytes:
    return text.encode() if encoding == "text" else base64.b64decode(text, validate=True)


def plain_values(rows: Sequence[Row], what: str) -> list[bytes]:
    """For what stores values alone."""
    values = []
    for number, row in enumerate(rows):
        if row.key is not None or row.headers or row.value is None:
            raise invalid(f"record {number}: {what} has a value, no key and no headers")
        values.append(row.value)
    return values


def _check_sizes(rows: Sequence[Row], info: TopicInfo) -> None:
    limit = info.settings.record_bytes
    if max(len(row.value or b"") for row in rows) > limit:
        raise RecordTooLarge(limit)


def _records(rows: Sequence[Row], chosen: Sequence[int], now_us: int, expiry_us: int) -> Records:
    builder = BatchBuilder()
    for number in chosen:
        row = rows[number]
        builder.add(row.value, now_us, row.key, row.headers, expiry_us)
    made = Records([], batch=builder.build())
    made.time_us = now_us
    return made


def _placed(
    api: Api, info: TopicInfo, partition: int | None, rows: Sequence[Row], stored: Sequence[int]
) -> dict[int, list[int]]:
    """The rows of each partition: of the one that was named, of the key, or of whose turn it is."""
    if partition is not None:
        if not 0 <= partition < info.partitions:
            text = f"topic {info.name!r} has no partition {partition}; there are {info.partitions}"
            raise BrokerError(Code.UNKNOWN_PARTITION, text)
        return {partition: list(stored)} if stored else {}
    turn = -1
    chosen: dict[int, list[int]] = {}
    for number in stored:
        key = rows[number].key
        if key is not None:
            target = partition_of(key, info.partitions)
        else:
            if turn < 0:
                size = sum(len(row.value or b"") for row in rows)
                turn = api.broker.turn(info.name, info.partitions, size)
            target = turn
        chosen.setdefault(target, []).append(number)
    return chosen


# --- schemas --------------------------------------------------------------------------------------


async def _violation(api: Api, info: TopicInfo, records: Records) -> SchemaViolation | None:
    """Of the schema that the topic is bound to, where refused records become dead letters. Raises it where
    they do not."""
    if not info.settings.schema:
        return None
    schemas, settings = api.broker.schemas, info.settings
    found = await api.broker.aside(lambda: schemas.violation(settings, records))
    if found is not None and not found.diverts:
        raise found
    return found


async def _check_named_schema(api: Api, name: str, rows: Sequence[Row]) -> None:
    """Needs no right but that of the publish, as PRODUCE_WITH_SCHEMA."""
    registry = api.broker.schemas.registry
    values = [row.value for row in rows]
    bad = await api.broker.aside(lambda: registry.validator(name).invalid(values))
    if bad:
        raise SchemaViolation(name, bad, len(rows), False)


# --- later ----------------------------------------------------------------------------------------


async def _delay(
    api: Api, who: Principal, name: str, request: PublishRequest, rows: Sequence[Row]
) -> Json:
    """Each gets an id, with which it can be cancelled, or the place of its dead letter."""
    if request.ttl_ms is not None or request.partition is not None:
        raise invalid("delay_ms goes with neither ttl_ms nor partition")
    values = plain_values(rows, "a delayed message")
    accepted: list[Pending[int] | AppendToken] = []
    refusal: BrokerError | None = None
    for value in values:
        try:
            accepted.append(_delay_or_divert(api, who, name, value, request.delay_ms or 0))
        except Exception as error:
            refusal = from_exception(error)
            break
    answers: list[Json] = []
    for one in accepted:
        if isinstance(one, AppendToken):
            topic, partition = dead_letter_place(name)
            answers.append({"topic": topic, "partition": partition, "offset": await one})
        else:
            answers.append({"topic": name, "id": f"delayed-{await one}"})
    if refusal is not None:
        if accepted:
            text = f"{len(accepted)} of {len(values)} were accepted before it: {refusal}"
            raise BrokerError(refusal.code, text)
        raise refusal
    return {"records": answers}


def _delay_or_divert(
    api: Api, who: Principal, name: str, value: bytes, delay_ms: int
) -> Pending[int] | AppendToken:
    """The token of a dead letter where the topic wants what its schema refuses there."""
    try:
        return api.broker.delayed.produce(who, name, value, delay_ms)
    except SchemaViolation as violation:
        if not violation.diverts:
            raise
        return api.broker.divert(name, Records([value]), violation, PROTOCOL)
