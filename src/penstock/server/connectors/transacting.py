"""A transaction of one session at an outside broker: its calls one after the other.

All or nothing: after a write that failed the commit is refused, until the transaction is rolled back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from penstock.broker.outside import Failures, OutsideRoute
from penstock.log.batch.view import Headers
from penstock.log.engine import Pending
from penstock.server.connectors.connector import Connector, ConnectorError, Refused, Transaction

if TYPE_CHECKING:
    from penstock.server.connectors.route import Route


class RouteTransaction:
    def __init__(self, route: "Route", writer_id: str) -> None:
        self._route = route
        self._writer_id = writer_id
        self.endpoint = route.endpoint
        self._begun: tuple[Connector, Transaction] | None = None
        self._turn = asyncio.Lock()
        self._failure: str | None = None

    def write(
        self, route: OutsideRoute, values: list[bytes], headers: list[Headers] | None, size: int
    ) -> Pending[Failures]:
        # Of the same endpoint, so it is one of ours.
        other = cast("Route", route)
        other.take_room(size)
        pending = self._run(lambda: self._write(other, values, headers))
        pending.on_done(lambda _: other.give_room(size))
        return pending

    async def _write(
        self, route: "Route", values: list[bytes], headers: list[Headers] | None
    ) -> Failures:
        if self._failure is not None:
            raise Refused(f"an earlier write of the transaction failed: {self._failure}")
        try:
            if self._begun is None:
                self._begun = await self._begin()
            connector, transaction = self._begun
            writing = transaction.write(route.target, values, headers)
            failures: Failures = await route.link.guard(connector, writing)
        except ConnectorError as error:
            self._failure = str(error)
            route.counters.failed += len(values)
            raise
        if failures:
            self._failure = next(iter(failures.values()))
        route.count_written(len(values), failures)
        return failures

    async def _begin(self) -> tuple[Connector, Transaction]:
        async def begin(connector: Connector) -> tuple[Connector, Transaction]:
            return connector, await connector.begin(self._writer_id)

        return await self._route.link.call(begin)

    def commit(self) -> Pending[None]:
        return self._run(self._commit)

    async def _commit(self) -> None:
        if self._failure is not None:
            raise Refused(f"a write of the transaction failed, roll it back: {self._failure}")
        if self._begun is not None:
            connector, transaction = self._begun
            await self._route.link.guard(connector, transaction.commit())
            self._leave()

    def roll_back(self) -> Pending[None]:
        return self._run(self._roll_back)

    async def _roll_back(self) -> None:
        if self._begun is None:
            return
        connector, transaction = self._begun
        try:
            await self._route.link.guard(connector, transaction.rollback())
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._begun is not None:
            self._route.link.aside(self._begun[1].close)
            self._begun = None

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Pending[Any]:
        async def in_turn() -> Any:
            async with self._turn:
                return await work()

        pending: Pending[Any] = Pending()
        self._route.answer(pending, in_turn)
        return pending
