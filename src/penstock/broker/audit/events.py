"""What the audit trail holds: the types of events, their fields, and how they are written.

An event is one JSON object: the value of a record of the topic `_audit`, and a line of the file. Fields
that are added later need defaults. Types are in the words of FlyMQ where it has them.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

AUDIT_TOPIC: Final = "_audit"

LOGIN: Final = "auth.success"
FAILED_LOGIN: Final = "auth.failure"
DENIED: Final = "access.denied"
TOPIC_CREATED: Final = "topic.create"
TOPIC_CHANGED: Final = "topic.change"
TOPIC_DELETED: Final = "topic.delete"
TOPIC_PURGED: Final = "topic.purge"
KEY_CREATED: Final = "key.create"
KEY_REVOKED: Final = "key.revoke"
USER_CREATED: Final = "user.create"
USER_CHANGED: Final = "user.change"
USER_DELETED: Final = "user.delete"
PASSWORD_CHANGED: Final = "user.password"
RULE_SET: Final = "acl.set"
RULE_DELETED: Final = "acl.delete"
SCHEMA_REGISTERED: Final = "schema.register"
SCHEMA_CHANGED: Final = "schema.change"
SCHEMA_DELETED: Final = "schema.delete"
TENANT_CREATED: Final = "tenant.create"
TENANT_DELETED: Final = "tenant.delete"
NAMESPACE_CREATED: Final = "namespace.create"
NAMESPACE_DELETED: Final = "namespace.delete"
CACHE_CREATED: Final = "cache.create"
CACHE_DELETED: Final = "cache.delete"
GROUP_RESET: Final = "group.reset"
GROUP_DELETED: Final = "group.delete"
LETTER_REPLAYED: Final = "dlq.replay"
LETTERS_PURGED: Final = "dlq.purge"
DELAYED_CANCELLED: Final = "delayed.cancel"
# By an administrator: that of somebody else.
TRANSACTION_ABORTED: Final = "txn.abort"
CONFIG_RELOADED: Final = "config.reload"
# How many events were left out, by their types.
OMITTED: Final = "trail.omitted"

TYPES: Final = (
    LOGIN, FAILED_LOGIN, DENIED, TOPIC_CREATED, TOPIC_CHANGED, TOPIC_DELETED, TOPIC_PURGED, KEY_CREATED,
    KEY_REVOKED, USER_CREATED, USER_CHANGED, USER_DELETED, PASSWORD_CHANGED, RULE_SET, RULE_DELETED,
    SCHEMA_REGISTERED, SCHEMA_CHANGED, SCHEMA_DELETED, GROUP_RESET, GROUP_DELETED, LETTER_REPLAYED,
    LETTERS_PURGED, DELAYED_CANCELLED, TRANSACTION_ABORTED, CONFIG_RELOADED, TENANT_CREATED, TENANT_DELETED,
    NAMESPACE_CREATED, NAMESPACE_DELETED, CACHE_CREATED, CACHE_DELETED, OMITTED,
)  # fmt: skip

SUCCESS: Final = "success"
FAILURE: Final = "failure"
REFUSED: Final = "denied"

# A peer may send names of 64 KiB.
MAX_TEXT_CHARS: Final = 256
# The only node of the embedded engine, as FlyMQ's cluster operations call it.
NODE: Final = "n1"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`time` is `time_us` for people. `user`: the name of the principal, or the one that a login gave.
    `door`: the protocol. `address`: of the peer, without its port."""

    id: str
    time_us: int
    time: str
    type: str
    user: str = ""
    address: str = ""
    door: str = ""
    resource: str = ""
    action: str = ""
    result: str = SUCCESS
    details: dict[str, str] = {}


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(value: bytes) -> Event | None:
    """None for what is no event."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def time_text(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(
        microsecond=time_us % 1_000_000
    )
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def short(text: str) -> str:
    """A text of a peer, so that it fits an event and JSON."""
    cut = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
    return cut.encode("utf-8", "replace").decode()


# --- CSV ------------------------------------------------------------------------------------------

COLUMNS: Final = ("id", "time", "type", "user", "address", "door", "resource", "action", "result")
CSV_HEAD: Final = (",".join((*COLUMNS, "details")) + "\n").encode()
# What a spreadsheet takes for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_csv(events: Iterable[Event]) -> bytes:
    """Lines without the head. Texts come from peers: none of them is a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for event in events:
        details = " ".join(f"{name}={value}" for name, value in event.details.items())
        writer.writerow([_plain(getattr(event, one)) for one in COLUMNS] + [_plain(details)])
    return text.getvalue().encode()


def _plain(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def as_lines(events: Sequence[Event]) -> bytes:
    return b"".join(encode(event) + b"\n" for event in events)
