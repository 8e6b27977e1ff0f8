"""Felix and Fujin without a log: their real sessions and splitters over a broker that stores nothing.

What is left is the transport, the frames and their answers, which is what a sink of another library does.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.broker.access.access import Principal
from penstock.broker.counters import ProtocolCounters
from penstock.broker.records import Records
from penstock.log.partitions.tokens import AppendToken
from penstock.server.net.quic.connection import MakeConnectionSession
from penstock.sessions.felix.connection import FelixConnection
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.fujin.connection import FujinConnection
from penstock.sessions.fujin.options import FujinOptions
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import QuicConnection

SOMEBODY = Principal("bench", "admin")
THERE = object()


class NoLog:
    """As much of the broker's port as a publish needs. Everything is durable at once."""

    def __init__(self) -> None:
        self.counters = {"felix": ProtocolCounters(), "fujin": ProtocolCounters()}
        self._loop = asyncio.get_running_loop()

    def topic(self, topic: str) -> object:
        return THERE

    def has_rights(self, principal: Principal) -> bool:
        return True

    def require(self, principal: Principal, operation: object, name: str) -> None:
        """Everybody may."""

    def publish(
        self, principal: Principal, topic: str, partition: int | None, records: Records
    ) -> AppendToken:
        token = AppendToken(len(records.values))
        token.complete()
        return token

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, call)

    def leave(self, user: object) -> None:
        """Nothing is kept of anybody."""


def felix() -> MakeConnectionSession:
    port: Any = NoLog()

    def make(connection: QuicConnection) -> FelixConnection:
        return FelixConnection(port, connection, SessionLimits(), SOMEBODY, FelixOptions())

    return make


def fujin() -> MakeConnectionSession:
    port: Any = NoLog()

    def make(connection: QuicConnection) -> FujinConnection:
        return FujinConnection(port, connection, SessionLimits(), SOMEBODY, FujinOptions())

    return make
