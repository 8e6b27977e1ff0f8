"""Rules between configuration values, and who may reach the server.

`check_together` runs at every load. The server calls `check_exposure` and `development_key_allowed` when it
starts, because it also knows whether keys are stored in the metadata.
"""

from collections.abc import Mapping
from typing import Final

from penstock.server.config.errors import ConfigConflict
from penstock.server.config.mapping import BadMapping, parse_mapping
from penstock.server.config.schema import UDP, Config
from penstock.server.config.units import format_bytes
from penstock.server.net.address import Address
from penstock.server.protocols import PROTOCOLS, quic_rows, tcp_rows

# BlipMQ's length field may say 16 MiB, whatever the largest record of the log is.
LARGEST_FIXED_FRAME_BYTES: Final = 16 * 1024 * 1024
# What a frame carries beside the record: a topic name of up to 65,535 bytes and its fixed fields.
FRAME_OVERHEAD_BYTES: Final = 68 * 1024


def check_together(config: Config, sources: Mapping[str, object]) -> None:
    """Raise ConfigConflict when values do not fit each other."""
    _check_engine(config, sources)
    _check_encryption(config, sources)
    _check_tls(config, sources)
    _check_listeners(config, sources)
    _check_sizes(config, sources)
    _check_protocols(config, sources)


def _check_engine(config: Config, sources: Mapping[str, object]) -> None:
    if config.server.engine != "kafka":
        return
    where = sources["server.engine"]
    if not config.kafka.bootstrap.strip():
        raise ConfigConflict(
            ("server.engine", "kafka.bootstrap"),
            f"server.engine is kafka ({where}), but kafka.bootstrap is empty; set it to host:port",
        )
    if config.encryption.keys or config.topic_defaults.encryption:
        raise ConfigConflict(
            ("server.engine", "encryption.keys"),
            f"server.engine is kafka ({where}), whose files Penstock cannot encrypt; remove "
            "encryption.keys and topic_defaults.encryption, and encrypt the disks of the brokers",
        )


def listening(config: Config) -> dict[str, Address]:
    """The listeners that are on, by name: all protocols together, each alone, then the others."""
    alone = [name for row in tcp_rows() for name in row.listeners]
    quic = quic_listeners()
    known = {*alone, *quic}
    others = [name for name in config.listeners.__struct_fields__ if name not in known]
    if config.tls.requires_clients:
        quic = []
    names = [others[0], *alone, *quic, *others[1:]]
    addresses = {name: config.listeners.of(name) for name in names}
    return {name: address for name, address in addresses.items() if address is not None}


def quic_listeners() -> list[str]:
    """The names of those on UDP: that of all QUIC protocols, and each alone."""
    rows = quic_rows()
    return [UDP, *(name for row in rows for name in row.listeners)] if rows else []


def development_key_allowed(config: Config, *, stored_keys: bool = False) -> bool:
    """True if the well-known key `dev-key` may log in: there is no other key, and the server is
    reachable from this machine only."""
    on_loopback = all(address.is_loopback for address in listening(config).values())
    return on_loopback and not config.keys and not config.users and not stored_keys


def check_exposure(config: Config, *, stored_keys: bool = False) -> str | None:
    """Why the server must not start: it could be reached from outside without keys and TLS."""
    exposed = [
        f"listeners.{name} ({address})"
        for name, address in listening(config).items()
        if not address.is_loopback
    ]
    missing = []
    if not config.keys and not config.users and not stored_keys:
        missing.append("no API keys ([[keys]] or penstock key create)")
    if config.tls.certificate is None:
        missing.append("no TLS (tls.certificate and tls.key)")
    if not exposed or not missing or config.server.insecure:
        return None
    return (
        f"{', '.join(exposed)} can be reached from other machines, but there are "
        f"{' and '.join(missing)}; set them, listen on 127.0.0.1, or give --insecure"
    )


def _check_encryption(config: Config, sources: Mapping[str, object]) -> None:
    """Before anything shows the values: a key that was written in the place of its file is not shown."""
    chosen = config.encryption
    for source in chosen.keys:
        if source.is_the_key_itself:
            raise ConfigConflict(
                ("encryption.keys",),
                f"encryption.keys ({sources['encryption.keys']}): key {source.key_id} stands there itself;"
                " write the path of a file that holds it, or env:VARIABLE",
            )
    known = [source.key_id for source in chosen.keys]
    if chosen.current and chosen.current not in known:
        raise ConfigConflict(
            ("encryption.current", "encryption.keys"),
            f"encryption.current = {chosen.current} ({sources['encryption.current']}) is not among"
            f" encryption.keys ({', '.join(map(str, known)) or 'there are none'})",
        )
    if config.topic_defaults.encryption and not known:
        raise ConfigConflict(
            ("topic_defaults.encryption", "encryption.keys"),
            f"topic_defaults.encryption is set ({sources['topic_defaults.encryption']}) but there is no"
            " key; set encryption.keys",
        )


