"""The topics that this gateway knows: Kafka's, as its last look found them, and those that it is making.

Changes are made by Kafka's administration in a thread and are known here when they are done. What other
gateways and Kafka's own tools change is found by the next look (`refresh`). Used by the event loop alone,
but for `refresh` and the work in threads.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import msgspec
from confluent_kafka import KafkaError

from penstock.kafka.cluster import Cluster, KafkaAway, KafkaRefused, KafkaTrouble, Place, Seen
from penstock.kafka.names import NameTaken, from_kafka, to_kafka
from penstock.kafka.topic_settings import (
    TOPICS,
    OwnSettings,
    check_for_kafka,
    joined,
    kafka_part,
    own_part,
)
from penstock.log.engine import TopicInfo
from penstock.log.errors import (
    InvalidSettings,
    InvalidTopicName,
    LogClosed,
    LogError,
    TopicExists,
    UnknownTopic,
)
from penstock.log.pending import Pending
from penstock.log.records import Metadata, RecordChange, Space
from penstock.log.settings import TopicSettings, check_partitions
from penstock.log.sorted_names import SortedNames
from penstock.names import flaw

# A topic that is being made has no id yet.
NO_ID: Final = 0
# More than are deleted in the moments until every broker has heard of it.
DELETED_KEPT: Final = 1_000
# How often and how soon a topic that was just made is looked for: ten seconds in all.
DESCRIBE_TRIES: Final = 200
DESCRIBE_PAUSE_S: Final = 0.05
# Records of the server's own topics may have times that are to come, such as when a message is due. Kafka
# takes no more than an hour by default; a Kafka before 3.6 takes any time, and does not know the setting.
OWN_TOPICS: Final = "_"
ANY_TIME: Final = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Topic:
    """`creation`: until Kafka has made it. `waiting`: what to do then, with the error if it has not."""

    info: TopicInfo
    kafka_name: str
    configuration: dict[str, str] = field(default_factory=dict)
    creation: "Pending[int] | None" = None
    waiting: list[Callable[[BaseException | None], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at Kafka found: numbers of partitions of all topics, and more of some."""

    counts: dict[str, int]
    seen: dict[str, Seen]
    configurations: dict[str, dict[str, str]]
    # Where the partitions of topics begin and end that are new here.
    ends: tuple[dict[Place, int], dict[Place, int]]


