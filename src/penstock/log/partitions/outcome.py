"""What a commit step has to tell. Values only."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.log.partitions.tokens import AppendToken

Callback = Callable[[], None]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a commit step has to tell: tokens that are done, watchers to wake."""

    tokens: list[AppendToken] = field(default_factory=list)
    wakes: list[Callback] = field(default_factory=list)


def deliver(outcome: Outcome) -> None:
    """Tells everybody. Runs in the thread that the callbacks belong to."""
    for token in outcome.tokens:
        token.complete()
    for wake in outcome.wakes:
        try:
            wake()
        except Exception:  # one watcher's mistake must not silence the others
            logger.exception("a watcher failed")
