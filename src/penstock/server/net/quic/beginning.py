"""First packets of unknown peers: who is refused, who must prove an address first (Retry), who may begin.

Bounds what a flood of first packets can cost. Sends nothing and opens nothing itself.
"""

import os
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.quic.events import ID_BYTES
from penstock.quic.link import Address
from penstock.server.net.quic import aioquic_connection
from penstock.server.net.quic.packets import (
    LEAST_INITIAL_BYTES,
    SUPPORTED_VERSIONS,
    LongHeader,
    RetryTokens,
    version_negotiation,
)
from penstock.server.net.quic.port import EngineSettings, Statistics

SECRET_BYTES: Final = 32


class Beginning(NamedTuple):
    """A connection that may begin: the id that the client chose first, and that of the Retry, if there was
    one."""

    first_id: bytes
    retry_id: bytes | None


class Beginnings:
    """`accepts`: False once the server stops."""

    def __init__(
        self, settings: EngineSettings, statistics: Statistics, clock_s: Callable[[], float]
    ) -> None:
        self.accepts = True
        self._settings = settings
        self._statistics = statistics
        self._tokens = RetryTokens(secrets.token_bytes(SECRET_BYTES), clock_s)

    def decide(
        self, header: LongHeader, size: int, address: Address, connections: int, half_open: int
    ) -> Beginning | bytes | None:
        """Bytes: a datagram to answer with. None: it is dropped, and counted."""
        statistics, settings = self._statistics, self._settings
        if size < LEAST_INITIAL_BYTES:
            statistics.drop("small_initial")
            return None
        if header.version not in SUPPORTED_VERSIONS:
            statistics.drop("version")
            # An answer to a version negotiation could go on forever.
            return version_negotiation(header, secrets.randbelow(0x80)) if header.version else None
        if not header.initial or not self.accepts:
            statistics.drop("unknown_connection")
            return None
        if connections >= settings.connections:
            statistics.drop("connections")
            return None
        first_id, retry_id = header.destination, None
        where = f"{address[0]} {address[1]}"
        proven = self._tokens.first_id(header.token, where, header.destination)
        if proven is not None:
            first_id, retry_id = proven, header.destination
        elif half_open >= settings.retry_from:
            return self._retry(header, where)
        if half_open >= settings.half_open:
            statistics.drop("half_open")
            return None
        return Beginning(first_id, retry_id)

    def _retry(self, header: LongHeader, where: str) -> bytes:
        retry_id = os.urandom(ID_BYTES)
        token = self._tokens.make(where, header.destination, retry_id)
        self._statistics.retries_sent += 1
        return aioquic_connection.retry_packet(header, retry_id, token)
