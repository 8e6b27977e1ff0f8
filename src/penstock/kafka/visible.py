"""When records of a transaction can be read: a moment after its commit, when Kafka has written its end into
every partition. Whoever committed waits for it here, so that it can read what it wrote. Commits nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.kafka.cluster import Cluster, KafkaTrouble, Place
from penstock.kafka.ends import Ends

# Kafka takes some milliseconds. It takes longer only where another transaction in the same partition is
# open: then nobody can read on, and there is nothing to wait for.
VISIBLE_S: Final = 0.5
PAUSE_S: Final = 0.002

logger = logging.getLogger(__name__)


class Visible:
    """Called in threads of transactions."""

    def __init__(
        self,
        cluster: Cluster,
        ends: Ends,
        post: Callable[[Callable[[], None]], object],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._ends = ends
        self._post = post
        self._clock_s = clock_s
        self._never = threading.Event()

    def wait(self, places: frozenset[Place]) -> None:
        """Partitions that a transaction of this gateway has written to, after its commit."""
        until_s = self._clock_s() + VISIBLE_S
        try:
            stored = self._cluster.stored(places)
            latest = self._cluster.latest(places)
            while self._clock_s() < until_s and any(
                latest.get(place, end) < end for place, end in stored.items()
            ):
                self._never.wait(PAUSE_S)
                latest = self._cluster.latest(places)
        except KafkaTrouble as error:  # what is committed stays so
            logger.debug("the ends behind a transaction: %s", error)
            return
        self._post(lambda: self._ends.swept({}, latest))