def _check_tls(config: Config, sources: Mapping[str, object]) -> None:
    tls = config.tls
    if (tls.certificate is None) != (tls.key is None):
        given, missing = ("certificate", "key") if tls.key is None else ("key", "certificate")
        raise ConfigConflict(
            (f"tls.{given}", f"tls.{missing}"),
            f"tls.{given} is set ({sources[f'tls.{given}']}) but tls.{missing} is not; "
            "set both or neither",
        )
    if tls.client_ca is not None and tls.certificate is None:
        raise ConfigConflict(
            ("tls.client_ca", "tls.certificate"),
            f"tls.client_ca is set ({sources['tls.client_ca']}) but tls.certificate and tls.key "
            "are not; set all three or none",
        )
    for key, is_set in (
        ("client_crl", tls.client_crl is not None),
        ("client_user", tls.client_user != "off"),
        ("client_users", bool(tls.client_users)),
    ):
        if is_set and not tls.asks_clients:
            other = "client_auth" if tls.client_ca is not None else "client_ca"
            raise ConfigConflict(
                (f"tls.{key}", f"tls.{other}"),
                f"tls.{key} is set ({sources[f'tls.{key}']}), but no client is asked for a certificate: "
                f"see tls.{other}",
            )
    try:
        parse_mapping(tls.client_users)
    except BadMapping as error:
        raise ConfigConflict(
            ("tls.client_users",),
            f"tls.client_users ({sources['tls.client_users']}): {error}",
        ) from None
    if not tls.requires_clients:
        return
    # Of the engines of QUIC none can ask for a certificate yet: those listeners would let everybody
    # in. They are off where nobody has asked for them.
    for name in quic_listeners():
        key = f"listeners.{name}"
        if config.listeners.of(name) is not None and str(sources[key]) != "default":
            raise ConfigConflict(
                ("tls.client_ca", key),
                f"tls.client_ca is set ({sources['tls.client_ca']}), and {key} ({sources[key]}) cannot ask "
                f"for client certificates over QUIC; set {key} to off",
            )


def _check_listeners(config: Config, sources: Mapping[str, object]) -> None:
    names: dict[tuple[Address, bool], str] = {}
    on_udp = set(quic_listeners())
    for name, address in listening(config).items():
        if address.port == 0:
            continue
        other = names.setdefault((address, name in on_udp), name)
        if other != name:
            keys = (f"listeners.{other}", f"listeners.{name}")
            raise ConfigConflict(
                keys,
                f"{keys[0]} ({sources[keys[0]]}) and {keys[1]} ({sources[keys[1]]}) are both "
                f"{address}; give one another port or switch it off",
            )


def _check_sizes(config: Config, sources: Mapping[str, object]) -> None:
    record_bytes = config.log.record_bytes
    largest_frame = max(record_bytes, LARGEST_FIXED_FRAME_BYTES) + FRAME_OVERHEAD_BYTES
    limits = config.limits
    rules = (
        ("limits.buffered_bytes_per_connection", limits.buffered_bytes_per_connection,
         largest_frame, "one largest frame, see log.record_bytes"),
        ("limits.buffered_bytes_total", limits.buffered_bytes_total,
         limits.buffered_bytes_per_connection, "limits.buffered_bytes_per_connection"),
        *(
            (f"{row.name}.{key}", config.value(f"{row.name}.{key}"),
             record_bytes, "one largest record, log.record_bytes")
            for row in PROTOCOLS for key in row.section.hold_a_record
        ),
    )  # fmt: skip
    for key, value, least, reason in rules:
        if value < least:
            raise ConfigConflict(
                (key,),
                f"{key} = {format_bytes(value)} ({sources[key]}) is too small; "
                f"it must hold at least {format_bytes(least)} ({reason})",
            )


def _check_protocols(config: Config, sources: Mapping[str, object]) -> None:
    for protocol, section in config.protocols.items():
        for key, why in section.flaws():
            name = f"{protocol}.{key}"
            raise ConfigConflict((name,), f"{name} ({sources[name]}): {why}")
