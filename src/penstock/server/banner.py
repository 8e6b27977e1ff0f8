"""The few lines that a starting server says: what listens where, where the data is, what to do next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock import __version__
from penstock.server.address import Address
from penstock.server.config_checks import DEVELOPMENT_KEY

SERVES: Final = {
    "tcp": "RustLog and BlipMQ",
    "blipmq": "BlipMQ",
    "rustlog": "RustLog",
    "flight": "Arrow Flight",
    "http": "/healthz /readyz /metrics /api/v1",
}

# Where `penstock pub` and `penstock cat` look for a server unless told otherwise.
DEFAULT_SERVER: Final = "127.0.0.1:9092"
DEFAULT_HTTP: Final = "http://127.0.0.1:8080"
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
        elif name == "flight":
            where = f"{'grpc+tls' if facts.tls else 'grpc'}://{address}"
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
    lines += _first_steps(dict(facts.listening), facts.http_tls)
    return "\n".join(lines) + "\n"


def _first_steps(listening: dict[str, Address], http_tls: bool) -> Iterator[str]:
    """Commands that work as they stand here: told where the server is when they would not find it."""
    wire = listening.get("tcp") or listening.get("rustlog") or listening.get("blipmq")
    if wire is not None:
        told = "" if _reachable(wire) == DEFAULT_SERVER else f" --server {_reachable(wire)}"
        yield f"Send a message:  penstock pub{told} demo hello"
    if "http" in listening:
        url = f"{'https' if http_tls else 'http'}://{_reachable(listening['http'])}"
        told = "" if url == DEFAULT_HTTP else f" --http {url}"
        yield f"Read it again:   penstock cat{told} demo"


def _reachable(address: Address) -> str:
    return str(Address(LOCAL_HOST.get(address.host, address.host), address.port))


def why_there(source_kind: str, source: str) -> str:
    """Why the data directory is where it is, for people."""
    if source_kind == "default":
        return f"default{source.removeprefix('default')}; change it with --data"
    return f"from {source}"
