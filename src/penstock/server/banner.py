"""The lines that a starting server prints: its listeners, its data directory, and the first commands."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Literal

from penstock import __version__
from penstock.broker.access.access import DEVELOPMENT_KEY, Access
from penstock.broker.access.rights import Operation
from penstock.broker.broker import Broker
from penstock.server.net.address import Address
from penstock.server.protocols import PROTOCOLS, ProtocolSection, quic_rows, tcp_rows

_TITLES: Final = [row.title for row in reversed(tcp_rows())]
SERVES: Final = {
    "tcp": f"{', '.join(_TITLES[:-1])} and {_TITLES[-1]}",
    **{name: row.title for row in tcp_rows() for name in row.listeners},
    "udp": " and ".join(row.title for row in quic_rows()),
    **{name: row.title for row in quic_rows() for name in row.listeners},
    "flight": "Arrow Flight",
    "http": "/healthz /readyz /metrics /api/v1",
}
# Listeners on UDP, which always have TLS.
QUIC: Final = frozenset({"udp", *(name for row in quic_rows() for name in row.listeners)})
# Listeners whose address is shown as a URL, whose scheme tells of TLS.
SCHEMES: Final = {"flight": ("grpc", "grpc+tls"), "http": ("http", "https")}

# The default addresses of `penstock pub` and `penstock cat`.
DEFAULT_SERVER: Final = "127.0.0.1:9092"
DEFAULT_HTTP: Final = "http://127.0.0.1:8080"
# Addresses that one can listen on but not connect to.
LOCAL_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# With TLS a client must name the host as the certificate does, and only its owner knows how.
ANY_HOST: Final = "HOST"
# The topic of the first commands.
FIRST_TOPIC: Final = "demo"

Keys = Literal["development", "admin", "no admin", "none"]
Writing = Literal["ready", "no topic", "not allowed"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The content of the banner. `data_source` is the reason for the data directory.

    `tls_only` names the listeners that accept only TLS; with `tls` the others accept it too.
    `without_login` says of each protocol that has no login whether it may write to the first topic.
    `command` is how to call `penstock` in the directory where the server was started.
    """

    listening: Sequence[tuple[str, Address]]
    data_directory: str
    data_source: str
    keys: Keys
    without_login: Mapping[str, Writing]
    tls: bool = False
    tls_only: Set[str] = frozenset()
    client_certificates: bool = False
    insecure: bool = False
    command: str = "penstock"
    # The engine of QUIC, and the certificate that its clients have to trust if it is self-signed.
    quic_engine: str = ""
    quic_trust: str | None = None
    # Where the tables of the pipeline are, if there is one.
    tables: str | None = None


def command_here(
    find: Callable[[str], str | None] = shutil.which, python: str = sys.executable
) -> str:
    """How to call `penstock` in the working directory: after `make run` it is not on the PATH."""
    if find("penstock") is not None:
        return "penstock"
    installed = os.path.join(os.path.dirname(python), "penstock")
    if not os.path.exists(installed):
        return f"{shlex.quote(python)} -m penstock"
    relative = os.path.relpath(installed)
    return shlex.quote(installed if relative.startswith(os.pardir) else relative)


def key_state(access: Access) -> Keys:
    """Who can log in. Only an admin for all topics counts as one: it can make other keys."""
    if access.development_key:
        return "development"
    if access.has_admin:
        return "admin"
    return "no admin" if access.has_logins else "none"


def writing_without_login(
    broker: Broker, sections: Mapping[str, ProtocolSection]
) -> dict[str, Writing]:
    """By protocol, for those that have no login."""
    access = broker.access
    there = broker.engine.topic(FIRST_TOPIC) is not None
    found: dict[str, Writing] = {}
    for protocol, section in sections.items():
        if section.acts_as() is None:
            continue
        principal = access.without_login(protocol)
        if not access.permits(principal, Operation.PUBLISH, FIRST_TOPIC):
            found[protocol] = "not allowed"
        else:
            found[protocol] = "ready" if there or section.makes_topics() else "no topic"
    return found


def render(facts: Facts) -> str:
    rows = [_listener(facts, name, address) for name, address in facts.listening]
    width = max((len(where) for _, where, _ in rows), default=0)
    lines = [f"Penstock {__version__}"]
    lines += [f"  {name:<7} {where:<{width}}  {what}" for name, where, what in rows]
    lines.append(f"  {'data':<7} {facts.data_directory}  ({facts.data_source})")
    if facts.tables is not None:
        lines.append(f"  {'tables':<7} {facts.tables}  (first rows in about a minute)")
    if facts.quic_trust is not None:
        lines.append(f"  {'trust':<7} {facts.quic_trust}")
    commands = list(_first_steps(facts))
    lines += [f"  {name:<7} {text}" for name, text in _needed(facts, "\n".join(commands))]
    if facts.insecure:
        lines.append("  insecure: other machines may connect without keys and TLS")
    return "\n".join(lines + commands) + "\n"


