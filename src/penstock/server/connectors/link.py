"""The connection of a route that its writers share: opened by the first call, opened anew after an outage.

    state     a call comes                                  the broker fails
    closed    opens; all calls meanwhile wait for it        -> waiting
    open      is carried out                                -> waiting
    waiting   fails at once until the wait is over, then    the next wait is twice as long,
              opens                                         up to BACKOFF_MOST_S
    over      fails at once

Every call has a time limit, so that no session waits for ever. Knows no library and no session.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.broker.outside import RouteCounters
from penstock.server.connectors.connector import Connector, ConnectorError, Outage, Refused, words

# Between two attempts to connect: a broker that restarts is found soon, one that is gone costs little.
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MOST_S: Final = 5.0
# A connection that is given up gets this long to say goodbye.
CLOSE_S: Final = 2.0
# Of one route: an outage that comes and goes is counted, and not logged each time.
LOG_EVERY_S: Final = 10.0

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class Link:
    """`make` gives a connector that is not open. `kind`: for what people read."""

    def __init__(
        self,
        name: str,
        kind: str,
        make: Callable[[], Connector],
        timeout_s: float,
        counters: RouteCounters,
    ) -> None:
        self.name = name
        self.kind = kind
        self.timeout_s = timeout_s
        self.counters = counters
        self._make = make
        self._open: Connector | None = None
        self._opening = asyncio.Lock()
        self._backoff_s = 0.0
        self._not_before_s = 0.0
        self._last_failure = ""
        self._over = False
        self._logged_s: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(
        self, work: Callable[[Connector], Awaitable[Result]], wait_s: float = 0.0
    ) -> Result:
        """Carries it out on the open connection. Raises Refused, or Outage: then the connection is given
        up. `wait_s`: that the work takes by itself."""
        connector = await self._connected()
        try:
            return await self.guard(connector, work(connector), wait_s)
        except Outage as outage:
            self._lost(connector, outage)
            raise

    async def guard(
        self, connector: Connector, work: Awaitable[Result], wait_s: float = 0.0
    ) -> Result:
        """Gives the work of a connection its time limit, and its errors our names."""
        limit_s = self.timeout_s + wait_s
        try:
            async with asyncio.timeout(limit_s):
                result = await work
        except ConnectorError as error:
            if isinstance(error, Outage):
                self.down(error)
            raise
        except TimeoutError as error:
            # Of ours, or of the library.
            raise self.down(Outage(f"{self.kind}: no answer within {limit_s:g} s")) from error
        except connector.refusals as error:
            raise Refused(f"{self.kind}: {words(error)}") from error
        except connector.outages as error:
            raise self.down(Outage(f"{self.kind}: {words(error)}")) from error
        except Exception as error:  # a defect, here or in the library: the session gets an answer
            logger.exception("route %s: an error that is not expected", self.name)
            raise self.down(Outage(f"{self.kind}: internal error")) from error
        self._up()
        return result

    async def close(self) -> None:
        self._over = True
        if self._open is not None:
            self._drop(self._open)
            self._open = None
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_S)

    # --- the state --------------------------------------------------------------------------------

    async def _connected(self) -> Connector:
        async with self._opening:
            if self._open is not None:
                return self._open
            loop = asyncio.get_running_loop()
            if self._over:
                raise Outage(f"{self.kind}: the server is shutting down")
            if loop.time() < self._not_before_s:
                raise Outage(self._last_failure)
            connector = self._make()
            try:
                await self.guard(connector, connector.open())
            except ConnectorError as error:
                self._wait_longer(error)
                self._drop(connector)
                raise error if isinstance(error, Outage) else Outage(str(error)) from error
            except asyncio.CancelledError:
                self._drop(connector)
                raise
            if self._over:
                self._drop(connector)
                raise Outage(f"{self.kind}: the server is shutting down")
            self._open = connector
            self._backoff_s = 0.0
            return connector

    def _wait_longer(self, error: ConnectorError) -> None:
        if not isinstance(error, Outage):  # a wrong password, for example
            self.down(Outage(str(error)))
        self._last_failure = str(error)
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_FIRST_S), BACKOFF_MOST_S)
        self._not_before_s = asyncio.get_running_loop().time() + self._backoff_s

    def _lost(self, connector: Connector, outage: Outage) -> None:
        if self._open is connector:
            self._open = None
            self._last_failure = str(outage)
            self._drop(connector)

    def _drop(self, connector: Connector) -> None:
        """Closes it aside: what does not answer may not answer a goodbye either."""
        self.aside(connector.close)

    def aside(self, goodbye: Callable[[], Awaitable[None]], limit_s: float = CLOSE_S) -> None:
        """Runs a goodbye whose outcome matters to nobody."""

        async def run() -> None:
            try:
                async with asyncio.timeout(limit_s):
                    await goodbye()
            except Exception as error:
                logger.debug("route %s: while closing: %s", self.name, words(error))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- up and down ------------------------------------------------------------------------------

    def down(self, outage: Outage) -> Outage:
        """Counts the beginning of an outage, and gives it back to be raised."""
        counters = self.counters
        if counters.up is False or self._over:
            return outage
        counters.up = False
        counters.outages += 1
        now_s = asyncio.get_running_loop().time()
        if self._logged_s is None or now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            logger.warning("route %s is down: %s", self.name, outage)
        return outage

    def _up(self) -> None:
        if self.counters.up is False and self._logged_s is not None:
            logger.info("route %s is up again", self.name)
        self.counters.up = True
