"""The table of protocols: one row each, and no other module lists them.

A row is cheap to import: the session is imported with the first connection of the protocol, and the
functions of the command line are named, not imported. CONTRIBUTING.md says how to add a protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec

from penstock.server.config.kinds import (
    MILLISECOND_US,
    Count,
    Flag,
    Names,
    Path,
    Section,
    Size,
    Text,
    Time,
    TopicRequest,
    Topics,
    count,
    table,
    time,
)
from penstock.server.connectors.settings import Outside, RouteConfig, plain_routes
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.felix import frames as felix
from penstock.wire.flymq import frames as flymq
from penstock.wire.fujin import sizes as fujin
from penstock.wire.primitives import frame_size
from penstock.wire.rustlog import frames as rustlog

if TYPE_CHECKING:
    from penstock.broker.access.access import Principal
    from penstock.broker.outside import OutsideRoute
    from penstock.broker.port import Port
    from penstock.sessions.stream import FrameSize, Session, SessionLimits, Stream
    from penstock.sessions.streams import ConnectionSession, QuicConnection


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session is opened with. `principal`: that of a peer that does not log in. `section` is
    the protocol's own part of the configuration."""

    limits: "SessionLimits"
    frame_size: "FrameSize"
    principal: "Principal"
    section: Any
    # The address that peers are told to connect to; empty: the one that they have connected to.
    advertise: str = ""
    # Whether the principal is that of the peer's own certificate: it counts as logged in.
    certified: bool = False
    # Routes to brokers outside, by their names.
    outside: "Mapping[str, OutsideRoute]" = field(default_factory=dict)


