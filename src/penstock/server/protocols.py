"""Every protocol that this server speaks: one row each, and nothing else lists them.

A row is light: the session is imported when the first connection speaks the protocol, and what the command
line needs is named, not imported. How to add one stands in CONTRIBUTING.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.server.config.kinds import (
    TopicRequest,
    choice,
    count,
    flag,
    size,
    text,
    time,
    time_or_off,
    topics,
)
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.primitives import frame_size
from penstock.wire.rustlog import frames as rustlog

if TYPE_CHECKING:
    from penstock.broker.access.access import Principal
    from penstock.broker.port import Port
    from penstock.sessions.stream import FrameSize, Session, SessionLimits, Stream


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session is opened with. `principal`: whom a peer acts as that does not log in. `section` is
    the protocol's own part of the configuration."""

    limits: "SessionLimits"
    frame_size: "FrameSize"
    principal: "Principal"
    section: Any


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """`name` is also that of its section, of its counters and of `--protocol` of the command line.

    `begins` looks at the first bytes of a connection: True, False, or None while there are too few. The
    rows are asked in their order. `principal` names the key that peers act as who do not log in; where it
    is None they may do nothing. `publisher` and `subscriber` are functions of the command line.
    """

    name: str
    title: str
    begins: Callable[[bytes], bool | None]
    frame_size: "FrameSize"
    session: "Callable[[Port, Stream, Terms], Session]"
    # Listeners that speak this protocol alone, with their default addresses.
    listeners: Mapping[str, str]
    section: type[Any]
    principal: Callable[[Any], str] | None = None
    # Whether a publish makes the topic, by the protocol's section.
    makes_topics: Callable[[Any], bool] = lambda section: True
    # Of the section: profile -> key -> value as written.
    profiles: dict[str, dict[str, object]] = field(default_factory=dict)
    publisher: str = ""
    subscriber: str = ""


# --- BlipMQ ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlipmqConfig:
    profile: Literal["default", "reference"] = choice(
        "default", "reference", default="default",
        meaning="Defaults of this section; reference has the constants of the reference server.",
    )  # fmt: skip
    message_ttl_us: int | None = time_or_off(
        "60 s", "A message not delivered by then is dropped; 0 or off: never.", zero_is_off=True
    )
    capacity_messages: int = count(65_536, "Messages a subscription holds; then the oldest go.")
    capacity_bytes: int = size("64 MiB", "Bytes a subscription holds; then the oldest go.")
    drops: Literal["counted", "silent"] = choice(
        "counted", "silent", default="counted",
        meaning="Whether messages that go for lack of capacity are counted and logged.",
    )  # fmt: skip
    max_deliveries: int = count(
        3, "Deliveries of a QoS 1 message without ACK; then it goes to <topic>.dlq."
    )
    retry_backoff_us: int = time(
        "100 ms", "Wait before the second delivery; doubled for each one after it."
    )
    orphan_time_us: int = time(
        "60 s", "A subscription ends this long after its last connection is gone."
    )
    replay: Literal["first-subscriber", "none"] = choice(
        "first-subscriber", "none", default="first-subscriber",
        meaning="Who gets the unacknowledged backlog of a topic after a restart.",
    )  # fmt: skip
    subscription_owner: Literal["any", "key"] = choice(
        "any", "key", default="any",
        meaning="Who may POLL and ACK: any key that may read the topic, or the one that subscribed.",
    )  # fmt: skip


def _open_blipmq(port: "Port", stream: "Stream", terms: Terms) -> "Session":
    from penstock.sessions.blipmq.session import BlipMQSession

    return BlipMQSession(port, stream, terms.limits, terms.frame_size)


# --- RustLog --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RustlogConfig:
    auto_create: bool = flag(False, "Create a topic at its first Produce.")
    topics: tuple[TopicRequest, ...] = topics(
        'Topics to create at start, each "name" or "name:partitions".'
    )
    principal: str = text("anonymous", "RustLog has no login; its connections act as this user.")


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


# --- the table ------------------------------------------------------------------------------------

PROTOCOLS: Final[tuple[ProtocolRow, ...]] = (
    # Before RustLog: a HELLO of BlipMQ could also be the beginning of a Produce without a topic.
    ProtocolRow(
        name="blipmq",
        title="BlipMQ",
        begins=blipmq.begins,
        frame_size=frame_size,
        session=_open_blipmq,
        listeners={"blipmq": "127.0.0.1:5555"},
        section=BlipmqConfig,
        profiles={
            "default": {},
            "reference": {"capacity_messages": 1_024, "drops": "silent"},
        },
        publisher="penstock.cli.outbox:open_blipmq",
        subscriber="penstock.cli.sub:follow_blipmq",
    ),
    ProtocolRow(
        name="rustlog",
        title="RustLog",
        begins=rustlog.begins,
        frame_size=frame_size,
        session=_open_rustlog,
        listeners={"rustlog": "off"},
        section=RustlogConfig,
        principal=lambda section: str(section.principal),
        makes_topics=lambda section: bool(section.auto_create),
        publisher="penstock.cli.outbox:open_rustlog",
        subscriber="penstock.cli.sub:follow_rustlog",
    ),
)


def row_of(name: str) -> ProtocolRow:
    return next(row for row in PROTOCOLS if row.name == name)
