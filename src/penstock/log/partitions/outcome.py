"""What a commit step has to tell. Values only."""

import logging
from collections.abc import Callable

from penstock.log.partitions.tokens import AppendToken

Callback = Callable[[], None]

logger = logging.getLogger(__name__)


class Outcome:
    """What a commit step has to tell: tokens that are done, watchers to wake."""

    def __init__(self, wakes: list[Callback] | None = None) -> None:
        self.tokens: list[AppendToken] = []
        self.wakes: list[Callback] = wakes if wakes is not None else []


def deliver(outcome: Outcome) -> None:
    """Tells everybody. Runs in the thread that the callbacks belong to."""
    for token in outcome.tokens:
        token.complete()
    for wake in outcome.wakes:
        try:
            wake()
        except Exception:  # one watcher's mistake must not silence the others
            logger.exception("a watcher failed")
