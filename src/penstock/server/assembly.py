"""From the configuration to the parts of the server: engine options, access, broker, sessions, limits.

Pure wiring: each function here turns values of one kind into those of another.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.principal import Origin
from penstock.broker.audit.trail import AuditOptions
from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.broker.outside import OutsideRoute
from penstock.errors import PenstockError
from penstock.log.embedded import EmbeddedEngine, EngineOptions, boot_time_s
from penstock.log.engine import Engine, Keys
from penstock.log.settings import TopicSettings
from penstock.server.config.checks import development_key_allowed
from penstock.server.config.errors import ConfigConflict
from penstock.server.config.kinds import MILLISECOND_US
from penstock.server.config.mapping import parse_mapping
from penstock.server.config.schema import SECOND_US, Config
from penstock.server.connectors.routes import Routes
from penstock.server.flight.link import FlightLimits, Start
from penstock.server.net.address import Address
from penstock.server.net.client_certificates import CertificateUsers
from penstock.server.net.hub import ConnectionLimits, Hub, MakeSession
from penstock.server.net.limits import connections_that_fit
from penstock.server.net.outbox import Outbox
from penstock.server.net.quic.connection import ConnectionView, MakeConnectionSession
from penstock.server.net.quic.port import Certificate, EngineSettings
from penstock.server.protocols import (
    PROTOCOLS,
    ProtocolRow,
    QuicRow,
    TcpRow,
    Terms,
    quic_rows,
    tcp_rows,
)
from penstock.sessions.stream import Session, SessionLimits, Stream, host_of
from penstock.sessions.streams import ConnectionSession


class ExtraMissing(PenstockError):
    module: str

    line = (
        "server.engine is kafka, and {module} is not installed; install it with: "
        "pip install 'penstock[kafka]'"
    )


NOTHING_OUTSIDE: Final[Mapping[str, OutsideRoute]] = {}

# From the certificate of a peer, and its address for the log, to its principal.
Certified = Callable[[bytes, str], Principal | None]


def topic_defaults(config: Config) -> TopicSettings:
    chosen = config.topic_defaults
    return TopicSettings(
        durability=chosen.durability,
        flush_interval_ms=max(chosen.flush_interval_us // MILLISECOND_US, 1),
        retention_ms=(chosen.retention_age_us or 0) // MILLISECOND_US,
        retention_bytes=chosen.retention_bytes or 0,
        segment_bytes=config.log.segment_bytes,
        record_bytes=config.log.record_bytes,
        compression=chosen.compression,
        cleanup=chosen.cleanup,
        encryption=chosen.encryption,
    )


def open_engine(
    config: Config,
    loop: asyncio.AbstractEventLoop,
    outbox: Outbox,
    observe_flush: Callable[[float, int], None],
    keys: Keys,
) -> Engine:
    """Locks the data directory and recovers the log, or reads what Kafka has: may take a while."""
    if config.server.engine == "kafka":
        return _kafka_engine(config, outbox)
    options = EngineOptions(
        cache_bytes=config.log.cache_bytes,
        open_files=config.log.open_files,
        commit_threads=config.log.flush_threads,
        defaults=topic_defaults(config),
        transaction_memory_us=config.log.transaction_memory_us,
        scrub_period_us=config.log.scrub_period_us,
        keys=keys,
    )
    directory = config.server.data_directory
    return EmbeddedEngine(
        directory,
        options,
        post=outbox.post,
        observe_flush=observe_flush,
        elapsed_s=boot_time_s,
        later=loop.call_later,
    )


def _kafka_engine(config: Config, outbox: Outbox) -> Engine:
    """Raises ExtraMissing where librdkafka is not installed."""
    try:
        from penstock.kafka.clients import KafkaOptions
        from penstock.kafka.engine import KafkaEngine, KafkaEngineOptions
    except ModuleNotFoundError as error:
        raise ExtraMissing(error.name or "confluent_kafka") from None
    chosen = config.kafka
    kafka = KafkaOptions(
        bootstrap=chosen.bootstrap,
        replication=chosen.replication or -1,
        reach_s=chosen.reach_time_us / SECOND_US,
        client=chosen.client,
    )
    options = KafkaEngineOptions(
        kafka,
        defaults=topic_defaults(config),
        cache_bytes=config.log.cache_bytes,
        transaction_memory_us=config.log.transaction_memory_us,
        with_origin=chosen.origin,
        group_clients=chosen.group_clients,
    )
    return KafkaEngine(options, outbox.post)


def build_access(config: Config, engine: Engine, loop: asyncio.AbstractEventLoop) -> Access:
    """Access control. Peers without a login may do everything on an open server, and nothing on others."""
    anonymous = Principal("anonymous", "user" if config.server.insecure else "nobody")
    stored = Access(engine.metadata, (), development_key=False, anonymous=anonymous)
    development_key = development_key_allowed(config, stored_keys=stored.has_stored_logins)
    if development_key:
        anonymous = replace(anonymous, role="admin")
    access = Access(
        engine.metadata,
        config.keys,
        development_key=development_key,
        anonymous=anonymous,
        post=loop.call_soon_threadsafe,
    )
    for protocol, name in principals(config).items():
        principal = access.named(name)
        if principal is None:
            raise no_such_principal(protocol, name)
        if principal != anonymous:
            access.act_as(protocol, principal)
    return access


def principals(config: Config) -> dict[str, str]:
    """For each protocol without a login: the name of the key whose rights its connections have."""
    named = {protocol: section.acts_as() for protocol, section in config.protocols.items()}
    return {protocol: name for protocol, name in named.items() if name is not None}


def no_such_principal(protocol: str, name: str) -> ConfigConflict:
    key = f"{protocol}.principal"
    return ConfigConflict((key,), f"{key} = {name}: no API key has this name")


def live_options(config: Config) -> dict[str, Any]:
    """The broker's options that may change while the server runs."""
    return {
        "default_partitions": config.topic_defaults.partitions,
        "default_settings": topic_defaults(config),
        "max_topics": config.limits.topics,
        "max_partitions": config.limits.partitions,
        "max_groups": config.limits.groups,
        "max_subscriptions": config.limits.subscriptions,
        "max_users": config.limits.users,
        "max_topic_rules": config.limits.topic_rules,
        "max_tenants": config.limits.tenants,
        "max_schemas": config.limits.schemas,
        "max_schema_bytes": config.limits.schema_bytes,
        "max_schema_depth": config.limits.schema_depth,
        "max_delayed_messages": config.limits.delayed_messages,
        "max_delay_us": config.limits.delay_us,
        "max_open_transactions": config.limits.transactions_per_key,
        "max_staged_bytes": config.limits.staged_bytes_per_key,
        "audit": audit_options(config),
    }


