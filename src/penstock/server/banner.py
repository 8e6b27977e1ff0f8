"""The few lines that a starting server says: what listens where, where the data is, what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock import __version__
from penstock.server.address import Address
from penstock.server.config_checks import DEVELOPMENT_KEY

SERVES: Final = {
    "tcp": "RustLog and BlipMQ",
    "blipmq": "BlipMQ",
    "rustlog": "RustLog",
    "http": "/healthz /readyz /metrics /api/v1",
}

# Where `penstock pub` and `penstock cat` connect unless told otherwise.
COMMANDS_LOOK_AT: Final = "127.0.0.1:9092"
# Addresses that one can listen on but not connect to.
LOCAL_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the banner tells. `data_source` says why the data is where it is."""

    listening: Sequence[tuple[str, Address]]
    data_directory: str
    data_source: str
    tls: bool
    http_tls: bool
    development_key: bool
    insecure: bool


def render(facts: Facts) -> str:
    rows = []
    for name, address in facts.listening:
        what = SERVES[name]
        if name == "http":
            where = f"{'https' if facts.http_tls else 'http'}://{address}"
        else:
            where = str(address)
            what += ", with or without TLS" if facts.tls else ""
        rows.append((name, where, what))
    width = max((len(where) for _, where, _ in rows), default=0)
    lines = [f"Penstock {__version__}"]
    lines += [f"  {name:<7} {where:<{width}}  {what}" for name, where, what in rows]
    lines.append(f"  {'data':<7} {facts.data_directory}  ({facts.data_source})")
    if facts.development_key:
        lines.append(
            f"  {'key':<7} {DEVELOPMENT_KEY}  (no API keys yet, and only this machine can connect)"
        )
    if facts.insecure:
        lines.append("  insecure: other machines may connect without keys and TLS")
    where = _where(dict(facts.listening))
    lines.append(f"Send a message:  penstock pub{where} demo hello")
    lines.append(f"Read it again:   penstock cat{where} demo")
    return "\n".join(lines) + "\n"


def _where(listening: dict[str, Address]) -> str:
    """What the commands must be told when the server is not where they look by themselves."""
    address = listening.get("tcp") or listening.get("rustlog") or listening.get("blipmq")
    if address is None:
        return ""
    reachable = str(Address(LOCAL_HOST.get(address.host, address.host), address.port))
    return "" if reachable == COMMANDS_LOOK_AT else f" --server {reachable}"


def why_there(source_kind: str, source: str) -> str:
    """Why the data directory is where it is, for people."""
    if source_kind == "default":
        return f"default{source.removeprefix('default')}; change it with --data"
    return f"from {source}"
