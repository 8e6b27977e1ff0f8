"""Plain counters that the broker and the sessions count into; metrics reads them at a scrape."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ProtocolCounters:
    """What one protocol did since start. `errors` and `refused` by kind."""

    connections: int = 0
    frames_in: int = 0
    frames_out: int = 0
    messages_in: int = 0
    messages_out: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class SubscriptionCounters:
    """What happened to messages on their way to subscribers."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    dropped_capacity: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dead_letters_refused: int = 0
    unreadable: int = 0
    orphans_expired: int = 0