class ProtocolSection(Section, frozen=True):
    """The section of a protocol in the configuration, and what the rest of the server derives from it."""

    # Of a key `profile`, where there is one: profile -> key -> value as written.
    profiles: ClassVar[dict[str, dict[str, object]]] = {}
    # Keys whose size must hold the largest record of the log.
    hold_a_record: ClassVar[tuple[str, ...]] = ()

    def acts_as(self) -> str | None:
        """The name of the key whose rights peers without a login have. None: they may do nothing."""
        return None

    def makes_topics(self) -> bool:
        """True if a publish makes the topic."""
        return True

    def first_topics(self) -> tuple[TopicRequest, ...]:
        """Topics to make at the start."""
        return ()

    def broker_options(self) -> dict[str, Any]:
        """What it sets of penstock.broker.options.BrokerOptions."""
        return {}

    def flaws(self) -> Iterator[tuple[str, str]]:
        """Keys whose values the types allow and the protocol does not, and why."""
        yield from ()

    def outside(self) -> dict[str, Outside]:
        """Brokers outside that its names lead to."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRow:
    """What every protocol has. `name` is also that of its section, of its counters and of `--protocol`
    of the command line. `publisher` and `subscriber` are functions of the command line."""

    name: str
    title: str
    frame_size: "FrameSize"
    # Listeners that speak this protocol alone, with their default addresses; None is off.
    listeners: Mapping[str, str | None]
    section: type[ProtocolSection]
    publisher: str = ""
    subscriber: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpRow(ProtocolRow):
    """A protocol on TCP. `begins` looks at the first bytes of a connection: True, False, or None while
    there are too few. The rows are asked in their order."""

    begins: Callable[[bytes], bool | None]
    session: "Callable[[Port, Stream, Terms], Session]"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicRow(ProtocolRow):
    """A protocol on QUIC. A client chooses it by offering `application` with ALPN; names that only
    begin with it are refused. The one row without such a name gets everybody else."""

    application: str | None
    connection: "Callable[[Port, QuicConnection, Terms], ConnectionSession]"


# --- BlipMQ ---------------------------------------------------------------------------------------


class BlipmqConfig(ProtocolSection, frozen=True):
    profiles = {  # noqa: RUF012  # declared in the base
        "default": {},
        "reference": {"capacity_messages": 1_024, "drops": "silent"},
    }
    hold_a_record = ("capacity_bytes",)

    profile: Annotated[
        Literal["default", "reference"],
        "Defaults of this section; reference has the constants of the reference server.",
    ] = "default"
    message_ttl_us: Annotated[
        Annotated[int, time(zero_is_off=True)] | None,
        "A message not delivered by then is dropped; 0 or off: never.",
    ] = 60_000 * MILLISECOND_US
    capacity_messages: Annotated[Count, "Messages a subscription holds; then the oldest go."] = (
        65_536
    )
    capacity_bytes: Annotated[Size, "Bytes a subscription holds; then the oldest go."] = (
        64 * 1024 * 1024
    )
    drops: Annotated[
        Literal["counted", "silent"],
        "Whether messages that go for lack of capacity are counted and logged.",
    ] = "counted"
    max_deliveries: Annotated[
        Count, "Deliveries of a QoS 1 message without ACK; then it goes to <topic>.dlq."
    ] = 3
    retry_backoff_us: Annotated[
        Time, "Wait before the second delivery; doubled for each one after it."
    ] = 100 * MILLISECOND_US
    orphan_time_us: Annotated[
        Time, "A subscription ends this long after its last connection is gone."
    ] = 60_000 * MILLISECOND_US
    replay: Annotated[
        Literal["first-subscriber", "none"],
        "Who gets the unacknowledged backlog of a topic after a restart.",
    ] = "first-subscriber"
    subscription_owner: Annotated[
        Literal["any", "key"],
        "Who may POLL and ACK: any key that may read the topic, or the one that subscribed.",
    ] = "any"

    def broker_options(self) -> dict[str, Any]:
        return {
            "message_ttl_us": self.message_ttl_us,
            "capacity_messages": self.capacity_messages,
            "capacity_bytes": self.capacity_bytes,
            "max_deliveries": self.max_deliveries,
            "retry_backoff_us": self.retry_backoff_us,
            "orphan_time_us": self.orphan_time_us,
            "replay_backlog": self.replay == "first-subscriber",
            "owned_subscriptions": self.subscription_owner == "key",
            "count_drops": self.drops == "counted",
        }


def _open_blipmq(port: "Port", stream: "Stream", terms: Terms) -> "Session":
    from penstock.sessions.blipmq.session import BlipMQSession

    known = terms.principal if terms.certified else None
    return BlipMQSession(port, stream, terms.limits, terms.frame_size, known)


# --- RustLog --------------------------------------------------------------------------------------


class RustlogConfig(ProtocolSection, frozen=True):
    auto_create: Annotated[Flag, "Create a topic at its first Produce."] = False
    topics: Annotated[Topics, 'Topics to create at start, each "name" or "name:partitions".'] = ()
    principal: Annotated[Text, "RustLog has no login; its connections act as this user."] = (
        "anonymous"
    )

    def acts_as(self) -> str | None:
        return self.principal

    def makes_topics(self) -> bool:
        return self.auto_create

    def first_topics(self) -> tuple[TopicRequest, ...]:
        return self.topics


def _open_rustlog(port: "Port", stream: "Stream", terms: Terms) -> "Session":
    from penstock.sessions.rustlog.session import RustLogSession

    return RustLogSession(
        port,
        stream,
        terms.limits,
        terms.frame_size,
        terms.principal,
        auto_create=terms.section.auto_create,
    )


# --- FlyMQ ----------------------------------------------------------------------------------------


class FlymqConfig(ProtocolSection, frozen=True):
    dialect: Annotated[
        Literal["auto", "spec", "sdk"],
        "Layout of some answers: as the document has it, as the SDKs read it, or auto: as the document "
        "until a request shows an SDK. A login shows nothing, so SDKs that log in need sdk.",
    ] = "auto"
    principal: Annotated[Text, "Connections act as this user until they log in."] = "anonymous"
    transaction_time_us: Annotated[
        Time, "A transaction that is not used for this long is rolled back."
    ] = 60_000 * MILLISECOND_US

    def acts_as(self) -> str | None:
        return self.principal

    def broker_options(self) -> dict[str, Any]:
        return {"transaction_time_us": self.transaction_time_us}


def _open_flymq(port: "Port", stream: "Stream", terms: Terms) -> "Session":
    from penstock.sessions.flymq.session import FlyMQSession

    return FlyMQSession(
        port,
        stream,
        terms.limits,
        terms.frame_size,
        terms.principal,
        dialect=terms.section.dialect,
        advertise=terms.advertise,
        certified=terms.certified,
    )


# --- Felix ----------------------------------------------------------------------------------------

SlowSubscribers = Literal["block", "drop_oldest", "drop_newest", "disconnect"]


class FelixConfig(ProtocolSection, frozen=True):
    dialect: Annotated[
        Literal["auto", "doc", "native"],
        "Shape of replies: as in the document, as Rust clients read them, or as each request shows.",
    ] = "auto"
    principal: Annotated[Text, "Streams act as this user until they log in."] = "anonymous"
    auto_create: Annotated[
        Flag, "A stream is made by its first publish or subscription, a cache by its first request."
    ] = False
    tenants: Annotated[Names, "Tenants that exist, also without a stream."] = ()
    namespaces: Annotated[Names, 'Namespaces that exist, each "tenant/namespace".'] = ()
    streams: Annotated[
        Topics, 'Streams to create at start, each "tenant/namespace/stream": the name of its topic.'
    ] = ()
    caches: Annotated[Names, 'Caches that exist, each "tenant/namespace/cache".'] = ()
    cache_bytes: Annotated[
        Size, "Memory of the cache; then what was not used for longest goes."
    ] = 64 * 1024 * 1024
    cache_topic: Annotated[
        Path | None, "A topic that keeps the cache over restarts; empty: memory alone."
    ] = None
    slow_subscribers: Annotated[
        SlowSubscribers,
        "What a subscriber gets that falls behind: everything, later; no more than the newest or the "
        "oldest events of its queue; or the end of its subscription.",
    ] = "block"
    slow_subscribers_of: Annotated[
        Annotated[
            dict[str, SlowSubscribers],
            table('a table of streams, such as { "t/n/s" = "drop_oldest" }'),
        ],
        "The same for single streams.",
    ] = msgspec.field(default_factory=dict)
    queue_events: Annotated[
        Count, "Events that a subscriber may be behind before some are dropped."
    ] = 1_024
    event_encoding: Annotated[
        Literal["json", "binary", "auto"],
        "Frames of events; auto: binary for clients that show that they can read it.",
    ] = "json"
    event_batch_max_events: Annotated[Count, "Events of one frame."] = 64
    event_batch_max_bytes: Annotated[
        Size, "Bytes of the events of one frame; a larger one goes alone."
    ] = 262_144
    event_batch_max_delay_us: Annotated[
        Annotated[int, time(least=0)], "How long an event waits for others to share its frame."
    ] = 250
    fanout_batch_size: Annotated[Count, "With 1, each event has a frame of its own."] = 64
    event_single_binary_enabled: Annotated[
        Flag, "Such frames are binary for clients that can read it, from a size on."
    ] = False
    event_single_binary_min_bytes: Annotated[Size, "That size."] = 512
    max_frame_bytes: Annotated[Size, "Largest payload of a frame of a client."] = 16 * 1024 * 1024
    max_subscriptions: Annotated[Count, "Subscriptions of one connection."] = 1_024

    def acts_as(self) -> str | None:
        return self.principal

    def makes_topics(self) -> bool:
        return self.auto_create

    def first_topics(self) -> tuple[TopicRequest, ...]:
        return self.streams

    def broker_options(self) -> dict[str, Any]:
        return {
            "cache_bytes": self.cache_bytes,
            "cache_topic": self.cache_topic or "",
            "tenants": (*self.tenants, *self.namespaces, *self.caches),
        }

    def flaws(self) -> Iterator[tuple[str, str]]:
        # Not with the rows, which every command reads: they need the broker's errors, and these the log.
        from penstock.broker.errors import BrokerError
        from penstock.broker.tenants.names import Kind
        from penstock.broker.tenants.names import check as check_name

        given = {
            "tenants": (Kind.TENANT, self.tenants),
            "namespaces": (Kind.NAMESPACE, self.namespaces),
            "streams": (Kind.STREAM, [one.name for one in self.streams]),
            "caches": (Kind.CACHE, self.caches),
            "slow_subscribers_of": (Kind.STREAM, self.slow_subscribers_of),
        }
        for key, (kind, names) in given.items():
            for name in names:
                try:
                    check_name(name, kind)
                except BrokerError as error:
                    yield key, str(error)


def _open_felix(port: "Port", connection: "QuicConnection", terms: Terms) -> "ConnectionSession":
    from penstock.sessions.felix.connection import FelixConnection
    from penstock.sessions.felix.options import FelixOptions

    chosen = terms.section
    options = FelixOptions(
        max_frame_bytes=chosen.max_frame_bytes,
        dialect=chosen.dialect,
        auto_create=chosen.auto_create,
        policies=chosen.slow_subscribers_of,
        policy=chosen.slow_subscribers,
        queue_events=chosen.queue_events,
        event_encoding=chosen.event_encoding,
        batch_events=chosen.event_batch_max_events,
        batch_bytes=chosen.event_batch_max_bytes,
        batch_delay_us=chosen.event_batch_max_delay_us,
        fanout_batch_size=chosen.fanout_batch_size,
        single_binary=chosen.event_single_binary_enabled,
        single_binary_min_bytes=chosen.event_single_binary_min_bytes,
        max_subscriptions=chosen.max_subscriptions,
    )
    return FelixConnection(port, connection, terms.limits, terms.principal, options)


# --- Fujin ----------------------------------------------------------------------------------------


class FujinConfig(ProtocolSection, frozen=True):
    principal: Annotated[Text, "Fujin has no login; its connections act as this user."] = (
        "anonymous"
    )
    routes: Annotated[
        Annotated[
            dict[str, RouteConfig],
            table(
                'a table of routes, each [fujin.routes.name] with topic = "...", and group and start '
                '("committed", "earliest", "latest") where wanted, or [fujin.routes.name.kafka], '
                ".nats, .redis, .amqp or .mqtt with the settings of a broker outside",
                plain_routes,
            ),
        ],
        "Names of writers and readers: their topic, and the group whose readers share it, or the broker "
        "outside that they lead to (docs/connectors.md). Without a "
        "route a name is that of a topic, and each reader gets everything from the end of the log.",
    ] = msgspec.field(default_factory=dict)
    only_routes: Annotated[Flag, "Names without a route are unknown."] = False
    auto_create: Annotated[Flag, "Create a topic at its first writer or reader."] = False
    write_headers: Annotated[
        Literal["auto", "on", "off"],
        "Whether WRITE has headers: as its bytes show, always, never. Clients that send none need off "
        "for messages of a multiple of 65536 bytes.",
    ] = "auto"
    max_message_bytes: Annotated[Size, "Largest message of a WRITE."] = 16 * 1024 * 1024
    outcomes: Annotated[
        Literal["client", "document"],
        "The outcome of ACK and NACK: 0 is done, as clients read it, or 1 is, as in the document.",
    ] = "client"
    fetch_max_wait_us: Annotated[
        Annotated[int, time()] | None, "How long a FETCH waits for a message; off: without end."
    ] = 1_000 * MILLISECOND_US
    ping_interval_us: Annotated[Time, "Time between two pings."] = 2_000 * MILLISECOND_US
    ping_timeout_us: Annotated[
        Time, "A client that does not answer for this long is disconnected."
    ] = 5_000 * MILLISECOND_US
    ping_retries: Annotated[Annotated[int, count(least=0)], "Pings that may fail before that."] = 0
    stop_grace_us: Annotated[
        Time, "When the server stops, clients have this long to disconnect."
    ] = 15_000 * MILLISECOND_US
    max_deliveries: Annotated[
        Count, "Deliveries of a message that is refused each time; then it goes to <topic>.dlq."
    ] = 5
    retry_backoff_us: Annotated[
        Time, "Wait before the second delivery; doubled for each one after it."
    ] = 100 * MILLISECOND_US
    ack_time_us: Annotated[
        Annotated[int, time()] | None,
        "A message that is neither acknowledged nor refused by then is delivered again; off: never.",
    ] = 30_000 * MILLISECOND_US
    max_in_flight: Annotated[
        Count, "Messages that a reader may have without acknowledging them."
    ] = 10_000

    def acts_as(self) -> str | None:
        return self.principal

    def makes_topics(self) -> bool:
        return self.auto_create

    def outside(self) -> dict[str, Outside]:
        found = {name: route.outside for name, route in self.routes.items()}
        return {name: one for name, one in found.items() if one is not None}


def _open_fujin(port: "Port", connection: "QuicConnection", terms: Terms) -> "ConnectionSession":
    from penstock.sessions.fujin.connection import FujinConnection
    from penstock.sessions.fujin.options import FujinOptions, Route
    from penstock.wire.fujin.writing import RULES

    chosen = terms.section
    options = FujinOptions(
        routes={
            name: Route(one.topic, one.group, one.start)
            for name, one in chosen.routes.items()
            if one.topic is not None
        },
        outside=terms.outside,
        only_routes=chosen.only_routes,
        auto_create=chosen.auto_create,
        write_headers=RULES[chosen.write_headers],
        max_message_bytes=chosen.max_message_bytes,
        literal_outcomes=chosen.outcomes == "document",
        fetch_max_wait_us=chosen.fetch_max_wait_us,
        ping_interval_us=chosen.ping_interval_us,
        ping_timeout_us=chosen.ping_timeout_us,
        ping_retries=chosen.ping_retries,
        stop_grace_us=chosen.stop_grace_us,
        max_deliveries=chosen.max_deliveries,
        retry_backoff_us=chosen.retry_backoff_us,
        ack_time_us=chosen.ack_time_us,
        max_in_flight=chosen.max_in_flight,
    )
    return FujinConnection(port, connection, terms.limits, terms.principal, options)


# --- the table ------------------------------------------------------------------------------------

PROTOCOLS: Final[tuple[ProtocolRow, ...]] = (
    # Before RustLog: a HELLO of BlipMQ could also be the beginning of a Produce without a topic.
    TcpRow(
        name="blipmq",
        title="BlipMQ",
        begins=blipmq.begins,
        frame_size=frame_size,
        session=_open_blipmq,
        listeners={"blipmq": "127.0.0.1:5555"},
        section=BlipmqConfig,
        publisher="penstock.cli.outbox:open_blipmq",
        subscriber="penstock.cli.sub:follow_blipmq",
    ),
    TcpRow(
        name="rustlog",
        title="RustLog",
        begins=rustlog.begins,
        frame_size=frame_size,
        session=_open_rustlog,
        listeners={"rustlog": None},
        section=RustlogConfig,
        publisher="penstock.cli.outbox:open_rustlog",
        subscriber="penstock.cli.sub:follow_rustlog",
    ),
    TcpRow(
        name="flymq",
        title="FlyMQ",
        begins=flymq.begins,
        frame_size=flymq.frame_size,
        session=_open_flymq,
        listeners={"flymq": None},
        section=FlymqConfig,
        publisher="penstock.cli.flymq:open_outbox",
        subscriber="penstock.cli.flymq:follow",
    ),
    QuicRow(
        name="felix",
        title="Felix",
        frame_size=felix.frame_size,
        application=None,
        connection=_open_felix,
        listeners={"felix": "127.0.0.1:5000"},
        section=FelixConfig,
        publisher="penstock.cli.quic:open_felix",
        subscriber="penstock.cli.quic:follow_felix",
    ),
    QuicRow(
        name="fujin",
        title="Fujin",
        frame_size=fujin.size_auto,
        application="fujin",
        connection=_open_fujin,
        listeners={"fujin": None},
        section=FujinConfig,
        publisher="penstock.cli.quic:open_fujin",
        subscriber="penstock.cli.quic:follow_fujin",
    ),
)


def tcp_rows() -> list[TcpRow]:
    return [row for row in PROTOCOLS if isinstance(row, TcpRow)]


def quic_rows() -> list[QuicRow]:
    return [row for row in PROTOCOLS if isinstance(row, QuicRow)]


def row_of(name: str) -> ProtocolRow:
    return next(row for row in PROTOCOLS if row.name == name)
