"""A subscription of one session to an outside broker.

It is made on the connection of its route. After an outage a reader that fetches is subscribed anew by its
next FETCH; one that is pushed messages ends with its session, and the client comes back.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.outside import Failures, Messages, ReaderTerms
from penstock.log.engine import Pending
from penstock.server.connectors.connector import Connector, ConnectorError, Outage, Subscription
from penstock.server.connectors.link import CLOSE_S

if TYPE_CHECKING:
    from penstock.server.connectors.route import Route


class RouteReader:
    def __init__(self, route: "Route", terms: ReaderTerms) -> None:
        self._route = route
        self._terms = terms
        # With the connection that it was made on.
        self._subscription: tuple[Connector, Subscription] | None = None
        self._closed = False
        self._taking: asyncio.Task[None] | None = None
        # A FETCH and an ACK may both find that there is none.
        self._subscribing = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self.opened: Pending[None] = Pending()
        self._opening = route.answer(self.opened, self._open)

    @property
    def in_flight(self) -> int:
        return 0 if self._subscription is None else self._subscription[1].in_flight

    async def _open(self) -> None:
        terms = self._terms
        if terms.pull and not self._route.abilities.fetch:
            # It is told so by its first FETCH; there is nothing to subscribe to.
            await self._route.link.call(_nothing)
        else:
            await self._subscribed()

    async def _subscribed(self) -> tuple[Connector, Subscription]:
        async with self._subscribing:
            if self._closed:
                raise Outage("the session is over")
            if self._subscription is None:
                found = await self._route.link.call(self._subscribe)
                if self._closed:
                    self._route.link.aside(found[1].close)
                    raise Outage("the session is over")
                self._subscription = found
            return self._subscription

    async def _subscribe(self, connector: Connector) -> tuple[Connector, Subscription]:
        return connector, await connector.subscribe(self._terms)

    # --- messages ---------------------------------------------------------------------------------

    def take(self, most: int, max_bytes: int, wait_s: float) -> Pending[Messages]:
        pending: Pending[Messages] = Pending()
        work = partial(self._take, most, max_bytes, wait_s)
        self._taking = self._route.answer(pending, work)
        return pending

    async def _take(self, most: int, max_bytes: int, wait_s: float) -> Messages:
        link = self._route.link
        connector, subscription = await self._subscribed()
        try:
            fetching = subscription.fetch(most, max_bytes, wait_s)
            messages: Messages = await link.guard(connector, fetching, wait_s)
        except ConnectorError:
            self._route.counters.failed += 1
            self._give_up()
            raise
        self._route.counters.read += len(messages)
        self._route.counters.failed += subscription.take_dropped()
        return messages

    def _give_up(self) -> None:
        if self._subscription is None:
            return
        subscription, settling = self._subscription[1], list(self._settling)
        self._subscription = None

        async def goodbye() -> None:
            if (
                settling
            ):  # what it gives back is not what is being acknowledged; each has a time limit
                await asyncio.wait(settling)
            await subscription.close()

        self._route.link.aside(goodbye, self._route.link.timeout_s + CLOSE_S)

    # --- ACK and NACK -----------------------------------------------------------------------------

    def settle(self, ids: list[bytes], *, good: bool) -> Pending[Failures]:
        pending: Pending[Failures] = Pending()
        task = self._route.answer(pending, partial(self._settle, self._subscription, ids, good))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return pending

    async def _settle(
        self, made: tuple[Connector, Subscription] | None, ids: list[bytes], good: bool
    ) -> Failures:
        """`made`: the subscription that gave them, where it is not lost: it may be closed meanwhile."""
        connector, subscription = made or await self._subscribed()
        settling: Any = subscription.ack(ids) if good else subscription.nack(ids)
        failures: Failures = await self._route.link.guard(connector, settling)
        self._route.counters.settled += len(ids) - len(failures)
        return failures

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._route.forget(self)
        self._opening.cancel()
        if self._taking is not None:
            self._taking.cancel()
        self._give_up()


async def _nothing(connector: Connector) -> None:
    return None
