"""The topics of a data directory: names, settings, partitions, and their rows in the metadata.

Creates, changes and deletes. A delete gives the space back in the background; one that a crash
interrupts goes on at the next start. Does not read or write records.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.errors import PenstockError
from penstock.log.engine import TopicInfo
from penstock.log.errors import (
    InvalidSettings,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.settings import TopicSettings
from penstock.log.metadata.store import Change, MetadataStore
from penstock.log.partitions.partition import Partition
from penstock.log.storage.files import FileSystem
from penstock.log.storage.names import check_topic_name, directory_name

TOPICS_DIRECTORY = "topics"
# Partitions of one topic: each costs memory and, once written, files. Ten thousand is what one
# machine serves with 1,024 descriptors.
MAX_PARTITIONS = 10_000

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Topic:
    info: TopicInfo
    directory: str
    partitions: list[Partition]
    # The metadata change that makes the topic durable, until it is.
    creation: Change[int] | None = field(default=None)


class Catalogue:
    """Used from one thread, except for the background removal of deleted files."""

    def __init__(
        self,
        root: str,
        files: FileSystem,
        metadata: MetadataStore,
        open_partition: Callable[[str, TopicSettings], Partition],
        clock_us: Callable[[], int],
    ) -> None:
        self._root = f"{root}/{TOPICS_DIRECTORY}"
        self._files = files
        self._metadata = metadata
        self._open_partition = open_partition
        self._clock_us = clock_us
        self._topics: dict[str, Topic] = {}
        self._directories: set[str] = set()
        self._removals: list[threading.Thread] = []
        self._removing = threading.Lock()
        self._files.make_directory(self._root)
        self._finish_deletions()
        self._load()

    def _load(self) -> None:
        rows = self._metadata.query(
            "SELECT id, name, directory, partitions, settings, created_us FROM topics"
        )
        for topic_id, name, directory, partitions, settings_json, created_us in rows:
            settings = msgspec.json.decode(settings_json, type=TopicSettings)
            info = TopicInfo(topic_id, name, partitions, settings, created_us)
            self._add(info, directory, self._open_partitions(info, directory))
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
        self._directories.add(directory)
        return topic

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
        created_us = self._clock_us()
        text = msgspec.json.encode(settings).decode()
        info = TopicInfo(0, name, partitions, settings, created_us)
        opened = self._open_partitions(info, directory)
        creation = self._metadata.submit(
            lambda db: _insert(db, name, directory, partitions, text, created_us)
        )
        topic = self._add(info, directory, opened)
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

    def _created(self, topic: Topic, change: Change[int]) -> None:
        topic.creation = None
        info = topic.info
        if change.error is None:
            topic.info = TopicInfo(
                change.result(), info.name, info.partitions, info.settings, info.created_us
            )
        elif self._topics.get(info.name) is topic:
            # Its directory stays taken until the files of a first append are gone.
            del self._topics[info.name]

    def change(
        self, name: str, changes: dict[str, object], partitions: int | None
    ) -> Change[tuple[int, TopicSettings]]:
        """New settings, or more partitions; they count once they are durable. Gives what they are then."""
        topic = self.get(name)
        # Looked at here for the sake of a quick answer. What counts is what the row says then.
        _changed(topic.info.partitions, topic.info.settings, changes, partitions)
        change = self._metadata.submit(lambda db: _update(db, name, changes, partitions))
        change.add_done_callback(lambda done: self._apply(topic, done))
        return change

    def _apply(self, topic: Topic, change: Change[tuple[int, TopicSettings]]) -> None:
        if change.error is not None:
            return
        count, settings = change.result()
        for number in range(len(topic.partitions), count):
            path = f"{self._root}/{topic.directory}/{number}"
            topic.partitions.append(self._open_partition(path, settings))
        for partition in topic.partitions:
            partition.settings = settings
        info = topic.info
        topic.info = TopicInfo(info.id, info.name, count, settings, info.created_us)

    def remove(self, name: str, removed: Callable[[Topic], None]) -> Change[None]:
        """Takes the topic away once that is durable, and calls back: its partitions must be stopped."""
        topic = self.get(name)
        requested_us = self._clock_us()
        change = self._metadata.submit(lambda db: _delete(db, name, topic.directory, requested_us))

        def done(change: Change[None]) -> None:
            # Somebody else may have asked for it too.
            if change.error is None and self._topics.get(name) is topic:
                del self._topics[name]
                removed(topic)

        change.add_done_callback(done)
        return change

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
            self._metadata.submit(lambda db: _forget_deletion(db, directory)).result()
            self._directories.discard(directory)
        except (OSError, PenstockError) as error:
            logger.warning("removing %s failed, it goes on at the next start: %s", path, error)

    def _finish_deletions(self) -> None:
        for (directory,) in self._metadata.query("SELECT directory FROM deletions"):
            # Taken until the deletion is forgotten: a new topic in it would be deleted next time.
            self._directories.add(directory)
            self._remove_files(directory)

    def wait_for_removals(self) -> None:
        with self._removing:
            removals, self._removals = self._removals, []
        for thread in removals:
            thread.join()


def _check_partitions(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidSettings("partitions", count, f"must be 1 to {MAX_PARTITIONS}")


def _changed(
    count: int, settings: TopicSettings, changes: dict[str, object], partitions: int | None
) -> tuple[int, TopicSettings]:
    """Raises InvalidSettings."""
    if partitions is not None:
        _check_partitions(partitions)
        if partitions < count:
            raise InvalidSettings("partitions", partitions, "a topic cannot lose partitions")
        count = partitions
    return count, settings.changed(changes) if changes else settings


def _insert(
    db: sqlite3.Connection,
    name: str,
    directory: str,
    partitions: int,
    settings: str,
    created_us: int,
) -> int:
    cursor = db.execute(
        "INSERT INTO topics (name, directory, partitions, settings, created_us)"
        " VALUES (?, ?, ?, ?, ?)",
        (name, directory, partitions, settings, created_us),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _update(
    db: sqlite3.Connection, name: str, changes: dict[str, object], partitions: int | None
) -> tuple[int, TopicSettings]:
    found = db.execute("SELECT partitions, settings FROM topics WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise UnknownTopic(name)
    before = msgspec.json.decode(found[1], type=TopicSettings)
    count, settings = _changed(found[0], before, changes, partitions)
    db.execute(
        "UPDATE topics SET partitions = ?, settings = ? WHERE name = ?",
        (count, msgspec.json.encode(settings).decode(), name),
    )
    return count, settings


def _delete(db: sqlite3.Connection, name: str, directory: str, requested_us: int) -> None:
    found = db.execute("SELECT id FROM topics WHERE name = ?", (name,)).fetchone()
    if found is None:
        return
    db.execute("DELETE FROM topics WHERE id = ?", found)
    db.execute("DELETE FROM group_offsets WHERE topic_id = ?", found)
    db.execute(
        "INSERT INTO deletions (topic_id, directory, requested_us) VALUES (?, ?, ?)",
        (found[0], directory, requested_us),
    )


def _forget_deletion(db: sqlite3.Connection, directory: str) -> None:
    db.execute("DELETE FROM deletions WHERE directory = ?", (directory,))
