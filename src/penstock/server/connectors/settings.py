"""The tables of Fujin's routes, [fujin.routes.NAME], and of brokers outside, [fujin.routes.NAME.KIND].
Values only: no library is imported.

A password stands in the url, in a file, or in a variable of the environment. Files and variables are read
when a connection is opened, so a changed password needs no restart. Nothing that is shown or logged has
the one of a url: `masked`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from penstock.server.config.keys import file_content
from penstock.server.config.tables import MASK
from penstock.server.config.units import format_time_us, parse_time_us

# As much as the longest token that people use for one.
MAX_SECRET_BYTES: Final = 16 * 1024
# Up to the last @ before the path: a password may have one too, as `login_of` reads it.
_IN_URL: Final = re.compile(r"(?<=://)([^/@:\s]*):([^/\s]*)@")
_IN_QUERY: Final = re.compile(r"(?<=[?&])([^=&\s]*password[^=&\s]*)=[^&\s]*", re.IGNORECASE)
_SECRET_OPTION: Final = re.compile(r"password|secret|key\.pem|oauthbearer\.config", re.IGNORECASE)

Words = Annotated[str, msgspec.Meta(min_length=1)]
Times = Annotated[str | int | float, msgspec.Meta()]


class Outside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every kind has. `timeout`: how long the broker may take to answer. `ca_file`: a PEM file with
    the authority of the broker's certificate; without it, those of the system count."""

    kind: ClassVar[str] = ""
    # That of urls with TLS.
    tls_scheme: ClassVar[str] = ""
    timeout: Times = "10 s"
    password_file: Words | None = None
    password_env: Words | None = None
    ca_file: Words | None = None

    def __post_init__(self) -> None:
        if self.password_file is not None and self.password_env is not None:
            raise ValueError("password_file and password_env are both given")
        if self.ca_file is not None and self.tls_scheme and not self.has_tls:
            raise ValueError(f"ca_file is given, and url does not begin with {self.tls_scheme}://")
        self.timeout_us  # noqa: B018  # a time that cannot be read is refused with the table

    @property
    def has_tls(self) -> bool:
        """By its url."""
        return urlsplit(getattr(self, "url", "")).scheme == self.tls_scheme

    @property
    def timeout_us(self) -> int:
        return parse_time_us(self.timeout)

    @property
    def timeout_s(self) -> float:
        return self.timeout_us / 1_000_000

    @property
    def endpoint(self) -> str:
        """The broker: transactions stay within one."""
        return f"{self.kind} {getattr(self, 'url', '')}"

    def password(self, environment: Mapping[str, str]) -> str | None:
        """What the file or the variable holds. Raises ValueError: what is expected."""
        if self.password_env is not None:
            found = environment.get(self.password_env, "")
            if not found:
                raise ValueError(f"password_env: the variable {self.password_env} is not set")
            return found
        if self.password_file is not None:
            try:
                found = file_content(self.password_file, MAX_SECRET_BYTES)
            except ValueError as error:
                raise ValueError(f"password_file = {self.password_file}: {error}") from None
            if not found:
                raise ValueError(f"password_file = {self.password_file}: it is empty")
            return found
        return None

    def shown(self) -> dict[str, Any]:
        """As one would write it, without secrets and without what is not set."""
        defaults = {field.name: field.default for field in msgspec.structs.fields(type(self))}
        plain: dict[str, Any] = {}
        for name, value in msgspec.structs.asdict(self).items():
            if value == defaults[name] or value in (None, {}):
                continue
            if name == "timeout":
                plain[name] = format_time_us(self.timeout_us)
            elif isinstance(value, dict):
                plain[name] = {
                    option: MASK if _SECRET_OPTION.search(option) else text
                    for option, text in value.items()
                }
            elif isinstance(value, str):
                plain[name] = masked(value)
            else:
                plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown()!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self.shown().items())


class NatsRoute(Outside, frozen=True, kw_only=True):
    """`consumer`: its readers share the messages, and its position is kept; without one each reader gets
    everything from `start` on."""

    kind = "nats"
    tls_scheme = "tls"

    url: Words = "nats://127.0.0.1:4222"
    stream: Words
    subject: Words
    consumer: Words | None = None
    start: Literal["earliest", "latest"] = "earliest"
    ack_time: Times = "30 s"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_time_us(self.ack_time)


