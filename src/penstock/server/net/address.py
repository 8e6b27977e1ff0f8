"""Listening addresses as text: "127.0.0.1:9092", "[::1]:9092", "broker.local:0".

Looks up no names and opens no sockets.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

MAX_PORT: Final = 65_535
# The longest name that DNS can carry.
MAX_HOST_LENGTH: Final = 253

# A DNS name, with the underscore of container networks; digits and dots alone are an address.
_HOST_NAME: Final = re.compile(
    r"(?=.*[a-z_])[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?",
    re.ASCII | re.IGNORECASE,
)
_EXPECTED: Final = 'host:port such as "127.0.0.1:9092", "[::1]:9092" or "0.0.0.0:9092"'


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. `host` is an address without brackets, or a name; port 0 = any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach it. Names other than localhost count as outside:
        what they stand for may change after this was asked."""
        if self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            literal = ip_address(self.host)
        except ValueError:
            return False
        if isinstance(literal, IPv6Address) and literal.ipv4_mapped is not None:
            return literal.ipv4_mapped.is_loopback
        return literal.is_loopback


def parse_address(text: str) -> Address:
    """Raises ValueError with what is expected."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > len(str(MAX_PORT)):
        raise ValueError(_EXPECTED)
    if int(port) > MAX_PORT:
        raise ValueError(f"{_EXPECTED}, with a port from 0 to {MAX_PORT}")
    if host.startswith("[") and host.endswith("]"):
        return Address(_literal(host[1:-1], IPv6Address), int(port))
    if ":" in host:
        raise ValueError(f"{_EXPECTED}; IPv6 addresses go in brackets")
    if not host:
        raise ValueError(f'{_EXPECTED}; for all interfaces write "0.0.0.0:{port}"')
    if len(host) <= MAX_HOST_LENGTH and _HOST_NAME.fullmatch(host):
        return Address(host, int(port))
    return Address(_literal(host, IPv4Address), int(port))


def _literal(host: str, family: type[IPv4Address] | type[IPv6Address]) -> str:
    try:
        return str(family(host))
    except ValueError:
        raise ValueError(_EXPECTED) from None
