"""The result of a commit step. Values only."""

import logging
from collections.abc import Callable

from penstock.log.partitions.tokens import AppendToken

Callback = Callable[[], None]

logger = logging.getLogger(__name__)


class Outcome:
    """The result of a commit step: tokens that are complete, watchers to wake."""

    def __init__(self, wakes: list[Callback] | None = None) -> None:
        self.tokens: list[AppendToken] = []
        self.wakes: list[Callback] = wakes if wakes is not None else []


def deliver(outcome: Outcome) -> None:
    """Runs all callbacks, in the thread that they belong to."""
    for token in outcome.tokens:
        token.complete()
    for wake in outcome.wakes:
        try:
            wake()
        except Exception:  # an exception of one watcher must not keep the others from being called
            logger.exception("a watcher failed")
