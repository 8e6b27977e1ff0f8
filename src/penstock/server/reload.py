"""SIGHUP: the configuration and the certificates are read again.

What can change while the server runs is applied, in one log line each; what cannot is named. A file that is
broken, or does not fit the rest, changes nothing.
"""

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.broker.access.principal import Origin, Principal
from penstock.broker.audit import events
from penstock.errors import PenstockError
from penstock.log.engine import Keys
from penstock.server import logs
from penstock.server.assembly import (
    certificate_users,
    connection_limits,
    flight_settings,
    live_options,
    no_such_principal,
    principals,
    topic_defaults,
)
from penstock.server.config.checks import check_together
from penstock.server.config.encryption import read_keys
from penstock.server.config.loading import LoadedConfig
from penstock.server.config.schema import KNOWN_KEYS, SECOND_US, Config, TlsConfig
from penstock.server.configured_users import CONFIGURATION, make_users
from penstock.server.flight.link import FlightKeys
from penstock.server.net.tls import server_context

if TYPE_CHECKING:
    from penstock.server.server import Server

# Beside [[keys]]. A whole section where it ends in a dot.
LIVE: Final = (
    "server.log_level",
    "server.log_format",
    "server.drain_time",
    "limits.connections",
    "limits.connections_per_address",
    "limits.buffered_bytes_per_connection",
    "limits.buffered_bytes_total",
    "limits.login_time",
    "limits.idle_time",
    "limits.topics",
    "limits.partitions",
    "limits.groups",
    "limits.subscriptions",
    "limits.transactions_per_key",
    "limits.staged_bytes_per_key",
    "limits.flight_reads",
    "limits.flight_writes",
    "limits.flight_batch_bytes",
    "tls.certificate",
    "tls.key",
    "tls.client_ca",
    "tls.client_crl",
    "tls.client_user",
    "tls.client_users",
    "http.hosts",
    "encryption.",
    "topic_defaults.",
    "audit.",
)
# Where there is one before and after.
CERTIFICATE: Final = ("tls.certificate", "tls.key")
CLIENT_FILES: Final = ("tls.client_ca", "tls.client_crl")

logger = logging.getLogger(__name__)