def audit_options(config: Config) -> AuditOptions:
    chosen = config.audit
    return AuditOptions(
        chosen.enabled,
        (chosen.retention_age_us or 0) // MILLISECOND_US,
        chosen.retention_bytes or 0,
        config.topic_defaults.encryption,
    )


def build_broker(
    config: Config, engine: Engine, access: Access, loop: asyncio.AbstractEventLoop
) -> Broker:
    options = BrokerOptions(**live_options(config))
    for section in config.protocols.values():
        options = replace(options, **section.broker_options())
    names = [row.name for row in PROTOCOLS]

    def run(work: Callable[[], None]) -> None:
        loop.run_in_executor(None, work)

    broker = Broker(engine, access, options, engine.clock_us, loop.call_later, names, run)
    for topic in [topic for one in config.protocols.values() for topic in one.first_topics()]:
        if engine.topic(topic.name) is None:
            engine.create_topic(topic.name, topic.partitions or options.default_partitions)
    return broker


def connection_limits(config: Config) -> ConnectionLimits:
    chosen = config.limits
    idle_us = chosen.idle_time_us
    return ConnectionLimits(
        connections=connections_that_fit(chosen.connections, config.log.open_files),
        connections_per_address=chosen.connections_per_address,
        buffered_bytes_per_connection=chosen.buffered_bytes_per_connection,
        buffered_bytes_total=chosen.buffered_bytes_total,
        login_time_s=chosen.login_time_us / SECOND_US,
        idle_time_s=None if idle_us is None else idle_us / SECOND_US,
    )


def certificate_users(config: Config) -> CertificateUsers:
    return CertificateUsers(config.tls.client_user, parse_mapping(config.tls.client_users))


