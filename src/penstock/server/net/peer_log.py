"""Log lines about errors of peers, at a limited rate, so that a scanner does not fill the log."""

import logging
from collections.abc import Callable
from typing import Final

# One line per address in this time.
PEER_LOG_INTERVAL_S: Final = 60.0
# Addresses remembered for that. Past it the one that was logged longest ago is forgotten.
PEER_LOG_ADDRESSES: Final = 1024

logger = logging.getLogger(__name__)


class PeerLog:
    """At most one line per address and minute."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._last: dict[str, float] = {}

    def note(self, address: str, peer: str, what: str, defect: BaseException | None = None) -> None:
        """`defect`: a bug of the server that the peer ran into; it is logged with its traceback."""
        now = self._clock_s()
        last = self._last.get(address)
        if last is not None and now - last < PEER_LOG_INTERVAL_S:
            return
        self._last.pop(address, None)
        if len(self._last) >= PEER_LOG_ADDRESSES:
            del self._last[next(iter(self._last))]
        self._last[address] = now
        logger.warning("%s: %s", peer, what, exc_info=defect)
