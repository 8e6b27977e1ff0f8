"""What a gateway does again and again: it looks at Kafka's topics and ends, and ends late transactions.

One thread, and a bounded time for each look: while Kafka is away a look fails, is told once, and is tried
again.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.errors import PenstockError
from penstock.kafka.cluster import Cluster, Place
from penstock.kafka.ends import SWEPT_AT_ONCE, Ends
from penstock.kafka.topics import KafkaTopics

# Topics that others made or deleted are found after this time, what they changed in settings after the
# other.
TOPICS_S: Final = 2.0
SETTINGS_S: Final = 30.0
# The ends of partitions that nobody follows here are at most so old, for up to SWEPT_AT_ONCE of them.
ENDS_S: Final = 1.0
# First offsets change by retention alone.
STARTS_S: Final = 10.0
TRANSACTIONS_S: Final = 5.0
# The shortest pause between two looks.
PAUSE_S: Final = 0.25

logger = logging.getLogger(__name__)


class Looking:
    def __init__(
        self,
        cluster: Cluster,
        topics: KafkaTopics,
        ends: Ends,
        post: Callable[[Callable[[], None]], object],
        expire: Callable[[], object],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._ends = ends
        self._post = post
        self._expire = expire
        self._clock_s = clock_s
        self._soon = threading.Event()
        self._closing = False
        self._failing = ""
        self._due_s = dict.fromkeys(("topics", "settings", "ends", "starts", "transactions"), 0.0)
        topics.look_soon = self.soon
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-look", daemon=True)

    def first(self) -> None:
        """Before anything is served, in another thread than that of the loop. Raises KafkaTrouble."""
        self._on_loop(self._topics.refresh(settings_too=True))
        places = self._places()
        earliest, latest = self._cluster.earliest(places), self._cluster.latest(places)
        self._on_loop(partial(self._ends.swept, earliest, latest))

    def _on_loop(self, work: Callable[[], None]) -> None:
        """Waits until it is done there."""
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._post(run)
        done.wait()

    def start(self) -> None:
        self._thread.start()

    def soon(self) -> None:
        self._due_s["topics"] = 0.0
        self._soon.set()

    def _places(self) -> list[Place]:
        return [
            (topic.kafka_name, number)
            for topic in list(self._topics.by_name.values())
            if topic.creation is None
            for number in range(topic.info.partitions)
        ]

    def _run(self) -> None:
        while not self._closing:
            try:
                self._look()
                self._failing = ""
            except PenstockError as error:
                if str(error) != self._failing:
                    logger.warning("looking at Kafka: %s", error)
                self._failing = str(error)
            self._soon.wait(PAUSE_S)
            self._soon.clear()

    def _look(self) -> None:
        if self._due("topics", TOPICS_S):
            self._cluster.trouble.asking()
            self._post(self._topics.refresh(settings_too=self._due("settings", SETTINGS_S)))
        if self._due("ends", ENDS_S):
            self._sweep()
        if self._due("transactions", TRANSACTIONS_S):
            self._expire()

    def _due(self, what: str, every_s: float) -> bool:
        now_s = self._clock_s()
        if now_s < self._due_s[what]:
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _sweep(self) -> None:
        places = self._places()
        if places:
            self._cluster.trouble.asking()
        with_starts = self._due("starts", STARTS_S)
        for start in range(0, len(places), SWEPT_AT_ONCE):
            some = places[start : start + SWEPT_AT_ONCE]
            earliest = self._cluster.earliest(some) if with_starts else {}
            latest = self._cluster.latest(some)
            self._post(partial(self._told, earliest, latest))
        if len(places) > SWEPT_AT_ONCE:
            self._due_s["ends"] += ENDS_S * len(places) / SWEPT_AT_ONCE

    def _told(self, earliest: dict[Place, int], latest: dict[Place, int]) -> None:
        known = {topic.kafka_name for topic in self._topics.by_name.values()}
        # Kafka takes no end back, so it is another topic, or the answer is older than what is known.
        self._topics.doubt(
            place[0]
            for place, at in latest.items()
            if place[0] in known and at < self._ends.of(place).latest
        )
        self._ends.swept(
            {place: at for place, at in earliest.items() if place[0] in known},
            {place: at for place, at in latest.items() if place[0] in known},
        )

    def close(self) -> None:
        self._closing = True
        self._soon.set()
        if self._thread.is_alive():
            self._thread.join()