def build_hub(
    config: Config,
    broker: Broker,
    loop: asyncio.AbstractEventLoop,
    tls: ssl.SSLContext | None,
    outbox: Outbox,
    certified: Certified,
) -> Hub:
    sessions = {row.name: _opener(row, broker, config, certified) for row in tcp_rows()}
    return Hub(loop, connection_limits(config), sessions, tls, outbox)


def _opener(row: TcpRow, broker: Broker, config: Config, certified: Certified) -> MakeSession:
    make_terms = _terms_of(row, broker, config)

    def open_session(stream: Stream) -> Session:
        certificate = stream.certificate
        own = certified(certificate, stream.peer) if certificate else None
        return row.session(broker, stream, make_terms(stream.peer, own))

    return open_session


class MakeTerms(Protocol):
    def __call__(self, peer: str, own: Principal | None = None) -> Terms:
        """`own`: the principal of the peer's certificate."""
        ...


def _terms_of(
    row: ProtocolRow,
    broker: Broker,
    config: Config,
    outside: Mapping[str, OutsideRoute] = NOTHING_OUTSIDE,
) -> MakeTerms:
    chosen = config.limits
    limits = SessionLimits(
        prelogin_frame_bytes=chosen.prelogin_frame_bytes, failed_logins=chosen.failed_logins
    )
    section = config.protocols[row.name]
    advertise = "" if config.server.advertise is None else str(config.server.advertise)

    def make(peer: str, own: Principal | None = None) -> Terms:
        access, origin = broker.access, Origin(row.name, host_of(peer))
        if own is not None:
            broker.audit.login(origin, own.name, own)
        principal = access.at(own or access.without_login(row.name), origin)
        return Terms(
            limits, row.frame_size, principal, section, advertise, own is not None, outside
        )

    return make


def quic_sessions(
    config: Config, broker: Broker, outside: Mapping[str, OutsideRoute]
) -> dict[str, MakeConnectionSession]:
    """For each protocol on QUIC: what makes its session of a connection."""

    def opener(row: QuicRow) -> MakeConnectionSession:
        make_terms = _terms_of(row, broker, config, outside)

        def open_session(connection: ConnectionView) -> ConnectionSession:
            return row.connection(broker, connection, make_terms(connection.peer))

        return open_session

    return {row.name: opener(row) for row in quic_rows()}


def outside_routes(config: Config, environment: Mapping[str, str]) -> Routes:
    """Routes to brokers outside; nothing is connected yet."""
    routes = Routes()
    for section in config.protocols.values():
        routes.add_all(section.outside(), environment)
    return routes


def engine_settings(config: Config) -> EngineSettings:
    """All but the certificate and the choice of the protocol, which belong to the listeners."""
    chosen = config.quic
    keep_alive_us = chosen.keep_alive_us
    return EngineSettings(
        choose=lambda offered: None,
        certificate=Certificate(b"", b""),
        connections=config.limits.connections,
        half_open=chosen.half_open,
        retry_from=chosen.retry_from,
        streams=chosen.streams,
        idle_time_s=chosen.idle_time_us / SECOND_US,
        keep_alive_s=None if keep_alive_us is None else keep_alive_us / SECOND_US,
        handshake_time_s=chosen.handshake_time_us / SECOND_US,
        datagram_bytes=chosen.datagram_bytes,
        stream_window_bytes=chosen.stream_window_bytes,
        connection_window_bytes=chosen.connection_window_bytes,
    )


def flight_settings(config: Config, address: Address, run_base_us: int | None = None) -> Start:
    tls = config.tls
    level = logging.getLevelNamesMapping()[config.server.log_level.upper()]
    chosen = config.limits
    limits = FlightLimits(
        reads=chosen.flight_reads,
        writes=chosen.flight_writes,
        batch_bytes=chosen.flight_batch_bytes,
        connections=chosen.connections,
        connections_per_address=chosen.connections_per_address,
        login_time_s=chosen.login_time_us / SECOND_US,
    )
    return Start(
        address.host,
        address.port,
        tls.certificate,
        tls.key,
        tls.client_ca if tls.requires_clients else None,
        level,
        limits,
        config.server.log_format,
        run_base_us,
    )
