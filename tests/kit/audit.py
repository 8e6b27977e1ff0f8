"""The audit trail of a live server: everything that happened before the question."""

from kit.live_server import LiveServer
from penstock.broker.access.principal import Principal
from penstock.broker.audit.events import CONFIG_RELOADED, Event
from penstock.broker.audit.query import MAX_LIMIT, Filter
from penstock.log.engine import Pending

_MARKER = Principal("test-marker", "admin")


def trail(live: LiveServer, wanted: Filter | None = None) -> list[Event]:
    """Oldest first. An event of our own goes last: when it is durable, so are those before it."""
    broker = live.server.broker

    def mark() -> Pending[None]:
        written = broker.audit.changed(_MARKER, CONFIG_RELOADED, "")
        assert written is not None, "the audit trail is off"
        return written

    live.settle(mark)
    found = broker.audit_reader.query(wanted or Filter(), MAX_LIMIT)
    return [event for event in reversed(found.events) if event.user != _MARKER.name]


def brief(event: Event) -> tuple[str, str, str, str]:
    """Type, user, resource, result."""
    return event.type, event.user, event.resource, event.result
