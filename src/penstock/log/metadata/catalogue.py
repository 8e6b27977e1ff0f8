"""The topics of a data directory: names, settings, partitions, and their records in the metadata.

Creates, changes and deletes. A delete gives the space back in the background; one that a crash
interrupts goes on at the next start. Does not read or write records.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from penstock.errors import PenstockError
from penstock.log.engine import TopicInfo
from penstock.log.errors import (
    InvalidSettings,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.descriptions import Description, write_description
from penstock.log.metadata.kinds import (
    COUNTERS,
    DELETIONS,
    LAST_TOPIC_ID,
    OFFSETS,
    TOPICS,
    DeletionRecord,
    TopicRecord,
)
from penstock.log.partitions.partition import Partition
from penstock.log.pending import Pending, Promise
from penstock.log.records import ABSENT, PRESENT, DeleteAll, Metadata, Space, prefix_of
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import FileSystem
from penstock.log.storage.names import TOPICS_DIRECTORY, check_topic_name, directory_name

# Partitions of one topic: each costs memory and, once written, files. Ten thousand is what one
# machine serves with 1,024 descriptors.
MAX_PARTITIONS = 10_000

# Descriptions of idle topics that one round of maintenance looks at: about 30 ms of a thread.
DESCRIBED_AT_ONCE = 1_000

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Topic:
    info: TopicInfo
    directory: str
    partitions: list[Partition]
    # Of its record; 0 until it is durable.
    version: int = 0
    # The metadata change that makes the topic durable, until it is.
    creation: Pending[int] | None = field(default=None)
    # The newest change of its settings: the next one waits for it, so that both count.
    changing: Pending[object] | None = field(default=None)
    removal: Pending[int] | None = field(default=None)
    # What the description beside its records says; None when nobody looked yet.
    described: TopicInfo | None = field(default=None)

    def record(self) -> TopicRecord:
        info = self.info
        return TopicRecord(info.id, self.directory, info.partitions, info.settings, info.created_us)


class Catalogue:
    """Changed on one thread, that of the engine's completions; any thread may look topics up."""

    def __init__(
        self,
        root: str,
        files: FileSystem,
        metadata: Metadata,
        open_partition: Callable[[str, TopicSettings], Partition],
        clock_us: Callable[[], int],
    ) -> None:
        self._root = f"{root}/{TOPICS_DIRECTORY}"
        self._files = files
        self._metadata = metadata
        self._records = Space(metadata, TOPICS, TopicRecord)
        self._deletions = Space(metadata, DELETIONS, DeletionRecord)
        self._counters = Space(metadata, COUNTERS, int)
        self._open_partition = open_partition
        self._clock_us = clock_us
        self._topics: dict[str, Topic] = {}
        self.partition_count = 0  # of all topics together
        self._directories: set[str] = set()
        # Topics with records whose descriptions may be missing or old, and those of the start that
        # are still to be looked at; None before the first look.
        self._undescribed: set[Topic] = set()
        self._unseen: list[Topic] | None = None
        self._removals: list[threading.Thread] = []
        self._removing = threading.Lock()
        self._files.make_directory(self._root)
        self._finish_deletions()
        self._load()

    def _load(self) -> None:
        last = self._counters.get(LAST_TOPIC_ID)
        self._last_id = last.value if last is not None else 0
        for one in self._records.all():
            record = one.value
            info = TopicInfo(
                record.id, one.name, record.partitions, record.settings, record.created_us
            )
            topic = self._add(info, record.directory, self._open_partitions(info, record.directory))
            topic.version = one.version
        for orphan in set(self._files.list(self._root)) - self._directories:
            logger.warning(
                "%s/%s belongs to no topic in the metadata; left alone", self._root, orphan
            )

    def _open_partitions(self, info: TopicInfo, directory: str) -> list[Partition]:
        path = f"{self._root}/{directory}"
        return [
            self._open_partition(f"{path}/{number}", info.settings)
            for number in range(info.partitions)
        ]

    def _add(self, info: TopicInfo, directory: str, partitions: list[Partition]) -> Topic:
        topic = Topic(info, directory, partitions)
        self._topics[info.name] = topic
        self.partition_count += info.partitions
        self._directories.add(directory)
        return topic

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def partition(self, name: str, number: int) -> Partition:
        topic = self.get(name)
        if not 0 <= number < len(topic.partitions):
            raise UnknownPartition(name, number)
        return topic.partitions[number]

    def has(self, partition: Partition) -> bool:
        """Whether it is still that of a topic."""
        return any(partition in topic.partitions for topic in self)

    def create(self, name: str, partitions: int, settings: TopicSettings) -> Topic:
        """Raises InvalidTopicName, InvalidSettings, TopicExists."""
        check_topic_name(name)
        settings.check()
        _check_partitions(partitions)
        if name in self._topics:
            raise TopicExists(name)
        directory = self._free_directory(name)
        self._last_id += 1
        info = TopicInfo(self._last_id, name, partitions, settings, self._clock_us())
        topic = Topic(info, directory, self._open_partitions(info, directory))
        creation = self._metadata.change(
            (
                self._records.put(name, topic.record(), ABSENT),
                self._counters.put(LAST_TOPIC_ID, info.id),
            )
        )
        self._topics[name] = topic
        self.partition_count += partitions
        self._directories.add(directory)
        topic.creation = creation
        creation.add_done_callback(lambda change: self._created(topic, change))
        return topic

    def _free_directory(self, name: str) -> str:
        """A directory of its own, also while an old one of the same name is still being removed."""
        plain = directory_name(name)
        directory = plain
        attempt = 1
        while directory in self._directories or self._files.exists(f"{self._root}/{directory}"):
            attempt += 1
            directory = f"{plain}~{attempt}"
        return directory

    def _created(self, topic: Topic, change: Pending[int]) -> None:
        topic.creation = None
        name = topic.info.name
        if change.error is None:
            topic.version = change.result()
        elif self._topics.get(name) is topic:
            # Its directory stays taken until the files of a first append are gone.
            self._forget(topic)

    def change(
        self, name: str, changes: dict[str, object], partitions: int | None
    ) -> Pending[tuple[int, TopicSettings]]:
        """New settings, or more partitions; they count once they are durable. Gives what they are then."""
        topic = self.get(name)
        # Looked at here for the sake of a quick answer. What counts is what the record says then.
        _changed(topic.info, changes, partitions)
        outcome: Promise[tuple[int, TopicSettings]] = Promise()
        before = topic.changing if topic.changing is not None else topic.creation
        topic.changing = outcome
        if before is None or before.done:
            self._change(topic, changes, partitions, outcome)
        else:
            before.add_done_callback(lambda _: self._change(topic, changes, partitions, outcome))
        return outcome

    def _change(
        self,
        topic: Topic,
        changes: dict[str, object],
        partitions: int | None,
        outcome: Promise[tuple[int, TopicSettings]],
    ) -> None:
        try:
            if self._topics.get(topic.info.name) is not topic:
                raise UnknownTopic(topic.info.name)
            count, settings = _changed(topic.info, changes, partitions)
            record = msgspec.structs.replace(topic.record(), partitions=count, settings=settings)
            change = self._metadata.change(
                (self._records.put(topic.info.name, record, topic.version),)
            )
        except PenstockError as error:
            outcome.complete(None, error)
            return
        change.add_done_callback(lambda done: self._apply(topic, record, done, outcome))

    def _apply(
        self,
        topic: Topic,
        record: TopicRecord,
        change: Pending[int],
        outcome: Promise[tuple[int, TopicSettings]],
    ) -> None:
        if change.error is not None:
            outcome.complete(None, change.error)
            return
        topic.version = change.result()
        for number in range(len(topic.partitions), record.partitions):
            path = f"{self._root}/{topic.directory}/{number}"
            topic.partitions.append(self._open_partition(path, record.settings))
        for partition in topic.partitions:
            partition.settings = record.settings
        self.partition_count += record.partitions - topic.info.partitions
        topic.info = replace(topic.info, partitions=record.partitions, settings=record.settings)
        if topic.described is not None:
            self._undescribed.add(topic)
        outcome.complete((record.partitions, record.settings), None)

    def remove(self, name: str, removed: Callable[[Topic], None]) -> Pending[int]:
        """Takes the topic away once that is durable, and calls back: its partitions must be stopped.

        Its committed offsets go with it. Whoever asks for it too hears of the same removal.
        """
        topic = self.get(name)
        if topic.removal is not None and not topic.removal.done:
            return topic.removal
        deletion = DeletionRecord(topic.info.id, self._clock_us())
        change = self._metadata.change(
            (
                self._records.delete(name, PRESENT),
                DeleteAll(OFFSETS, prefix_of(topic.info.id)),
                self._deletions.put(topic.directory, deletion),
            )
        )
        topic.removal = change

        def done(change: Pending[int]) -> None:
            if change.error is None:
                self._forget(topic)
                removed(topic)

        change.add_done_callback(done)
        return change

    def _forget(self, topic: Topic) -> None:
        del self._topics[topic.info.name]
        self.partition_count -= topic.info.partitions

    def note_records(self, topic: Topic) -> None:
        """The topic has records: from now on it has a directory, where its description belongs."""
        if topic.described is not topic.info:
            self._undescribed.add(topic)

    def describe(self, *, look: bool = True) -> None:
        """Writes the descriptions that are missing or old. Waits for the disk.

        With `look` also those of topics that nobody has used since start, some in each round.
        """
        if look and self._unseen is None:
            there = set(self._files.list(self._root))
            self._unseen = [topic for topic in self if topic.directory in there]
        if look and self._unseen:
            self._undescribed.update(self._unseen[-DESCRIBED_AT_ONCE:])
            del self._unseen[-DESCRIBED_AT_ONCE:]
        failed = []
        while self._undescribed:
            topic = self._undescribed.pop()
            if not self._describe(topic):
                failed.append(topic)
        self._undescribed.update(failed)

    def _describe(self, topic: Topic) -> bool:
        info = topic.info
        path = f"{self._root}/{topic.directory}"
        try:
            if self._topics.get(info.name) is topic and self._files.exists(path):
                write_description(self._files, path, Description.of(info.name, topic.record()))
                topic.described = info
        except OSError as error:
            logger.warning("the description of topic %r is not written: %s", info.name, error)
            return False
        return True

    def remove_files(self, directory: str) -> None:
        """Gives the space back in the background and then forgets the deletion."""
        thread = threading.Thread(
            target=self._remove_files, args=(directory,), name="penstock-remove", daemon=True
        )
        with self._removing:  # who waits for all of them finds only such as have begun
            self._removals.append(thread)
            thread.start()

    def _remove_files(self, directory: str) -> None:
        path = f"{self._root}/{directory}"
        try:
            if self._files.exists(path):
                self._files.remove_tree(path)
                self._files.sync_directory(self._root)
            self._metadata.change((self._deletions.delete(directory),)).result()
            self._directories.discard(directory)
        except (OSError, PenstockError) as error:
            logger.warning("removing %s failed, it goes on at the next start: %s", path, error)

    def _finish_deletions(self) -> None:
        for deletion in self._deletions.all():
            # Taken until the deletion is forgotten: a new topic in it would be deleted next time.
            self._directories.add(deletion.name)
            self._remove_files(deletion.name)

    def wait_for_removals(self) -> None:
        with self._removing:
            removals, self._removals = self._removals, []
        for thread in removals:
            thread.join()


def _check_partitions(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidSettings("partitions", count, f"must be 1 to {MAX_PARTITIONS}")


def _changed(
    info: TopicInfo, changes: dict[str, object], partitions: int | None
) -> tuple[int, TopicSettings]:
    """Raises InvalidSettings."""
    count, settings = info.partitions, info.settings
    if partitions is not None:
        _check_partitions(partitions)
        if partitions < count:
            raise InvalidSettings("partitions", partitions, "a topic cannot lose partitions")
        count = partitions
    return count, settings.changed(changes) if changes else settings