class Certificates:
    """The certificate and its key, and those of the clients' CA, as they are used now.

    `context` is for connections that begin now. `front` never changes, for a listener that cannot change
    its context; each of its handshakes goes on with the current one.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self.context = _context_of(tls)
        self._content = _contents(tls)
        self.front = self.context
        if self.front is not None:
            self.front.sni_callback = self._switch

    def _switch(self, handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if self.context is not None and handshake.context is not self.context:
            handshake.context = self.context

    def read_again(self, tls: TlsConfig) -> Callable[[], bool]:
        """Reads and checks. The function that it gives takes them into use, for connections to come, and
        says whether they have changed. Raises TlsFileError."""
        if self.context is None:
            return lambda: False
        # A new one and not the old one with more in it: what a CA file no longer has must be gone, and the
        # sessions that were kept with it.
        context, content = _context_of(tls), _contents(tls)

        def use() -> bool:
            changed = content != self._content
            if changed and context is not None:
                self.context, self._content = context, content
            return changed

        return use


def _context_of(tls: TlsConfig) -> ssl.SSLContext | None:
    if tls.certificate is None or tls.key is None:
        return None
    return server_context(
        tls.certificate,
        tls.key,
        tls.client_ca if tls.asks_clients else None,
        optional=not tls.requires_clients,
        client_crl=tls.client_crl,
    )


def _contents(tls: TlsConfig) -> list[bytes]:
    found = []
    for path in (tls.certificate, tls.key, tls.client_ca, tls.client_crl):
        if path is not None:
            with open(path, "rb") as file:
                found.append(file.read())
    return found


async def reload(server: "Server", load: Callable[[], LoadedConfig]) -> None:
    """Never raises: on an error the server keeps its configuration."""
    try:
        wanted = await asyncio.to_thread(load)
        config = _merged(server.config, wanted.config)
        check_together(config, wanted.sources)
        use_certificates = await asyncio.to_thread(server.certificates.read_again, config.tls)
        await _use_encryption_keys(server, config)
        tls = config.tls
        paths = (tls.certificate, tls.key) if tls.certificate and tls.key else None
        new_quic = await server.quic.renew(paths)
        new_certificates = use_certificates()
        _apply_keys(server, config)
        accounts, environment = server.broker.accounts, server.environment
        made = await asyncio.to_thread(make_users, config, accounts, environment)
    except (PenstockError, OSError) as error:
        logger.error("SIGHUP: nothing is changed: %s", error)
        _record(server, {}, error)
        return
    changes = list(_changes(server.config, wanted.config))
    old_keys = server.config.keys
    if new_certificates or new_quic:
        logger.info("SIGHUP: the certificates were read again")
    if config.keys != server.config.keys:
        logger.info("SIGHUP: [[keys]] were read again, there are %d now", len(config.keys))
    for name, old, new in changes:
        if _is_live(name, server.config, wanted.config):
            logger.info("SIGHUP: %s = %s (it was %s)", name, new, old)
        else:
            logger.warning("SIGHUP: %s = %s needs a restart; it stays %s", name, new, old)
    if wanted.config.keys and not server.config.keys:
        text = "SIGHUP: the first [[keys]] need a restart, nobody can log in with them before it"
        logger.warning(text)
    elif server.config.keys and not wanted.config.keys:
        text = "SIGHUP: to be without [[keys]] needs a restart; the %d that there were still work"
        logger.warning(text, len(server.config.keys))
    if (
        not changes
        and not new_certificates
        and not new_quic
        and wanted.config.keys == old_keys
        and not made
    ):
        logger.info("SIGHUP: nothing has changed")
    told = {name: new for name, _, new in changes if _is_live(name, server.config, wanted.config)}
    if new_certificates:
        told["tls"] = "the certificate was read again"
    if config.keys != old_keys:
        told["keys"] = ", ".join(key.name for key in config.keys)
    # Before what it says takes effect: it may be the end of the trail.
    _record(server, told)
    await _apply(server, config, new_certificates=new_certificates)


def _record(server: "Server", details: dict[str, str], error: BaseException | None = None) -> None:
    who = Principal(CONFIGURATION.name, CONFIGURATION.role, origin=Origin("SIGHUP"))
    server.broker.audit.changed(who, events.CONFIG_RELOADED, "", details, error)


async def _use_encryption_keys(server: "Server", config: Config) -> None:
    """Also when the configuration is the same: files may have changed. Raises KeyUnreadable, KeyMissing,
    KeyWrong; then the old ones stay."""
    keys = await asyncio.to_thread(read_keys, config.encryption, server.environment)
    if keys == server.keys:
        return
    if server.flight is not None:  # first: it must be able to read what is written then
        both = {**server.keys.by_id, **keys.by_id}
        server.flight.use_keys(FlightKeys.of(Keys(both)))
    try:
        await asyncio.to_thread(server.engine.use_keys, keys)
        server.keys = keys
    finally:
        if server.flight is not None:
            server.flight.use_keys(FlightKeys.of(server.keys))
    server.broker.keys_changed()
    logger.info("SIGHUP: the keys of encryption were read again, %d is current", keys.current)


def _is_live(name: str, old: Config, new: Config) -> bool:
    if name in CERTIFICATE and (old.tls.certificate is None or new.tls.certificate is None):
        return False  # with TLS or without: listeners are one or the other from the start
    if name in CLIENT_FILES and None in (old.value(name), new.value(name)):
        return False  # the same for asking clients
    return any(name == live or (live.endswith(".") and name.startswith(live)) for live in LIVE)


def _changes(old: Config, new: Config) -> Iterator[tuple[str, str, str]]:
    """Name, old and new value as one would write them."""
    for name, key in KNOWN_KEYS.items():
        before, after = old.value(name), new.value(name)
        if before != after:
            yield name, key.literal(before), key.literal(after)


def _merged(old: Config, new: Config) -> Config:
    """The old configuration with all of the new one that can change."""
    live: dict[str, dict[str, Any]] = {}
    for name, key in KNOWN_KEYS.items():
        if _is_live(name, old, new):
            live.setdefault(name.partition(".")[0], {})[key.attribute] = new.value(name)
    sections = {
        section: msgspec.structs.replace(getattr(old, section), **values)
        for section, values in live.items()
    }
    # With the first key dev-key goes, and with it who needs none: that is a matter of the start.
    keys = new.keys if bool(new.keys) == bool(old.keys) else old.keys
    return msgspec.structs.replace(old, **sections, keys=keys, users=new.users)


def _apply_keys(server: "Server", config: Config) -> None:
    """Raises BrokerError for a hash that is none."""
    if config.keys == server.config.keys:
        return
    gone = {key.name for key in server.config.keys} - {key.name for key in config.keys}
    acting = principals(config)
    for protocol, name in acting.items():
        if name in gone:
            raise no_such_principal(protocol, name)
    access = server.broker.access
    access.reconfigure(config.keys)
    for protocol, name in acting.items():
        principal = access.named(name)
        if principal is not None and principal != access.anonymous:
            access.act_as(protocol, principal)


async def _apply_audit_file(server: "Server") -> None:
    try:
        await server.use_audit_file()
    except OSError as error:
        path = server.config.audit.file
        logger.error("SIGHUP: audit.file = %s cannot be opened: %s", path, error.strerror)


async def _apply(server: "Server", config: Config, *, new_certificates: bool) -> None:
    log = config.server
    if (log.log_level, log.log_format) != (
        server.config.server.log_level,
        server.config.server.log_format,
    ):
        logs.configure(log.log_level, log.log_format)
    server.config = config
    server.hub.limits = connection_limits(config)
    server.hub.tls = server.certificates.context
    server.certificate_users = certificate_users(config)
    server.broker.options = dataclasses.replace(server.broker.options, **live_options(config))
    server.broker.audit.options = server.broker.options.audit
    await _apply_audit_file(server)
    server.http.names = server.http_names()
    if server.http.api is not None:
        server.http.api.defaults = topic_defaults(config)
    host = server.flight
    if host is None:
        return
    settings = flight_settings(
        config, server.listeners["flight"].address, server.engine.run_base_us
    )
    if settings != host.settings or new_certificates:
        logger.info("SIGHUP: the Flight process is started anew when its streams are done")
        await host.replace(settings, config.server.drain_time_us / SECOND_US)
