"""Records between batches of Penstock and messages of librdkafka, one to one.

    key, value      as they are, null is null
    headers         as they are. Kafka wants UTF-8 in names: one that is not, or that has a NUL, is written
                    as `penstock-name-` and its bytes in hex
    time            in milliseconds, Kafka's unit; microseconds below are lost. Of a record that was stamped
                    just now it is the time at which librdkafka gets it, some milliseconds later at most
    expiry          header `penstock-expires-us`, decimal
    door            header `penstock-origin`, only where the engine is told to write it

A plain record gets no header of ours. Hot: compiled by mypyc, runs uncompiled too. Does no I/O.
"""

from typing import Any, Final

from mypy_extensions import i64

from penstock.log.batch.builder import build_columns
from penstock.log.batch.format import FLAG_EXPIRIES, FLAG_HEADERS, FLAG_TIMES, Batch
from penstock.log.batch.origin import door_of, origin_flags
from penstock.log.batch.view import BatchView, Headers, view_appended

EXPIRY_HEADER: Final = "penstock-expires-us"
ORIGIN_HEADER: Final = "penstock-origin"
HEX_PREFIX: Final = "penstock-name-"

# A record that was stamped so short a time ago is as well stamped now: Kafka keeps milliseconds, and a
# batch of other records may stand before it in the same call.
NOW_US: Final = 5_000
# librdkafka's answer where a message has no time.
TIME_NOT_AVAILABLE: Final = 0
# Bytes of a record on the wire around its value, key and headers, generously.
RECORD_OVERHEAD_BYTES: Final = 100

# What the columns of a record cost at most beside its value, key and headers.
COLUMNS_BYTES: Final = 40

KafkaHeaders = list[tuple[str, str | bytes | None]]


def plain_messages(batch: Batch) -> list[dict[str, Any]]:
    """For `produce_batch`, which carries neither headers nor times: see `is_plain`."""
    values = batch.values
    if values is not None:
        return [{"value": value} for value in values]
    view = view_appended(batch, 0)
    if not view.keys_at and not view.value_validity_at:
        return [{"value": value} for value in view.values()]
    found: list[dict[str, Any]] = []
    row: i64 = 0
    while row < view.count:
        one: dict[str, Any] = {}
        if not view.is_null(row):
            one["value"] = view.value(row)
        key = view.key(row)
        if key is not None:
            one["key"] = key
        found.append(one)
        row += 1
    return found


def is_plain(batch: Batch, now_us: int, with_origin: bool) -> bool:
    """Whether its records need no headers in Kafka, and have the time that librdkafka gives them now."""
    if batch.flags & (FLAG_HEADERS | FLAG_EXPIRIES | FLAG_TIMES):
        return False
    if with_origin and door_of(batch.flags) != "":
        return False
    return 0 <= now_us - batch.first_time_us <= NOW_US


class Row:
    """One record for `produce`."""

    __slots__ = ("headers", "key", "time_ms", "value")

    def __init__(
        self, value: bytes | None, key: bytes | None, time_ms: int, headers: KafkaHeaders
    ) -> None:
        self.value: Final = value
        self.key: Final = key
        self.time_ms: Final = time_ms
        self.headers: Final = headers


def rows_of(batch: Batch, with_origin: bool) -> list[Row]:
    view = view_appended(batch, 0)
    door = door_of(batch.flags) if with_origin else ""
    found: list[Row] = []
    row: i64 = 0
    while row < view.count:
        headers: KafkaHeaders = [(name_of(name), content) for name, content in view.headers(row)]
        expiry_us = view.expiry_of(row)
        if expiry_us:
            headers.append((EXPIRY_HEADER, str(expiry_us).encode()))
        if door:
            headers.append((ORIGIN_HEADER, door.encode()))
        value = None if view.is_null(row) else view.value(row)
        found.append(Row(value, view.key(row), view.time_of(row) // 1000, headers))
        row += 1
    return found


def name_of(name: bytes) -> str:
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return HEX_PREFIX + name.hex()
    if "\0" in text or text.startswith(HEX_PREFIX):
        return HEX_PREFIX + name.hex()
    return text


def name_in(text: str) -> bytes:
    if text.startswith(HEX_PREFIX):
        try:
            return bytes.fromhex(text[len(HEX_PREFIX) :])
        except ValueError:
            return text.encode("utf-8")
    return text.encode("utf-8")


def view_of(messages: list[Any], with_origin: bool) -> BatchView:
    """Messages of one partition in their order, none of them an error, as one stored batch. Column by
    column: most blocks have values and times alone."""
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    times: list[int] = []
    offsets: list[int] = []
    size: i64 = 0
    with_headers = False
    for message in messages:
        value: bytes | None = message.value()
        key: bytes | None = message.key()
        stamp: tuple[int, int] = message.timestamp()
        values.append(value)
        keys.append(key)
        times.append(0 if stamp[0] == TIME_NOT_AVAILABLE else stamp[1] * 1000)
        offsets.append(message.offset())
        size += COLUMNS_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if not with_headers and message.headers():
            with_headers = True
    headers: list[Headers] = []
    expiries: list[int] = []
    door = ""
    if with_headers:
        door = _add_headers(messages, headers, expiries, with_origin)
        size += sum(len(name) + len(content) + 8 for some in headers for name, content in some)
    batch = build_columns(values, keys, headers, times, expiries, offsets, size)
    if door:
        batch.flags |= origin_flags(door)
    return view_appended(batch, offsets[0])


def _add_headers(
    messages: list[Any], headers: list[Headers], expiries: list[int], with_origin: bool
) -> str:
    """Gives the door that all of them came in by; empty where it is not one."""
    doors: set[str] = set()
    for message in messages:
        some, expiry_us, origin = _own_headers(message.headers() or [])
        headers.append(some)
        expiries.append(expiry_us)
        doors.add(origin)
    return doors.pop() if with_origin and len(doors) == 1 else ""


def _own_headers(found: list[tuple[str, bytes | None]]) -> tuple[Headers, int, str]:
    """Without ours: headers, expiry and door."""
    headers: Headers = []
    expiry_us = 0
    origin = ""
    for name, content in found:
        if name == EXPIRY_HEADER and content is not None and _is_time(content):
            expiry_us = int(content)
        elif name == ORIGIN_HEADER and content is not None:
            origin = content.decode("utf-8", "replace")
        else:
            headers.append((name_in(name), content if content is not None else b""))
    return headers, expiry_us, origin


def _is_time(content: bytes) -> bool:
    """Anybody may write the header: only what fits is taken for an expiry."""
    return 0 < len(content) <= 18 and content.isdigit()
