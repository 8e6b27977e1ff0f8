"""The settings of every client: address, time limits, reconnects, and its environment.

Clock, sleep and randomness are passed in here, so that tests never wait. Opens no sockets.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

MAX_PORT: Final = 65_535
DEFAULT_PORT: Final = 9092
# Long enough for a flush on a busy disk, short enough for a person who waits.
DEFAULT_TIMEOUT_S: Final = 10.0
# 2 ** 20 times any base is above any cap; more would only make huge numbers.
_MAX_DOUBLINGS: Final = 20


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`host` is a name or an address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_server(text: str, default_port: int = DEFAULT_PORT) -> ServerAddress:
    """ "host", "host:port" or "[ipv6]:port"; the port is 9092 if none is given, or the one named."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        valid = bool(bracket) and (not rest or rest.startswith(":"))
    else:
        host, colon, port = text.partition(":")
        valid = ":" not in port and bool(port or not colon)
    if port and not (port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))):
        valid = False
    number = int(port) if valid and port else default_port
    if not valid or not host or not 0 < number <= MAX_PORT:
        raise ValueError(
            f"{text!r} is no server address, write host:port such as 127.0.0.1:{default_port}"
        )
    return ServerAddress(host, number)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with jitter: between half and all of base x 2^attempt, never above the cap.

    The jitter keeps a thousand clients from coming back in the same moment.
    """

    base_s: float = 0.1
    cap_s: float = 10.0

    def delay_s(self, attempt: int, random: Callable[[], float]) -> float:
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))
        return float(ceiling * (0.5 + 0.5 * random()))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`random` gives numbers from 0 up to 1; `clock_s` counts seconds from anywhere."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    clock_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`attempts`: how often a lost connection is tried again in a row; None is without end, 0 never.

    `tls` makes the connection TLS; the certificate must be for the host of the address.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    attempts: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    tls: ssl.SSLContext | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)
