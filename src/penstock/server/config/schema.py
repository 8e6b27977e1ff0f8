"""Every configuration key: its type, default, limits and meaning, one declaration each.

`Config()` is the default configuration. Times are microseconds and their attributes end in `_us`
(the key `drain_time` is `drain_time_us`); None means "off". Reading files, environment and flags is
in loading.py, rules between keys are in checks.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from penstock.log import settings as topic
from penstock.server.config.keys import KeyConfig
from penstock.server.config.kinds import (
    MAX_KEY_ID,
    MILLISECOND_US,
    Count,
    Flag,
    Key,
    KeySources,
    Listener,
    Names,
    Path,
    Section,
    Size,
    Time,
    count,
    keys_of,
    size,
    table,
    texts,
    time,
)
from penstock.server.config.tables import MASK
from penstock.server.config.users import UserConfig
from penstock.server.net.address import Address, parse_address
from penstock.server.protocols import PROTOCOLS, ProtocolRow, ProtocolSection, QuicRow, quic_rows

Protocol = TypeVar("Protocol", bound=ProtocolSection)

DEFAULT_DATA_DIRECTORY: Final = "./penstock-data"

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_US: Final = 1000 * MILLISECOND_US
HOUR_US: Final = 3600 * SECOND_US
DAY_US: Final = 24 * HOUR_US

# Flight takes a record batch in as a whole, almost twice.
MAX_FLIGHT_BATCH_BYTES: Final = GIB
# More threads than this only wait for the same disk.
MAX_FLUSH_THREADS: Final = 64


# Parts of names of librdkafka's options whose values are not shown.
_SECRET_PARTS: Final = ("password", "secret", "key.pem", "jaas", "token")


def _without_secrets(client: Mapping[str, str]) -> dict[str, str]:
    return {
        name: MASK if any(part in name for part in _SECRET_PARTS) else value
        for name, value in client.items()
    }


class ServerConfig(Section, frozen=True):
    data_directory: Annotated[
        Path,
        "Where the log and its metadata live. Empty: $XDG_DATA_HOME/penstock when that is set, "
        "else ./penstock-data.",
    ] = DEFAULT_DATA_DIRECTORY
    engine: Annotated[
        Literal["embedded", "kafka"],
        "Where the log is: in the data directory, or in Kafka, see [kafka].",
    ] = "embedded"
    advertise: Annotated[
        Listener | None,
        "The host:port that clients are told to connect to, where a protocol tells them one; Flight is "
        "told on the same host with its own port. off: the address that they have connected to.",
    ] = None
    drain_time_us: Annotated[Time, "How long open work may take to finish at a stop."] = (
        10 * SECOND_US
    )
    insecure: Annotated[
        Flag, "Listen beyond this machine even without keys and TLS. Never do this by habit."
    ] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "What the server logs."] = (
        "info"
    )
    log_format: Annotated[
        Literal["text", "json"],
        "How the server logs: lines for people, or one JSON object a line.",
    ] = "text"


class ListenersConfig(Section, frozen=True):
    tcp: Annotated[
        Listener | None,
        "All TCP protocols, told apart by their first bytes, with or without TLS.",
    ] = Address("127.0.0.1", 9092)
    flight: Annotated[
        Listener | None,
        "Arrow Flight: topics as tables. With a certificate it speaks TLS only.",
    ] = Address("127.0.0.1", 8815)
    http: Annotated[
        Listener | None, "HTTP: /healthz, /readyz, /metrics, and the API under /api/v1."
    ] = Address("127.0.0.1", 8080)

    def of(self, name: str) -> Address | None:
        """A listener by its name, also those that a protocol has for itself."""
        address: Address | None = getattr(self, name)
        return address


# Where all protocols on QUIC are, as far as there are some.
UDP: Final = "udp"
_UDP_WORDS: Final = (
    "All QUIC protocols, told apart by the name that clients ask for (ALPN). Always TLS."
)


def _alone(row: ProtocolRow) -> str:
    return f"{row.title} alone, on UDP." if isinstance(row, QuicRow) else f"{row.title} alone."


# With the listeners that each protocol has for itself.
AllListenersConfig: Final[Any] = msgspec.defstruct(
    "AllListenersConfig",
    [
        *(
            (
                name,
                Annotated[Listener | None, _alone(row)],
                None if default is None else parse_address(default),
            )
            for row in PROTOCOLS
            for name, default in row.listeners.items()
        ),
        *(
            [(UDP, Annotated[Listener | None, _UDP_WORDS], Address("127.0.0.1", 4848))]
            if quic_rows()
            else []
        ),
    ],
    bases=(ListenersConfig,),
    frozen=True,
    kw_only=True,
)


class TlsConfig(Section, frozen=True):
    certificate: Annotated[Path | None, "PEM file with the certificate chain."] = None
    key: Annotated[Path | None, "PEM file with the private key of the certificate."] = None
    client_ca: Annotated[
        Path | None, "PEM file; when set, clients must show a certificate signed by it."
    ] = None
    client_auth: Annotated[
        Literal["none", "optional", "required"],
        "With client_ca: whether clients have to show a certificate, may, or are not asked for one.",
    ] = "required"
    client_crl: Annotated[
        Path | None, "PEM file with the client certificates that are revoked."
    ] = None
    client_user: Annotated[
        Literal["off", "cn", "san", "dn"],
        "Which name in a client's certificate is that of the user or API key that it acts as.",
    ] = "off"
    client_users: Annotated[
        Names, 'Other names, each "name in the certificate -> user"; they come before client_user.'
    ] = ()

    @property
    def asks_clients(self) -> bool:
        return self.client_ca is not None and self.client_auth != "none"

    @property
    def requires_clients(self) -> bool:
        return self.client_ca is not None and self.client_auth == "required"


class QuicConfig(Section, frozen=True):
    # The real brokers and clients have 30 s.
    idle_time_us: Annotated[
        int,
        time(least=SECOND_US),
        "A connection whose peer is not heard for this long is closed; the peer may ask for less.",
    ] = 30 * SECOND_US
    keep_alive_us: Annotated[
        Annotated[int, time(least=100 * MILLISECOND_US)] | None,
        "After this much silence the server sends a PING, so that idle subscribers stay; off: never.",
    ] = 10 * SECOND_US
    handshake_time_us: Annotated[
        Time, "A connection whose handshake is not complete by then is forgotten."
    ] = 10 * SECOND_US
    # A Felix client asks for up to 1,024.
    streams: Annotated[
        int, count(most=65_536), "Streams that a client may have open, of each direction."
    ] = 1_024
    half_open: Annotated[Count, "Connections whose handshake is not complete."] = 1_000
    retry_from: Annotated[
        int,
        count(least=0),
        "From this many half-open connections on, a new client must prove its address first (Retry).",
    ] = 100
    # Within what a frame of Ethernet carries, also over IPv6.
    datagram_bytes: Annotated[
        int,
        size(least=1_200, most=1_452),
        "Largest datagram that the server sends; less where a tunnel on the way carries less.",
    ] = 1_452
    stream_window_bytes: Annotated[
        int, size(least=64 * KIB), "Bytes of one stream that may be on their way to the server."
    ] = MIB
    connection_window_bytes: Annotated[
        int,
        size(least=64 * KIB),
        "Bytes of all streams of a connection on their way; never more than the socket's buffer, "
        "see net.core.rmem_max.",
    ] = 4 * MIB


class LimitsConfig(Section, frozen=True):
    connections: Annotated[Count, "Open connections, all listeners together."] = 10_000
    connections_per_address: Annotated[Count, "Open connections from one address."] = 1_000
    # One largest frame coming in (16 MiB and its header) while one of the same size waits to go
    # out, so a client that writes a large message before it reads one cannot get stuck; and 1 MiB
    # for the small frames around them. The smallest allowed value is in checks.py.
    buffered_bytes_per_connection: Annotated[
        Size, "Bytes held for one connection, in and out; then the server stops reading."
    ] = 33 * MIB
    buffered_bytes_total: Annotated[Size, "Bytes held for all connections together."] = GIB
    prelogin_frame_bytes: Annotated[
        int,
        size(least=256),
        "Largest frame before login, and of who may do nothing; its fixed header not counted.",
    ] = 64 * KIB
    login_time_us: Annotated[Time, "A connection that has not logged in by then is closed."] = (
        10 * SECOND_US
    )
    failed_logins: Annotated[Count, "Wrong logins on one connection; then it is closed."] = 10
    idle_time_us: Annotated[
        Time | None, "A logged-in connection that sends nothing for this long is closed."
    ] = None
    # Each is a directory with files, a record of the metadata and some memory: what a client makes in a
    # loop by mistake must not make the next start slow.
    topics: Annotated[Count, "Topics."] = 10_000
    partitions: Annotated[Count, "Partitions of all topics together."] = 20_000
    # Some memory and a record for each partition that a group has committed.
    groups: Annotated[Count, "Consumer groups with committed offsets."] = 10_000
    # Some kilobytes each while it is empty; it outlives its connection for a while.
    subscriptions: Annotated[Count, "BlipMQ subscriptions."] = 50_000
    # All of them are held in memory, 500 bytes each.
    users: Annotated[Count, "Users."] = 10_000
    # Each is matched against every topic that somebody without a fitting role asks for.
    topic_rules: Annotated[Count, "Topic rules."] = 1_000
    # Each is a record of the metadata, held in memory, 300 bytes.
    tenants: Annotated[Count, "Tenants, namespaces and caches that were created, together."] = (
        10_000
    )
    # Each is kept in memory with its definition, and compiled once it is used.
    schemas: Annotated[Count, "Versions of all schemas together."] = 1_000
    schema_bytes: Annotated[int, size(least=KIB, most=MIB), "Largest definition of a schema."] = (
        64 * KIB
    )
    schema_depth: Annotated[
        int, count(most=100), "Levels of nested objects and lists in a definition."
    ] = 32
    # Nine bytes of memory each while they are pending, and their bytes on disk until their hour is over.
    delayed_messages: Annotated[Count, "Delayed messages that are pending."] = 20_000_000
    delay_us: Annotated[Time, "The longest delay of a message."] = 24 * 3600 * SECOND_US
    # A job has one for each query and batch. What is forgotten stays open until its time is over.
    transactions_per_key: Annotated[Count, "Open transactions of one API key."] = 1_000
    # On the disk until the commit, which writes it a second time.
    staged_bytes_per_key: Annotated[
        int, size(least=MIB), "Bytes that the open transactions of one API key have staged."
    ] = 64 * GIB
    # A read holds some 20 MiB while its peer is slow.
    flight_reads: Annotated[Count, "Flight streams that are read at the same time."] = 128
    # A write holds a record batch, which Flight takes in as a whole, almost twice.
    flight_writes: Annotated[Count, "Flight streams that are written at the same time."] = 128
    flight_batch_bytes: Annotated[
        int,
        size(least=MIB, most=MAX_FLIGHT_BATCH_BYTES),
        "Largest record batch of a Flight stream that is written.",
    ] = 256 * MIB


class HttpConfig(Section, frozen=True):
    hosts: Annotated[
        Names,
        "Names by which others call this server, such as that of a proxy in front of it. Requests for "
        'other names are refused; loopback names and its own address are always good, "*" allows all.',
    ] = ()


class LogConfig(Section, frozen=True):
    segment_bytes: Annotated[
        int,
        size(least=topic.MIN_SEGMENT_BYTES, most=topic.MAX_NUMBER),
        "A segment file is sealed at this size.",
    ] = topic.DEFAULT_SEGMENT_BYTES
    record_bytes: Annotated[
        int,
        size(least=KIB, most=topic.MAX_RECORD_BYTES),
        "Largest record: key, value and headers.",
    ] = topic.DEFAULT_RECORD_BYTES
    cache_bytes: Annotated[
        int, size(least=0), "Memory for recent batches, which serve readers at the tail."
    ] = 64 * MIB
    open_files: Annotated[
        int, count(least=16), "Segment files held open; others are opened when needed."
    ] = 512
    flush_threads: Annotated[
        int, count(most=MAX_FLUSH_THREADS), "Threads that flush partitions to disk."
    ] = 4
    scrub_period_us: Annotated[
        Annotated[int, time(least=HOUR_US)] | None,
        "In this time every sealed segment is read once, slowly, to find damage; off: never.",
    ] = 14 * DAY_US
    transaction_memory_us: Annotated[
        Annotated[int, time(least=HOUR_US)] | None,
        "How long the name of a committed transaction is remembered, so that a repeated commit "
        "changes nothing; off: for ever.",
    ] = 30 * DAY_US


class EncryptionConfig(Section, frozen=True):
    keys: Annotated[
        KeySources,
        'Keys of encryption at rest by their numbers: "1=/path/of/a/file" or "2=env:VARIABLE". Never the '
        "key itself.",
    ] = ()
    current: Annotated[
        int,
        count(least=0, most=MAX_KEY_ID),
        "The number of the key for what is written from now on; 0: the last one of encryption.keys.",
    ] = 0

    @property
    def current_id(self) -> int:
        """0 when there are no keys."""
        return self.current or (self.keys[-1].key_id if self.keys else 0)


class TopicDefaultsConfig(Section, frozen=True):
    partitions: Annotated[int, count(most=topic.MAX_PARTITIONS), "Partitions of a new topic."] = 1
    durability: Annotated[
        Literal["ack", "interval", "none"],
        "Acknowledge after the flush, flush at an interval, or leave it to the system.",
    ] = "ack"
    flush_interval_us: Annotated[
        int,
        time(most=topic.MAX_FLUSH_INTERVAL_MS * MILLISECOND_US),
        "With durability interval: what a power cut can lose at most.",
    ] = topic.DEFAULT_FLUSH_INTERVAL_MS * MILLISECOND_US
    retention_age_us: Annotated[
        Annotated[int, time(least=SECOND_US, most=topic.MAX_NUMBER * MILLISECOND_US)] | None,
        "Records older than this are removed.",
    ] = topic.DEFAULT_RETENTION_MS * MILLISECOND_US
    retention_bytes: Annotated[
        Annotated[int, size(most=topic.MAX_NUMBER)] | None,
        "A partition larger than this loses its oldest segments.",
    ] = None
    compression: Annotated[Literal["none", "zstd"], "Compression of batches on disk."] = "none"
    cleanup: Annotated[
        Literal["delete", "compact"],
        "Remove by age and size, or keep the last record of every key.",
    ] = "delete"
    encryption: Annotated[Flag, "Encrypt batches on disk; needs encryption.keys."] = False


class AuditConfig(Section, frozen=True):
    enabled: Annotated[
        Flag,
        "Record logins, refusals and administrative changes in the topic _audit.",
    ] = True
    retention_age_us: Annotated[
        Annotated[int, time(least=SECOND_US, most=topic.MAX_NUMBER * MILLISECOND_US)] | None,
        "Events older than this are removed.",
    ] = 90 * DAY_US
    # A client in a loop leaves some hundred bytes in a minute; a thousand changes are half a megabyte.
    retention_bytes: Annotated[
        Annotated[int, size(least=MIB, most=topic.MAX_NUMBER)] | None,
        "The oldest events are removed when there are more bytes of them than this.",
    ] = GIB
    file: Annotated[
        Path | None, "A file that gets every event as well, one JSON object a line; empty: none."
    ] = None
    file_bytes: Annotated[
        Annotated[int, size(least=64 * KIB)] | None,
        "The file is renamed to .1 and begun anew at this size; off: never, something else rotates it.",
    ] = 100 * MIB
    file_count: Annotated[int, count(most=1_000), "How many renamed files are kept."] = 10


class KafkaConfig(Section, frozen=True):
    bootstrap: Annotated[
        Annotated[str, texts("host:port of a broker, several with commas")],
        "With server.engine kafka: where Kafka is, host:port, several with commas.",
    ] = ""
    replication: Annotated[
        Annotated[int, count(least=0, most=100)],
        "Copies of a new topic; 0: what Kafka has as its default.",
    ] = 0
    reach_time_us: Annotated[
        Time, "How long Kafka may be away before what waits for it fails with an error."
    ] = 30 * SECOND_US
    group_clients: Annotated[
        Annotated[int, count(most=10_000)],
        "Groups whose members or Fujin's readers this server has at once. Each group has a client of "
        "librdkafka, which takes about 0.6 MB, four threads and nine file descriptors.",
    ] = 100
    origin: Annotated[
        Flag, "Give every record a header penstock-origin with the protocol that it came in by."
    ] = False
    client: Annotated[
        Annotated[
            dict[str, str],
            table("options of librdkafka by their names, all as text", _without_secrets),
        ],
        "Options of librdkafka, as it names them: TLS, SASL, compression.",
    ] = msgspec.field(default_factory=dict)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    server: ServerConfig = ServerConfig()
    listeners: ListenersConfig = AllListenersConfig()
    tls: TlsConfig = TlsConfig()
    quic: QuicConfig = QuicConfig()
    limits: LimitsConfig = LimitsConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    kafka: KafkaConfig = KafkaConfig()
    encryption: EncryptionConfig = EncryptionConfig()
    topic_defaults: TopicDefaultsConfig = TopicDefaultsConfig()
    audit: AuditConfig = AuditConfig()
    # The sections of the protocols, by their names.
    protocols: Mapping[str, ProtocolSection] = msgspec.field(
        default_factory=lambda: {row.name: row.section() for row in PROTOCOLS}
    )
    keys: tuple[KeyConfig, ...] = ()
    users: tuple[UserConfig, ...] = ()

    def section(self, name: str) -> Any:
        return self.protocols[name] if name in self.protocols else getattr(self, name)

    def value(self, name: str) -> Any:
        """Of a key such as "limits.connections"."""
        return getattr(self.section(name.partition(".")[0]), KNOWN_KEYS[name].attribute)

    def of(self, section: type[Protocol]) -> Protocol:
        """The section of a protocol."""
        return next(one for one in self.protocols.values() if isinstance(one, section))


# The sections in the order of the written file, with their structs and the words above them.
SECTIONS: Final[dict[str, tuple[type[Section], str]]] = {
    "server": (ServerConfig, "The process."),
    "listeners": (
        AllListenersConfig,
        'Where to listen: "host:port", IPv6 in brackets, port 0 for any free one, "off" for none.',
    ),
    "tls": (TlsConfig, "Certificate and key together switch TLS on, on the same ports."),
    **({"quic": (QuicConfig, "Connections over QUIC.")} if quic_rows() else {}),
    "limits": (LimitsConfig, "At a limit the server stops reading, refuses or closes, and counts."),
    "http": (HttpConfig, "The HTTP listener."),
    "log": (LogConfig, "The durable log."),
    "kafka": (KafkaConfig, "Kafka, where it is the engine (server.engine)."),
    "encryption": (EncryptionConfig, "Encryption of topics on disk, for those that ask for it."),
    "topic_defaults": (TopicDefaultsConfig, "Settings of topics that do not set them."),
    "audit": (AuditConfig, "The audit trail."),
    **{row.name: (row.section, f"The {row.title} protocol.") for row in PROTOCOLS},
}

# By their full names: "limits.connections".
KNOWN_KEYS: Final[dict[str, Key]] = {
    f"{section}.{name}": key
    for section, (struct, _words) in SECTIONS.items()
    for name, key in keys_of(struct).items()
}
