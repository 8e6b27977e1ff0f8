"""Changes that commands make on a data directory while no server runs: the next start records them.

Such a command opens the metadata and not the log. It leaves a note there, and the server writes the event
when it starts, with the time of the change beside it.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.access.stored import change
from penstock.broker.audit.events import short, time_text
from penstock.broker.audit.trail import AuditTrail
from penstock.log.records import Metadata, Space

NOTES: Final = "audit_notes"
# The door of such a change.
DATA_DIRECTORY: Final = "data directory"
# More are left for the start after the next: nobody types so many.
MAX_NOTES: Final = 10_000

logger = logging.getLogger(__name__)


class Note(msgspec.Struct, frozen=True):
    time_us: int
    type: str
    user: str
    resource: str
    details: dict[str, str]


class OfflineTrail:
    """For Accounts of a command. `user`: who runs it, as the system calls them."""

    def __init__(self, metadata: Metadata, clock_us: Callable[[], int], user: str) -> None:
        self._metadata = metadata
        self._notes = Space(metadata, NOTES, Note)
        self._clock_us = clock_us
        self._user = user

    def changed_aside(
        self, principal: Principal, kind: str, resource: str, details: Mapping[str, object]
    ) -> None:
        time_us = self._clock_us()
        told = {name: short(str(value)) for name, value in details.items()}
        note = Note(time_us, kind, self._user, short(resource), told)
        change(self._metadata, lambda: [self._notes.put(f"{time_us:020d}-{kind}", note)])


def record_notes(metadata: Metadata, trail: AuditTrail) -> None:
    """At a start. A note goes when its event is durable."""
    notes = Space(metadata, NOTES, Note)
    for record in metadata.list(NOTES, "", None, MAX_NOTES):
        try:
            note = notes.decode(record).value
        except msgspec.DecodeError:
            logger.error("the note %r for the audit trail is unreadable", record.name)
            continue
        who = Principal(note.user, "admin", origin=Origin(DATA_DIRECTORY))
        details = {**note.details, "done": time_text(note.time_us)}
        written = trail.changed(who, note.type, note.resource, details)
        if written is not None:
            written.on_done(_forgetting(metadata, notes, record.name))


def _forgetting(metadata: Metadata, notes: Space[Note], name: str) -> Callable[[object], None]:
    def forget(_: object) -> None:
        metadata.change([notes.delete(name)])

    return forget
