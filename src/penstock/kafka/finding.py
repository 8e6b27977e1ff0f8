"""One topic as Kafka has it now, for whoever heard of it elsewhere and does not find it here.

Looks at all topics come every two seconds (looking.py). Another gateway may name a topic before that: to a
task of Spark, or in a transaction that this one finishes. Nothing that is known here is forgotten by this.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.errors import PenstockError
from penstock.kafka.cluster import Cluster, KafkaAway
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.kafka.names import to_kafka
from penstock.kafka.topics import KafkaTopics, Look
from penstock.log.engine import TopicInfo
from penstock.log.errors import InvalidTopicName

# A broker may be behind the others by some milliseconds, or by a second where it is very busy: a topic that
# is expected is looked for this long.
EXPECTED_S: Final = 2.0
PAUSE_S: Final = 0.05
# Kafka's ids are random; none of ours is negative.
ANY_ID: Final = -1


class Finding:
    """Its calls wait for Kafka and for the event loop: they are for other threads, and any of them."""

    def __init__(
        self,
        cluster: Cluster,
        topics: KafkaTopics,
        metadata: KafkaMetadata,
        post: Callable[[Callable[[], None]], object],
        reach_s: float,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._metadata = metadata
        self._post = post
        self._reach_s = reach_s
        self._never = threading.Event()

    def find(self, name: str, *, expected: bool, topic_id: int = ANY_ID) -> TopicInfo | None:
        """`expected`: somebody has seen it, with this id, so it is looked for again where it is not there
        at once, or another one is. Raises KafkaTrouble."""
        until_s = time.monotonic() + (EXPECTED_S if expected else 0.0)
        while True:
            found = self._look(name)
            right = found is not None and topic_id in (ANY_ID, found.id)
            if right or time.monotonic() >= until_s:
                return found
            self._never.wait(PAUSE_S)

    def _look(self, name: str) -> TopicInfo | None:
        try:
            kafka_name = to_kafka(name)
        except InvalidTopicName:
            return None
        until_s = time.monotonic() + self._reach_s
        while time.monotonic() < until_s:
            self._wait_for_creation(name)
            # What gateways know of a topic beside Kafka is in the metadata.
            self._refresh()
            began = self._topics.changes
            look = self._look_once(kafka_name)
            if not look.counts:
                return None
            # Not where this gateway has changed a topic meanwhile: the look may be older than that.
            if self._on_loop(partial(self._topics.take_one, name, kafka_name, look, began)):
                known = self._topics.by_name.get(name)
                return None if known is None else known.info
        raise KafkaAway("look at a topic", "topics of this gateway change all the time", 0)

    def _look_once(self, kafka_name: str) -> Look:
        seen = self._cluster.describe([kafka_name])
        places = [(one, number) for one, at in seen.items() for number in range(at.partitions)]
        return Look(
            {one: at.partitions for one, at in seen.items()},
            seen,
            self._cluster.configurations(list(seen)),
            (self._cluster.earliest(places), self._cluster.latest(places)),
        )

    def _refresh(self) -> None:
        try:
            self._metadata.refresh().result(self._reach_s)
        except (PenstockError, TimeoutError) as error:
            raise KafkaAway("read its metadata", str(error), 0) from None

    def _wait_for_creation(self, name: str) -> None:
        """Of a topic that this gateway is making itself."""
        known = self._topics.by_name.get(name)
        creation = None if known is None else known.creation
        if creation is None:
            return
        try:
            creation.result(self._reach_s)
        except (PenstockError, TimeoutError):
            return  # the look tells what there is

    def _on_loop(self, work: Callable[[], bool]) -> bool:
        done = threading.Event()
        given: list[bool] = []

        def run() -> None:
            try:
                given.append(work())
            finally:
                done.set()

        self._post(run)
        if not done.wait(self._reach_s):
            raise KafkaAway("look at a topic", "the event loop does not answer", 0)
        return given == [True]
