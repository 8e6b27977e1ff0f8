"""AUDIT_QUERY and AUDIT_EXPORT, 0x80 and 0x81.

A query is answered newest first. An export has all events that fit in their order, whatever limit and
offset say, as JSON or CSV; one that does not fit a reply is refused. Both are read in a thread, and the
requests behind them wait.
"""

from typing import Final

from penstock.broker.audit.events import CSV_HEAD, NODE, Event, as_csv, encode
from penstock.broker.audit.query import AuditReader, Filter
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import Port
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import administration as a

SECOND_US: Final = 1_000_000
MILLISECOND_US: Final = 1_000
# The whole export is one field of a reply, which is 32 MiB at most; it is held twice while it is framed.
MAX_EXPORT_BYTES: Final = 24 * 1024 * 1024
CSV: Final = "csv"
JSON: Final = "json"
# Of the times on the wire, so that microseconds fit 64 bits.
MAX_TIME_S: Final = (1 << 63) // SECOND_US - 1


def require_enabled(port: Port) -> None:
    port.audit_reader.require_enabled()


def query(session: Conversation, call: Call, request: a.AuditQuery) -> None:
    reader = session.port.audit_reader
    wanted = _filter(request)

    def answer() -> a.AuditEvents:
        found = reader.query(wanted, request.limit, request.offset)
        more = found.has_more or not found.complete
        return a.AuditEvents([_event(one) for one in found.events], found.total, more)

    session.reply_aside(call, answer)


def export(session: Conversation, call: Call, request: a.AuditExport) -> None:
    reader = session.port.audit_reader
    wanted = _filter(request.query)
    if request.format == CSV:
        session.reply_aside(call, lambda: a.AuditExported(CSV, _csv(reader, wanted)))
    else:
        session.reply_aside(call, lambda: a.AuditExported(JSON, _json(reader, wanted)))


def _filter(request: a.AuditQuery) -> Filter:
    """The second of the end is a part of it."""
    for time_s in (request.start_s, request.end_s):
        if not 0 <= time_s <= MAX_TIME_S:
            text = f"time {time_s} is no Unix time in seconds; 0 is open"
            raise BrokerError(Code.INVALID_REQUEST, text)
    end_us = (request.end_s + 1) * SECOND_US - 1 if request.end_s else 0
    return Filter(
        request.start_s * SECOND_US,
        end_us,
        tuple(request.types),
        request.user,
        request.resource,
        request.result,
        request.search,
    )


def _event(event: Event) -> a.AuditEvent:
    """The layout has no field for the door: it is one of the details."""
    details = {"door": event.door, **event.details} if event.door else event.details
    return a.AuditEvent(
        event.id,
        event.time_us // MILLISECOND_US,
        event.type,
        event.user,
        event.address,
        event.resource,
        event.action,
        event.result,
        NODE,
        [a.AuditDetail(key, value) for key, value in details.items()],
    )


def _csv(reader: AuditReader, wanted: Filter) -> bytes:
    text = bytearray(CSV_HEAD)
    for events in reader.export(wanted):
        text += as_csv(events)
        _check_size(text)
    return bytes(text)


def _json(reader: AuditReader, wanted: Filter) -> bytes:
    text = bytearray(b"[")
    for events in reader.export(wanted):
        for event in events:
            text += b",\n" if len(text) > 1 else b""
            text += encode(event)
        _check_size(text)
    return bytes(text + b"]\n")


def _check_size(text: bytearray) -> None:
    if len(text) > MAX_EXPORT_BYTES:
        raise BrokerError(
            Code.INVALID_REQUEST,
            f"the export is over {MAX_EXPORT_BYTES} bytes; narrow the times, or use the HTTP API",
        )