class KafkaTopics:
    def __init__(
        self,
        cluster: Cluster,
        metadata: Metadata,
        executor: Executor,
        post: Callable[[Callable[[], None]], object],
        defaults: TopicSettings,
        clock_us: Callable[[], int],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pause = pause
        self._cluster = cluster
        self._metadata = metadata
        self._executor = executor
        self._post = post
        self._defaults = defaults
        self._clock_us = clock_us
        self._own = Space(metadata, TOPICS, OwnSettings)
        self._own_by_name = {one.name: one.value for one in self._own.all()}
        self.by_name: dict[str, Topic] = {}
        self._names = SortedNames()
        self.partition_count = 0
        self.watchers: list[Callable[[str], None]] = []
        # Told of topics that are gone, by their name in Kafka and their partitions.
        self.gone: Callable[[Topic], None] = lambda topic: None
        # Told in a thread of a topic that this gateway has made, before anything is written to it.
        self.made: Callable[[str], None] = lambda kafka_name: None
        self.ends_found: Callable[[dict[Place, int], dict[Place, int]], None] = lambda *ends: None
        # Called when there may be a topic that no look has found yet.
        self.look_soon: Callable[[], None] = lambda: None
        # Not in the last look, though known.
        self._missed: set[str] = set()
        # Ids of topics that were deleted here lately.
        self._deleted: deque[int] = deque(maxlen=DELETED_KEPT)
        # Creations and deletions of this gateway: a look that began before one knows the old state.
        self.changes = 0
        # Names of Kafka, see `doubt`.
        self._doubted: frozenset[str] = frozenset()
        metadata.watch(TOPICS, self._follow)

    def doubt(self, kafka_names: Iterable[str]) -> None:
        """These may be others than before under the same names: the next look asks for their ids."""
        self._doubted = self._doubted.union(kafka_names)

    def get(self, name: str) -> Topic:
        topic: Topic | None = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def names(self, after: str | None, limit: int) -> list[str]:
        return self._names.page(after, limit)

    # --- looking ----------------------------------------------------------------------------------

    def refresh(self, *, settings_too: bool) -> Callable[[], None]:
        """Looks at Kafka, in any thread, and gives what the event loop has to do with it."""
        began = self.changes
        counts = self._cluster.partition_counts()
        known = {one.kafka_name: one.info.partitions for one in list(self.by_name.values())}
        doubted, self._doubted = self._doubted, frozenset()
        # One that was missed and is there again may be another one of the same name.
        doubted |= {to_kafka(name) for name in self._missed.copy()}
        changed = [
            name for name, count in counts.items() if known.get(name) != count or name in doubted
        ]
        described = list(counts) if settings_too else changed
        seen = self._cluster.describe(described)
        places = [(name, number) for name in changed for number in range(counts[name])]
        ends = self._cluster.earliest(places), self._cluster.latest(places)
        look = Look(counts, seen, self._cluster.configurations(described), ends)
        return lambda: self._take(look, began)

    def _take(self, look: Look, began: int) -> None:
        if began != self.changes:
            # Something of this gateway was made or deleted meanwhile: another look has it.
            self.look_soon()
            return
        self.ends_found(*look.ends)
        for kafka_name in look.counts:
            name = from_kafka(kafka_name)
            topic = self.by_name.get(name)
            if topic is not None and topic.creation is not None:
                continue
            self._see(name, kafka_name, look, topic)
        missed = {
            name
            for name, one in self.by_name.items()
            if one.creation is None and one.kafka_name not in look.counts
        }
        # A broker may be behind the others, and know less than was known before: two looks decide.
        for name in missed & self._missed:
            self._forget(self.by_name[name])
        self._missed = missed - self._missed

    def take_one(self, name: str, kafka_name: str, look: Look, began: int) -> bool:
        """What a look at this topic alone has found. False where this gateway has changed something since,
        or is making the topic."""
        topic = self.by_name.get(name)
        if began != self.changes or (topic is not None and topic.creation is not None):
            return False
        record = self._metadata.get(TOPICS, name)
        if record is not None:  # its feed may come a moment later
            self._own_by_name[name] = msgspec.json.decode(record.value, type=OwnSettings)
        self.ends_found(*look.ends)
        self._see(name, kafka_name, look, topic)
        # Another one of the same name has taken them along.
        self.ends_found(*look.ends)
        return True

    def _see(self, name: str, kafka_name: str, look: Look, topic: Topic | None) -> None:
        seen = look.seen.get(kafka_name)
        if topic is None and (seen is None or seen.id in self._deleted):
            return  # it was deleted between two questions, or here, and that broker has not heard of it
        if topic is not None and seen is not None and topic.info.id != seen.id:
            self._forget(topic)  # another one of the same name
            topic = None
        configuration = look.configurations.get(kafka_name)
        if topic is not None and configuration is None:
            configuration = topic.configuration
        before = None if topic is None else topic.info
        topic_id = seen.id if seen is not None else before.id if before is not None else NO_ID
        self._put(name, kafka_name, topic_id, look.counts[kafka_name], configuration or {}, topic)
        if self.by_name[name].info != before:
            self._tell(name)

    def _put(
        self,
        name: str,
        kafka_name: str,
        topic_id: int,
        partitions: int,
        configuration: dict[str, str],
        topic: Topic | None,
    ) -> None:
        own = self._own_by_name.get(name)
        if own is not None and own.id not in (NO_ID, topic_id):
            own = None  # of a topic that was deleted
        settings = joined(configuration, own, self._defaults)
        created_us = 0 if own is None else own.created_us
        info = TopicInfo(topic_id, name, partitions, settings, created_us)
        if topic is None:
            self.by_name[name] = Topic(info, kafka_name, configuration)
            self._names.add(name)
            self.partition_count += partitions
            return
        self.partition_count += partitions - topic.info.partitions
        topic.info, topic.configuration = info, configuration

    def _forget(self, topic: Topic) -> None:
        if self.by_name.get(topic.info.name) is topic:
            del self.by_name[topic.info.name]
            self._names.discard(topic.info.name)
            self.partition_count -= topic.info.partitions
            self.gone(topic)

    def _tell(self, name: str) -> None:
        for watcher in self.watchers:
            watcher(name)

    def _follow(self, changes: Sequence[RecordChange]) -> None:
        """Settings that another gateway has written."""
        for change in changes:
            if change.value is None:
                self._own_by_name.pop(change.name, None)
                continue
            self._own_by_name[change.name] = msgspec.json.decode(change.value, type=OwnSettings)
            topic = self.by_name.get(change.name)
            if topic is None:
                self.look_soon()
            elif topic.creation is None:
                before = topic.info
                self._put(
                    change.name,
                    topic.kafka_name,
                    before.id,
                    before.partitions,
                    topic.configuration,
                    topic,
                )
                if topic.info != before:
                    self._tell(change.name)

    # --- changes ----------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, settings: TopicSettings) -> Topic:
        """Known at once, made in a thread. Raises InvalidTopicName, InvalidSettings, TopicExists."""
        if (reason := flaw(name)) is not None:
            raise InvalidTopicName(name, reason)
        check_for_kafka(settings)
        check_partitions(partitions)
        if name in self.by_name:
            raise TopicExists(name)
        info = TopicInfo(NO_ID, name, partitions, settings, self._clock_us())
        topic = Topic(info, to_kafka(name), kafka_part(settings), creation=Pending())
        self.by_name[name] = topic
        self._names.add(name)
        self.partition_count += partitions
        self.changes += 1
        self._in_thread(lambda: self._make(topic), lambda *made: self._made(topic, *made))
        self._tell(name)
        return topic

    def _make(self, topic: Topic) -> Seen:
        info = topic.info
        try:
            self._create(topic)
        except KafkaRefused as error:
            if error.code == KafkaError.TOPIC_ALREADY_EXISTS:
                return self._seen(topic.kafka_name)  # another gateway was first
            if error.code == KafkaError.TOPIC_EXCEPTION:
                raise NameTaken(info.name, f"Kafka says: {error.reason}") from None
            raise
        found = self._seen(topic.kafka_name)
        self.made(topic.kafka_name)
        own = own_part(info.settings, found.id, info.created_us)
        self._metadata.change([self._own.put(info.name, own)]).result()
        return found

    def _create(self, topic: Topic) -> None:
        configuration, partitions = topic.configuration, topic.info.partitions
        if topic.kafka_name.startswith(OWN_TOPICS):
            try:
                self._cluster.create(topic.kafka_name, partitions, {**configuration, **ANY_TIME})
                return
            except KafkaRefused as error:
                if error.code != KafkaError.INVALID_CONFIG:
                    raise
        self._cluster.create(topic.kafka_name, partitions, configuration)

    def _seen(self, kafka_name: str) -> Seen:
        """A topic that was just made. Not every broker knows it at once. Raises KafkaTrouble."""
        for _ in range(DESCRIBE_TRIES):
            found = self._cluster.describe([kafka_name]).get(kafka_name)
            if found is not None:
                return found
            self._pause(DESCRIBE_PAUSE_S)
        raise KafkaAway(f"describe topic {kafka_name!r}", "it was made, and is not known yet", 0)

    def _made(self, topic: Topic, seen: Seen | None, error: BaseException | None) -> None:
        self.changes += 1
        creation, topic.creation = topic.creation, None
        waiting, topic.waiting = topic.waiting, []
        if error is not None:
            self._forget(topic)
        elif seen is not None:
            self.partition_count += seen.partitions - topic.info.partitions
            topic.info = as_made(topic.info, seen)
            if topic.info.name in self._own_by_name:  # another gateway may have been first
                name, configuration = topic.info.name, topic.configuration
                self._put(name, topic.kafka_name, seen.id, seen.partitions, configuration, topic)
            self._tell(topic.info.name)
        for one in waiting:
            one(error)
        if creation is not None:
            creation.settle(0, error)

    def change(
        self, name: str, changes: dict[str, object], partitions: int | None
    ) -> Pending[object]:
        """Raises UnknownTopic, InvalidSettings."""
        topic = self.get(name)
        settings = topic.info.settings.changed(changes)
        check_for_kafka(settings)
        count = topic.info.partitions
        if partitions is not None and partitions < count:
            reason = f"it has {count}, and Kafka takes none away"
            raise InvalidSettings("partitions", partitions, reason)
        pending: Pending[object] = Pending()

        def done(_: object, error: BaseException | None) -> None:
            self.changes += 1
            if error is None and self.by_name.get(name) is topic:
                configuration = {**topic.configuration, **kafka_part(settings)}
                count = partitions if partitions is not None else topic.info.partitions
                self._put(name, topic.kafka_name, topic.info.id, count, configuration, topic)
                self._tell(name)
            pending.settle((topic.info.partitions, topic.info.settings), error)

        def start(error: BaseException | None) -> None:
            if error is not None:
                pending.settle(None, error)
                return
            self._in_thread(lambda: self._apply(topic, settings, partitions), done)

        if topic.creation is None:
            start(None)
        else:
            topic.waiting.append(start)
        return pending

    def _apply(self, topic: Topic, settings: TopicSettings, partitions: int | None) -> None:
        before, after = kafka_part(topic.info.settings), kafka_part(settings)
        different = {key: value for key, value in after.items() if before.get(key) != value}
        if different:
            self._cluster.configure(topic.kafka_name, different)
        own = own_part(settings, topic.info.id, topic.info.created_us)
        self._metadata.change([self._own.put(topic.info.name, own)]).result()
        if partitions is not None and partitions > topic.info.partitions:
            self._cluster.add_partitions(topic.kafka_name, partitions)

    def delete(self, name: str) -> Pending[object]:
        topic = self.get(name)
        pending: Pending[object] = Pending()

        def work() -> None:
            try:
                self._cluster.delete(topic.kafka_name)
            except KafkaRefused as error:
                if error.code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            self._metadata.change([self._own.delete(name)]).result()

        def done(_: object, error: BaseException | None) -> None:
            self.changes += 1
            if error is None:
                self._deleted.append(topic.info.id)
                self._forget(topic)
            pending.settle(None, error)

        def start(error: BaseException | None) -> None:
            if error is not None:
                pending.settle(None, error)
                return
            self.changes += 1
            self._in_thread(work, done)

        if topic.creation is None:
            start(None)
        else:
            topic.waiting.append(start)
        return pending

    def _in_thread(
        self,
        work: Callable[[], object],
        done: "Callable[..., None]",
    ) -> None:
        def run() -> None:
            value: object = None
            error: BaseException | None = None
            try:
                value = work()
            except (LogError, KafkaTrouble, ValueError) as failure:
                error = failure
            except Exception as failure:
                logger.exception("a change of a topic failed")
                error = failure
            self._post(lambda: done(value, error))

        try:
            self._executor.submit(run)
        except RuntimeError:  # an executor raises it after its shutdown, and only then
            done(None, LogClosed())


def as_made(info: TopicInfo, seen: Seen) -> TopicInfo:
    """As Kafka made it; where another gateway was first, with that one's number of partitions."""
    return TopicInfo(seen.id, info.name, seen.partitions, info.settings, info.created_us)