def _listener(facts: Facts, name: str, address: Address) -> tuple[str, str, str]:
    encrypted = name in facts.tls_only
    words = ""
    if name in QUIC:
        return name, str(address), f"{SERVES[name]} over QUIC, {facts.quic_engine}"
    if encrypted and facts.client_certificates:
        words = ", TLS with a client certificate only"
    elif name not in SCHEMES and facts.tls:
        words = ", TLS only" if encrypted else ", with or without TLS"
    where = f"{SCHEMES[name][encrypted]}://{address}" if name in SCHEMES else str(address)
    return name, where, SERVES[name] + words


def _needed(facts: Facts, commands: str) -> Iterator[tuple[str, str]]:
    """What the commands need (key, certificate), in rows."""
    if facts.keys == "development":
        yield "key", f"{DEVELOPMENT_KEY}  (no API keys yet, and only this machine can connect)"
    if facts.keys in ("admin", "no admin"):
        yield "key", "needed: set PENSTOCK_KEY to an API key of this server"
    if facts.keys in ("no admin", "none"):
        make = f"{facts.command} key create NAME --role admin --data {shlex.quote(facts.data_directory)}"
        yield "key", f"there is no admin key; stop the server and make one:  {make}"
    if "--tls" in commands or "https://" in commands:
        host = f"{ANY_HOST} is a name in the certificate; " if f"{ANY_HOST}:" in commands else ""
        yield "tls", f"{host}add --ca FILE if this machine does not trust who signed it"


# --- the first commands --------------------------------------------------------------------------


def _first_steps(facts: Facts) -> Iterator[str]:
    """Commands that work as printed, once the rows above them are followed. None if no command would work:
    the command line has no client certificate, and a server without keys accepts no login."""
    usable = {
        name: address
        for name, address in facts.listening
        if not (facts.client_certificates and name in facts.tls_only)
    }
    http = usable.get("http") if facts.keys != "none" else None
    told = "" if http is None else _http_option(facts, http)
    protocol, wire = _first_wire(facts, usable, http is not None)
    if facts.without_login.get(protocol) == "no topic":
        yield f"Make a topic:    {facts.command} topic create{told} {FIRST_TOPIC}"
    if wire is not None:
        options = _server_option(facts, wire, usable[wire])
        options += "" if protocol == PROTOCOLS[0].name else f" --protocol {protocol}"
        yield f"Send a message:  {facts.command} pub{options} {FIRST_TOPIC} hello"
    if http is not None:
        yield f"Read it again:   {facts.command} cat{told} {FIRST_TOPIC}"


def _first_wire(
    facts: Facts, usable: dict[str, Address], can_create: bool
) -> tuple[str, str | None]:
    """Protocol and listener of the first message: the first usable one of the table. Listeners without TLS
    come first, since they need no host name and no certificate."""
    for row in (row for row in tcp_rows() if row.publisher):
        state = facts.without_login.get(
            row.name, "not allowed" if facts.keys == "none" else "ready"
        )
        names = [name for name in ("tcp", *row.listeners) if name in usable]
        names.sort(key=facts.tls_only.__contains__)
        if names and (state == "ready" or (state == "no topic" and can_create)):
            return row.name, names[0]
    return "", None


def _server_option(facts: Facts, name: str, address: Address) -> str:
    if name in facts.tls_only:
        return f" --server {_named(address)} --tls"
    server = reachable(address)
    return "" if server == DEFAULT_SERVER else f" --server {server}"


def _http_option(facts: Facts, address: Address) -> str:
    if "http" in facts.tls_only:
        return f" --http https://{_named(address)}"
    url = f"http://{reachable(address)}"
    return "" if url == DEFAULT_HTTP else f" --http {url}"


def reachable(address: Address) -> str:
    """Where clients on this machine find what listens there."""
    return str(Address(LOCAL_HOST.get(address.host, address.host), address.port))


def _named(address: Address) -> str:
    host = ANY_HOST if address.host in LOCAL_HOST else address.host
    return str(Address(host, address.port))


def why_there(source_kind: str, source: str) -> str:
    """Why the data directory is where it is, for people."""
    if source_kind == "default":
        return f"default{source.removeprefix('default')}; change it with --data"
    return f"from {source}"
