"""Routes that lead to another broker, as sessions see them. Interfaces and values: no library, no I/O.

A name of Fujin is a topic of the log, or a route to a broker outside. penstock.server.connectors has the
routes. Everything is called on the event loop and calls back there; what fails completes its Pending with
a BrokerError, in bounded time. Messages are lists, not objects: one call for a whole run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.log.batch.view import Headers
from penstock.log.engine import Pending

# Of a run: what refused a message, by its number. Those that are not there were accepted.
Failures: TypeAlias = dict[int, str]

# Of ACK and NACK: no message of this id is waiting for them. In the words of Fujin, the only protocol here.
UNKNOWN_ID = "msg not found"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the broker behind a route can do beside writing and pushing messages."""

    fetch: bool = False
    ack: bool = False
    nack: bool = False
    transactions: bool = False


@dataclass(slots=True)
class RouteCounters:
    """What one route did since start. `up`: None until it was used."""

    written: int = 0
    read: int = 0
    settled: int = 0
    failed: int = 0
    outages: int = 0
    readers: int = 0
    pending_bytes: int = 0
    up: bool | None = None


@dataclass(slots=True)
class Messages:
    """What a reader got: ids, opaque and not empty, and values, in the order of the broker."""

    ids: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, id: bytes, value: bytes) -> None:
        self.ids.append(id)
        self.values.append(value)


@dataclass(frozen=True, slots=True)
class ReaderTerms:
    """`pull`: messages are fetched, else pushed. `max_in_flight`: messages without ACK, at most."""

    pull: bool
    max_in_flight: int


class OutsideReader(Protocol):
    """A subscription of one session. One `take` at a time; `settle` may overtake it."""

    @property
    def opened(self) -> Pending[None]: ...
    @property
    def in_flight(self) -> int:
        """Messages that were given and not settled."""
        ...

    def take(self, most: int, max_bytes: int, wait_s: float) -> Pending[Messages]:
        """At least one message, at most so many; none when there were none for so long."""
        ...

    def settle(self, ids: list[bytes], *, good: bool) -> Pending[Failures]:
        """ACK, or NACK."""
        ...

    def close(self) -> None: ...


class OutsideTransaction(Protocol):
    """Begun at the broker with its first write. A write that failed makes the commit fail."""

    @property
    def endpoint(self) -> str: ...
    def write(
        self,
        route: "OutsideRoute",
        values: list[bytes],
        headers: list[Headers] | None,
        size: int,
    ) -> Pending[Failures]: ...
    def commit(self) -> Pending[None]:
        """After a failure it may be tried again, or rolled back."""
        ...

    def roll_back(self) -> Pending[None]:
        """Whatever comes of it, the transaction is over."""
        ...


class OutsideRoute(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def endpoint(self) -> str:
        """The broker behind it: a transaction stays within one."""
        ...

    @property
    def abilities(self) -> Abilities: ...
    @property
    def counters(self) -> RouteCounters: ...
    def has_room(self) -> bool:
        """Whether it takes a write: too many bytes may wait for the broker already."""
        ...

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back, once, when there is room again."""
        ...

    def write(
        self, values: list[bytes], headers: list[Headers] | None, size: int
    ) -> Pending[Failures]:
        """Completes when the broker has accepted them. `size`: what they count for in the budget."""
        ...

    def begin(self, writer_id: str) -> OutsideTransaction: ...
    def subscribe(self, terms: ReaderTerms) -> OutsideReader:
        """Raises BrokerError where there are too many readers."""
        ...
