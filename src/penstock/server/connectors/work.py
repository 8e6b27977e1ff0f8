"""From a coroutine to what a session waits for: a Pending that always completes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.log.engine import Pending
from penstock.server.connectors.connector import ConnectorError, Outage

logger = logging.getLogger(__name__)


def error_of(error: ConnectorError) -> BrokerError:
    code = Code.OUTSIDE_UNAVAILABLE if isinstance(error, Outage) else Code.OUTSIDE_REFUSED
    return BrokerError(code, str(error)).caused_by(error)


async def complete(pending: Pending[Any], work: Callable[[], Awaitable[Any]]) -> None:
    """Settles it with the outcome of the work. A task that is cancelled before its first step never gets
    here: `cancelled` is for its end."""
    try:
        value = await work()
    except ConnectorError as error:
        pending.settle(None, error_of(error))
    except Exception as error:  # a defect: the session gets an answer
        logger.exception("a route to an outside broker failed")
        pending.settle(None, from_exception(error))
    else:
        pending.settle(value, None)


def cancelled(pending: Pending[Any], task: "asyncio.Task[None]") -> None:
    if task.cancelled() and not pending.done:
        pending.settle(None, BrokerError(Code.SHUTTING_DOWN))