class RedisRoute(Outside, frozen=True, kw_only=True):
    kind = "redis"
    tls_scheme = "rediss"

    url: Words = "redis://127.0.0.1:6379"
    stream: Words
    # Of the entry: the field of the message.
    field: Words = "msg"
    group: Words | None = None
    consumer: Words = "penstock"
    start: Literal["earliest", "latest"] = "latest"
    ack_time: Times = "30 s"
    # Older entries are trimmed, about.
    max_length: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_time_us(self.ack_time)


class KafkaRoute(Outside, frozen=True, kw_only=True):
    """`options`: of librdkafka, as they stand in its documents."""

    kind = "kafka"

    brokers: Words
    topic: Words
    group: Words | None = None
    start: Literal["earliest", "latest"] = "earliest"
    username: Words | None = None
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"{self.kind} {self.brokers}"


class AmqpRoute(Outside, frozen=True, kw_only=True):
    """Messages go to `exchange` with `routing_key`, and come from `queue`. `declare`: the queue is made,
    durable, and bound to the exchange."""

    kind = "amqp"
    tls_scheme = "amqps"

    url: Words = "amqp://guest:guest@127.0.0.1:5672/"
    exchange: str = ""
    routing_key: str | None = None
    queue: Words | None = None
    declare: bool = True
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue is None and self.routing_key is None and not self.exchange:
            raise ValueError("queue, routing_key or exchange is missing")


class MqttRoute(Outside, frozen=True, kw_only=True):
    """`group`: readers share the messages ($share). `client_id`: one reader, whose messages the broker
    keeps while it is away."""

    kind = "mqtt"
    tls_scheme = "mqtts"

    url: Words = "mqtt://127.0.0.1:1883"
    topic: Words
    qos: Literal[0, 1] = 1
    retain: bool = False
    group: Words | None = None
    client_id: Words | None = None


OUTSIDE_KINDS: Final = ("kafka", "nats", "redis", "amqp", "mqtt")


class RouteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a name of Fujin leads: a topic of the log, or a broker outside."""

    topic: str | None = None
    group: str | None = None
    start: Literal["committed", "earliest", "latest"] = "committed"
    kafka: KafkaRoute | None = None
    nats: NatsRoute | None = None
    redis: RedisRoute | None = None
    amqp: AmqpRoute | None = None
    mqtt: MqttRoute | None = None

    def __post_init__(self) -> None:
        outside = [one for one in OUTSIDE_KINDS if getattr(self, one) is not None]
        if len(outside) + (self.topic is not None) != 1:
            kinds = ", ".join(OUTSIDE_KINDS)
            raise ValueError(f"exactly one is to be given of topic, {kinds}")
        if outside and (self.group is not None or self.start != "committed"):
            raise ValueError(f"group and start stand in the table {outside[0]}")

    @property
    def outside(self) -> Outside | None:
        found = (getattr(self, one) for one in OUTSIDE_KINDS)
        return next((one for one in found if one is not None), None)


def plain_routes(routes: Mapping[str, RouteConfig]) -> dict[str, dict[str, Any]]:
    return {name: _plain_route(route) for name, route in routes.items()}


def _plain_route(route: RouteConfig) -> dict[str, Any]:
    outside = route.outside
    if outside is not None:
        return {outside.kind: outside.shown()}
    fields = {"topic": route.topic, "group": route.group, "start": route.start}
    return {name: value for name, value in fields.items() if value is not None}


def masked(url: str) -> str:
    url = _IN_URL.sub(lambda found: f"{found[1]}:{MASK}@", url)
    return _IN_QUERY.sub(lambda found: f"{found[1]}={MASK}", url)


class Login(NamedTuple):
    """Of a url: where, and as whom. `address` has no login in it."""

    address: str
    user: str | None
    password: str | None


def login_of(url: str, password: str | None) -> Login:
    """Names and passwords in a url have %XX for signs that mean something there. `password`: the one of a
    file or variable, before that of the url."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    user, colon, own = login.partition(":")
    if password is None and colon:
        password = unquote(own)
    return Login(urlunsplit(parts._replace(netloc=host)), unquote(user) or None, password)
