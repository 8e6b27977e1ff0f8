"""Every configuration key: its type, default, limits and meaning, one declaration each.

`Config()` is the default configuration. Times are microseconds and their attributes end in `_us`
(the key `drain_time` is `drain_time_us`); None means "off". Reading files, environment and flags is
in config.py, rules between keys are in config_checks.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Final, Literal, TypeVar

from penstock.log import settings as topic
from penstock.server.config.kinds import (
    choice,
    count,
    directory,
    flag,
    listener,
    names,
    optional_path,
    size,
    size_or_off,
    time,
    time_or_off,
)
from penstock.server.config.units import format_bytes, format_time_us
from penstock.server.net.address import Address
from penstock.server.protocols import PROTOCOLS

Section = TypeVar("Section")

DEFAULT_DATA_DIRECTORY: Final = "./penstock-data"

# Flight takes a record batch in as a whole, almost twice.
MAX_FLIGHT_BATCH_BYTES: Final = "1 GiB"
# Topics keep their times in milliseconds.
MILLISECOND_US: Final = 1000
# More threads than this only wait for the same disk.
MAX_FLUSH_THREADS: Final = 64

Role = Literal["admin", "user", "writer", "reader"]
ROLES: Final[tuple[Role, ...]] = ("admin", "user", "writer", "reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    data_directory: str = directory(
        DEFAULT_DATA_DIRECTORY,
        "Where the log and its metadata live. Empty: $XDG_DATA_HOME/penstock when that is set, "
        "else ./penstock-data.",
    )
    drain_time_us: int = time("10 s", "How long open work may take to finish at a stop.")
    insecure: bool = flag(
        False, "Listen beyond this machine even without keys and TLS. Never do this by habit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = choice(
        "debug", "info", "warning", "error", default="info", meaning="What the server logs."
    )
    log_format: Literal["text", "json"] = choice(
        "text", "json", default="text",
        meaning="How the server logs: lines for people, or one JSON object a line.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenersConfig:
    tcp: Address | None = listener(
        "127.0.0.1:9092", "All TCP protocols, told apart by their first bytes, with or without TLS."
    )
    flight: Address | None = listener(
        "127.0.0.1:8815", "Arrow Flight: topics as tables. With a certificate it speaks TLS only."
    )
    http: Address | None = listener(
        "127.0.0.1:8080", "HTTP: /healthz, /readyz, /metrics, and the API under /api/v1."
    )

    def of(self, name: str) -> Address | None:
        """A listener by its name, also those that a protocol has for itself."""
        address: Address | None = getattr(self, name)
        return address


# With the listeners that each protocol has for itself.
AllListenersConfig: Final = make_dataclass(
    "AllListenersConfig",
    [
        (name, Address | None, listener(default, f"{row.title} alone."))
        for row in PROTOCOLS
        for name, default in row.listeners.items()
    ],
    bases=(ListenersConfig,),
    frozen=True,
    slots=True,
    kw_only=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    certificate: str | None = optional_path("", "PEM file with the certificate chain.")
    key: str | None = optional_path("", "PEM file with the private key of the certificate.")
    client_ca: str | None = optional_path(
        "", "PEM file; when set, clients must show a certificate signed by it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    connections: int = count(10_000, "Open connections, all listeners together.")
    connections_per_address: int = count(1_000, "Open connections from one address.")
    # One largest frame coming in (16 MiB and its header) while one of the same size waits to go
    # out, so a client that writes a large message before it reads one cannot get stuck; and 1 MiB
    # for the small frames around them. The smallest allowed value is in config_checks.py.
    buffered_bytes_per_connection: int = size(
        "33 MiB", "Bytes held for one connection, in and out; then the server stops reading."
    )
    buffered_bytes_total: int = size("1 GiB", "Bytes held for all connections together.")
    prelogin_frame_bytes: int = size(
        "64 KiB",
        "Largest frame before login, and of who may do nothing; its fixed header not counted.",
        least="256 B",
    )
    login_time_us: int = time("10 s", "A connection that has not logged in by then is closed.")
    failed_logins: int = count(10, "Wrong logins on one connection; then it is closed.")
    idle_time_us: int | None = time_or_off(
        "off", "A logged-in connection that sends nothing for this long is closed."
    )
    # Each is a directory with files, a record of the metadata and some memory: what a client makes in a
    # loop by mistake must not make the next start slow.
    topics: int = count(10_000, "Topics.")
    partitions: int = count(20_000, "Partitions of all topics together.")
    # Some memory and a record for each partition that a group has committed.
    groups: int = count(10_000, "Consumer groups with committed offsets.")
    # Some kilobytes each while it is empty; it outlives its connection for a while.
    subscriptions: int = count(50_000, "BlipMQ subscriptions.")
    # A job has one for each query and batch. What is forgotten stays open until its time is over.
    transactions_per_key: int = count(1_000, "Open transactions of one API key.")
    # On the disk until the commit, which writes it a second time.
    staged_bytes_per_key: int = size(
        "64 GiB", "Bytes that the open transactions of one API key have staged.", least="1 MiB"
    )
    # A read holds some 20 MiB while its peer is slow.
    flight_reads: int = count(128, "Flight streams that are read at the same time.")
    # A write holds a record batch, which Flight takes in as a whole, almost twice.
    flight_writes: int = count(128, "Flight streams that are written at the same time.")
    flight_batch_bytes: int = size(
        "256 MiB", "Largest record batch of a Flight stream that is written.",
        least="1 MiB", most=MAX_FLIGHT_BATCH_BYTES,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    hosts: tuple[str, ...] = names(
        "Names by which others call this server, such as that of a proxy in front of it. Requests for "
        'other names are refused; loopback names and its own address are always good, "*" allows all.'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    segment_bytes: int = size(
        format_bytes(topic.DEFAULT_SEGMENT_BYTES), "A segment file is sealed at this size.",
        least=format_bytes(topic.MIN_SEGMENT_BYTES), most=format_bytes(topic.MAX_NUMBER),
    )  # fmt: skip
    record_bytes: int = size(
        format_bytes(topic.DEFAULT_RECORD_BYTES), "Largest record: key, value and headers.",
        least="1 KiB", most=format_bytes(topic.MAX_RECORD_BYTES),
    )  # fmt: skip
    cache_bytes: int = size(
        "64 MiB", "Memory for recent batches, which serve readers at the tail.", least="0 B"
    )
    open_files: int = count(
        512, "Segment files held open; others are opened when needed.", least=16
    )
    flush_threads: int = count(4, "Threads that flush partitions to disk.", most=MAX_FLUSH_THREADS)
    scrub_period_us: int | None = time_or_off(
        "14 d",
        "In this time every sealed segment is read once, slowly, to find damage; off: never.",
        least="1 h",
    )
    transaction_memory_us: int | None = time_or_off(
        "30 d",
        "How long the name of a committed transaction is remembered, so that a repeated commit "
        "changes nothing; off: for ever.",
        least="1 h",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaultsConfig:
    partitions: int = count(1, "Partitions of a new topic.", most=topic.MAX_PARTITIONS)
    durability: Literal["ack", "interval", "none"] = choice(
        "ack", "interval", "none", default="ack",
        meaning="Acknowledge after the flush, flush at an interval, or leave it to the system.",
    )  # fmt: skip
    flush_interval_us: int = time(
        format_time_us(topic.DEFAULT_FLUSH_INTERVAL_MS * MILLISECOND_US),
        "With durability interval: what a power cut can lose at most.",
        most=format_time_us(topic.MAX_FLUSH_INTERVAL_MS * MILLISECOND_US),
    )
    retention_age_us: int | None = time_or_off(
        format_time_us(topic.DEFAULT_RETENTION_MS * MILLISECOND_US),
        "Records older than this are removed.",
        least="1 s",
        most=format_time_us(topic.MAX_NUMBER * MILLISECOND_US),
    )
    retention_bytes: int | None = size_or_off(
        "off",
        "A partition larger than this loses its oldest segments.",
        most=format_bytes(topic.MAX_NUMBER),
    )
    compression: Literal["none", "zstd"] = choice(
        "none", "zstd", default="none", meaning="Compression of batches on disk."
    )
    cleanup: Literal["delete", "compact"] = choice(
        "delete", "compact", default="delete",
        meaning="Remove by age and size, or keep the last record of every key.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """One [[keys]] table: an API key, given in exactly one of three ways."""

    name: str
    role: Role
    topics: tuple[str, ...]  # patterns such as "orders.*"
    secret: str | None = field(default=None, repr=False)  # from `key` or the content of `key_file`
    key_file: str | None = None
    hash: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    server: ServerConfig = ServerConfig()
    listeners: ListenersConfig = AllListenersConfig()
    tls: TlsConfig = TlsConfig()
    limits: LimitsConfig = LimitsConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    topic_defaults: TopicDefaultsConfig = TopicDefaultsConfig()
    # The sections of the protocols, by their names.
    protocols: Mapping[str, object] = field(
        default_factory=lambda: {row.name: row.section() for row in PROTOCOLS}
    )
    keys: tuple[KeyConfig, ...] = ()

    def section(self, name: str) -> object:
        return self.protocols[name] if name in self.protocols else getattr(self, name)

    def of(self, section: type[Section]) -> Section:
        """The section of a protocol."""
        return next(one for one in self.protocols.values() if isinstance(one, section))


# The sections in the order of the written file, with their structs and the words above them.
SECTIONS: Final[dict[str, tuple[type[Any], str]]] = {
    "server": (ServerConfig, "The process."),
    "listeners": (
        AllListenersConfig,
        'Where to listen: "host:port", IPv6 in brackets, port 0 for any free one, "off" for none.',
    ),
    "tls": (TlsConfig, "Certificate and key together switch TLS on, on the same ports."),
    "limits": (LimitsConfig, "At a limit the server stops reading, refuses or closes, and counts."),
    "http": (HttpConfig, "The HTTP listener."),
    "log": (LogConfig, "The durable log."),
    "topic_defaults": (TopicDefaultsConfig, "Settings of topics that do not set them."),
    **{row.name: (row.section, f"The {row.title} protocol.") for row in PROTOCOLS},
}

# A profile changes defaults of its own section; values that are set anywhere win over it.
# (section, key of the profile) -> profile -> key -> value as written.
PROFILES: Final[dict[tuple[str, str], dict[str, dict[str, object]]]] = {
    (row.name, "profile"): row.profiles for row in PROTOCOLS if row.profiles
}
