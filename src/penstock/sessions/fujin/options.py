"""What can be chosen about Fujin: routes, times, limits. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.broker.delivery.lane import SECOND_US, CursorTerms, Start
from penstock.broker.outside import OutsideRoute
from penstock.wire.fujin.writing import AUTO, MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Route:
    """Where a name of Fujin leads. `group`: None for readers that each get everything from the end of the
    log."""

    topic: str
    group: str | None = None
    start: Start = "committed"


@dataclass(frozen=True, slots=True)
class FujinOptions:
    routes: Mapping[str, Route] = field(default_factory=dict)
    # Names that lead to brokers outside.
    outside: Mapping[str, OutsideRoute] = field(default_factory=dict)
    # Names without a route are unknown; else such a name is that of a topic.
    only_routes: bool = False
    # A writer makes a topic that is not there.
    auto_create: bool = False
    write_headers: int = AUTO
    max_message_bytes: int = MAX_MESSAGE_BYTES
    # Outcomes of ACK and NACK as the document's table has them: 1 is success.
    literal_outcomes: bool = False
    # None: a FETCH waits for a message as long as it takes.
    fetch_max_wait_us: int | None = SECOND_US
    # Messages wait this long after the reply to CONNECT READER: a client that reads once would drop them.
    first_message_delay_us: int = 5_000
    ping_interval_us: int = 2 * SECOND_US
    ping_timeout_us: int = 5 * SECOND_US
    ping_retries: int = 0
    # After STOP a client has this long to disconnect.
    stop_grace_us: int = 15 * SECOND_US
    # Of readers without auto commit.
    max_deliveries: int = 5
    retry_backoff_us: int = 100_000
    ack_time_us: int | None = 30 * SECOND_US
    max_in_flight: int = 10_000

    def route(self, name: str) -> Route | None:
        found = self.routes.get(name)
        if found is None and not self.only_routes:
            return Route(name)
        return found

    def terms(self, route: Route) -> CursorTerms:
        return CursorTerms(
            group=route.group,
            start=route.start if route.group is not None else "latest",
            max_deliveries=self.max_deliveries,
            retry_backoff_us=self.retry_backoff_us,
            ack_time_us=self.ack_time_us,
            max_in_flight=self.max_in_flight,
        )
