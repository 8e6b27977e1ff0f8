"""The calls of the HTTP API on the audit trail: events by filter, newest first, and an export of them all.

Both read in threads. An export is written as it is read, however long it is.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit.events import CSV_HEAD, TYPES, Event, as_csv, as_lines
from penstock.broker.audit.query import DEFAULT_LIMIT, MAX_LIMIT, Filter
from penstock.server.http.api import Api, Query, invalid, number_in

FILTERS: Final = ("start", "end", "types", "user", "resource", "result", "search")
QUERY: Final = (*FILTERS, "limit", "offset")
EXPORT: Final = (*FILTERS, "format")
RESULTS: Final = ("success", "failure", "denied")
# A program goes on with another `end` instead.
MAX_OFFSET: Final = 1_000_000
MEDIA_TYPES: Final = {"json": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


class ExportPage:
    """The events as they are read: JSON objects, one a line, or CSV with a head."""

    def __init__(self, form: str, first: list[Event], rest: Iterator[list[Event]]) -> None:
        self.media_type = MEDIA_TYPES[form]
        self._form = form
        self._first = first
        self._rest = rest

    def pieces(self) -> Iterator[bytes]:
        if self._form == "csv":
            yield CSV_HEAD + as_csv(self._first)
            for events in self._rest:
                yield as_csv(events)
        else:
            yield as_lines(self._first)
            for events in self._rest:
                yield as_lines(events)


async def query(api: Api, who: Principal, given: Query) -> bytes:
    api.broker.require(who, Operation.READ_AUDIT)
    reader = api.broker.audit_reader
    reader.require_enabled()
    wanted = _filter(given)
    limit = number_in(given, "limit", DEFAULT_LIMIT, MAX_LIMIT)
    offset = number_in(given, "offset", 0, MAX_OFFSET)

    def look() -> bytes:
        found = reader.query(wanted, limit, offset)
        return msgspec.json.encode(
            {
                "events": found.events,
                "total": found.total,
                "has_more": found.has_more,
                "complete": found.complete,
            }
        )

    return await asyncio.to_thread(look)


async def export(api: Api, who: Principal, given: Query) -> ExportPage:
    api.broker.require(who, Operation.READ_AUDIT)
    api.broker.audit_reader.require_enabled()
    form = given.get("format", "json")
    if form not in MEDIA_TYPES:
        raise invalid(f"format: expected one of {', '.join(MEDIA_TYPES)}")
    events = api.broker.audit_reader.export(_filter(given))
    # What is refused is refused before the answer begins.
    first: list[Event] = await asyncio.to_thread(next, events, [])
    return ExportPage(form, first, events)


def _filter(given: Query) -> Filter:
    types = tuple(one for one in given.get("types", "").split(",") if one)
    unknown = [one for one in types if "*" not in one and one not in TYPES]
    if unknown:
        raise invalid(f"types: {unknown[0][:100]!r} is none of {', '.join(TYPES)}")
    result = given.get("result", "")
    if result and result not in RESULTS:
        raise invalid(f"result: expected one of {', '.join(RESULTS)}")
    return Filter(
        _time_us(given, "start"),
        _time_us(given, "end"),
        types,
        given.get("user", ""),
        given.get("resource", ""),
        result,
        given.get("search", ""),
    )


def _time_us(given: Query, name: str) -> int:
    """Microseconds since 1970, or a time as ISO 8601 writes it; without a zone it is UTC."""
    text = given.get(name, "")
    if not text or (text.isascii() and text.isdigit()):
        return number_in(given, name, 0, 2**63 - 1) if text else 0
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(int(moment.timestamp() * 1_000_000), 0)
    except (ValueError, OverflowError, OSError):
        raise invalid(
            f"{name}: expected a time such as 2026-01-31T12:00:00Z, or microseconds"
        ) from None
