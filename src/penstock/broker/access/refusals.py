"""Operations that were refused for lack of a right: counted, and logged at a limited rate.

At most one line per principal and minute, with the number of refusals since the last. Decides nothing.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

# Often enough to see that it goes on, seldom enough that a client in a loop does not fill the log.
INTERVAL_US: Final = 60 * 1_000_000

logger = logging.getLogger(__name__)


class Refusals:
    """`counts` by the name of the operation. Principals are as many as there are keys."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock_us = clock_us
        self._last_line_us: dict[str, int] = {}
        self._since_line: Counter[str] = Counter()

    def note(self, who: str, operation: str, text: str) -> None:
        """`text` is the line that the peer gets."""
        self.counts[operation] += 1
        self._since_line[who] += 1
        now_us = self._clock_us()
        last_us = self._last_line_us.get(who)
        if last_us is None or now_us - last_us >= INTERVAL_US:
            self._last_line_us[who] = now_us
            logger.warning("refused, %d since the last such line: %s", self._since_line[who], text)
            self._since_line[who] = 0
