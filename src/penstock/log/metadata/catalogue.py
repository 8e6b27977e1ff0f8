"""The topics of a data directory: names, settings, partitions, and their records in the metadata.

Creates, changes and deletes. Opens no partition: that is done when one is touched (opening.py). A delete
gives the space back in the background; one that a crash interrupts goes on at the next start. Does not read
or write messages.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from penstock.errors import PenstockError
from penstock.log.engine import TopicInfo
from penstock.log.errors import (
    InvalidSettings,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.descriptions import Describable, Descriptions
from penstock.log.metadata.kinds import (
    COUNTERS,
    DELETIONS,
    LAST_TOPIC_ID,
    OFFSETS,
    TOPICS,
    DeletionRecord,
    TopicRecord,
)
from penstock.log.partitions.ends import NOTHING, Ends, KnownEnds
from penstock.log.partitions.opening import OpenPartition, Partitions
from penstock.log.partitions.partition import Partition
from penstock.log.pending import Pending
from penstock.log.records import ABSENT, PRESENT, DeleteAll, Metadata, Space, prefix_of
from penstock.log.settings import TopicSettings, check_partitions
from penstock.log.sorted_names import SortedNames
from penstock.log.storage.files import FileSystem
from penstock.log.storage.names import TOPICS_DIRECTORY, check_topic_name, directory_name
from penstock.turns import GrowingDict

# Deleted topics whose files go with one flush of the directory: a few milliseconds of removing.
REMOVED_AT_ONCE = 256

logger = logging.getLogger(__name__)


class Topic(msgspec.Struct, eq=False, gc=False):
    """There may be 100,000: the collector of garbage walks none of them. A cycle through one would stay, so
    what it holds lets go of its callbacks when it is done."""

    info: TopicInfo
    directory: str
    partitions: Partitions
    # Of its record; 0 until it is durable.
    version: int = 0
    # The metadata change that makes the topic durable, until it is.
    creation: Pending[int] | None = None
    # The newest change of its settings: the next one waits for it, so that both count.
    changing: Pending[object] | None = None
    removal: Pending[int] | None = None
    # What the description beside its records says; None when nobody looked yet.
    described: TopicInfo | None = None
    # As in its record.
    keys_since: int = 0

    @property
    def name(self) -> str:
        return self.info.name

    def record(self) -> TopicRecord:
        info = self.info
        return TopicRecord(
            info.id,
            self.directory,
            info.partitions,
            info.settings,
            info.created_us,
            self.keys_since,
        )


class Catalogue:
    """Topics are made, changed and removed on one thread, that of the engine's completions; any thread may
    look them up. Files of deleted topics and descriptions are seen to by other threads."""

    def __init__(
        self,
        root: str,
        files: FileSystem,
        metadata: Metadata,
        open_partition: OpenPartition,
        clock_us: Callable[[], int],
        known: KnownEnds | None = None,
    ) -> None:
        self._root = f"{root}/{TOPICS_DIRECTORY}"
        self._files = files
        self._metadata = metadata
        self._records = Space(metadata, TOPICS, TopicRecord)
        self._deletions = Space(metadata, DELETIONS, DeletionRecord)
        self._counters = Space(metadata, COUNTERS, int)
        self._open_partition = open_partition
        self._clock_us = clock_us
        # Read by any thread; the engine looks here with every append.
        self.by_name: GrowingDict[str, Topic] = GrowingDict()
        # Called with every topic that is created or changed.
        self.watchers: list[Callable[[str], None]] = []
        self.partition_count = 0  # of all topics together
        # Of the current key of encryption (key_table.py); 0: there is none.
        self.key_generation = 0
        # Directories in use, and their topics; None: of no topic, or still being removed.
        self._directories: GrowingDict[str, Topic | None] = GrowingDict()
        self._descriptions = Descriptions(files, self._root, self._is_there)
        # Work to do before the files of a directory are removed, and the directory.
        self._removals: SimpleQueue[tuple[Callable[[], None], str] | None] = SimpleQueue()
        self._remover: threading.Thread | None = None
        self._files.make_directory(self._root)
        self._finish_deletions()
        self._load(known if known is not None else KnownEnds())

    def _load(self, known: KnownEnds) -> None:
        present = set(self._files.list(self._root))
        last = self._counters.get(LAST_TOPIC_ID)
        self._last_id = last.value if last is not None else 0
        for one in self._records.all():
            record = one.value
            info = TopicInfo(
                record.id, one.name, record.partitions, record.settings, record.created_us
            )
            ends = known.topics.get((record.directory, record.created_us))
            if record.directory in present and (ends is None or not known.exact):
                ends = self._written(record.directory, record.partitions, ends or {})
            topic = self._add(info, record.directory, ends)
            topic.version = one.version
            topic.keys_since = record.keys_since or int(record.settings.encryption)
        self.names = SortedNames(self.by_name)
        for orphan in present - set(self._directories):
            self._directories[orphan] = None
            logger.warning(
                "%s/%s belongs to no topic in the metadata; left alone", self._root, orphan
            )

    def _written(self, directory: str, count: int, noted: dict[int, Ends]) -> dict[int, Ends]:
        """The partitions that were ever written, with what an earlier stop noted of them."""
        names = self._files.list(f"{self._root}/{directory}")
        numbers = {int(name) for name in names if name.isascii() and name.isdigit()}
        chosen = [number for number in numbers | noted.keys() if number < count]
        return {number: noted.get(number, NOTHING).inexact() for number in chosen}

    def _add(self, info: TopicInfo, directory: str, ends: dict[int, Ends] | None) -> Topic:
        topic = self._topic(info, directory, ends)
        self.by_name[info.name] = topic
        self.partition_count += info.partitions
        self._directories[directory] = topic
        return topic

    def _topic(self, info: TopicInfo, directory: str, ends: dict[int, Ends] | None) -> Topic:
        path = f"{self._root}/{directory}"
        partitions = Partitions(path, info.settings, info.partitions, self._open_partition, ends)
        return Topic(info, directory, partitions)

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Topic]:
        return self.by_name.values()

    def offsets(self) -> tuple[int, int]:
        """The sums over all partitions of all topics, as far as they are known. From any thread."""
        starts = ends = 0
        for topic in self:
            start, end = topic.partitions.offsets()
            starts += start
            ends += end
        return starts, ends

    def find(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def get(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def partitions(self, name: str, number: int) -> Partitions:
        """All partitions of a topic that has this one. Raises UnknownTopic, UnknownPartition."""
        topic = self.get(name)
        if not 0 <= number < topic.partitions.count:
            raise UnknownPartition(name, number)
        return topic.partitions

    def partition(self, name: str, number: int) -> Partition:
        """Opens it if it is not open, which waits for the disk. Raises OSError."""
        return self.partitions(name, number).open(number)

    def has(self, partition: Partition) -> bool:
        """Whether it is still that of a topic."""
        topic_path, _, number = partition.directory.rpartition("/")
        topic = self._directories.get(topic_path.rpartition("/")[2])
        return topic is not None and topic.partitions.opened(int(number)) is partition

    def create(self, name: str, partitions: int, settings: TopicSettings) -> Topic:
        """Raises InvalidTopicName, InvalidSettings, TopicExists."""
        check_topic_name(name)
        settings.check()
        check_partitions(partitions)
        keys_since = self._keys_since(0, settings)
        if name in self.by_name:
            raise TopicExists(name)
        directory = self._free_directory(name)
        self._last_id += 1
        info = TopicInfo(self._last_id, name, partitions, settings, self._clock_us())
        topic = self._topic(info, directory, None)
        topic.keys_since = keys_since
        creation = self._metadata.change(
            (
                self._records.put(name, topic.record(), ABSENT),
                self._counters.put(LAST_TOPIC_ID, info.id),
            )
        )
        self.by_name[name] = topic
        self.partition_count += partitions
        self._directories[directory] = topic
        topic.creation = creation
        creation.on_done(lambda change: self._created(topic, change))
        self.names.add(name)
        self._tell(name)
        return topic

    def _keys_since(self, before: int, settings: TopicSettings) -> int:
        """Raises InvalidSettings where a topic shall be encrypted and there is no key."""
        if settings.encryption and not self.key_generation:
            reason = "there is no key; set encryption.keys in the configuration of the server"
            raise InvalidSettings("encryption", True, reason)
        return before or (self.key_generation if settings.encryption else 0)

    def _is_there(self, topic: Describable) -> bool:
        return self.by_name.get(topic.info.name) is topic

    def _tell(self, name: str) -> None:
        for watcher in self.watchers:
            watcher(name)

    def _free_directory(self, name: str) -> str:
        """A directory of its own, also while an old one of the same name is still being removed."""
        plain = directory_name(name)
        directory = plain
        attempt = 1
        while directory in self._directories:
            attempt += 1
            directory = f"{plain}~{attempt}"
        return directory

    def _created(self, topic: Topic, change: Pending[int]) -> None:
        topic.creation = None
        name = topic.info.name
        if change.error is None:
            topic.version = change.result()
        elif self.by_name.get(name) is topic:
            # Its directory stays taken until the files of a first append are gone.
            self._forget(topic)

    def change(
        self,
        name: str,
        changes: dict[str, object],
        partitions: int | None,
        keys_since: int | None = None,
    ) -> Pending[tuple[int, TopicSettings]]:
        """New settings, or more partitions; they count once they are durable. Gives what they are then.

        `keys_since`: all of the topic was found under keys of this generation or later; 0: nothing of it
        is encrypted.
        """
        topic = self.get(name)
        # Checked here for a fast answer. The record decides when the change is applied.
        _, settings = _changed(topic.info, changes, partitions)
        if changes:
            self._keys_since(0, settings)
        outcome: Pending[tuple[int, TopicSettings]] = Pending()
        before = topic.changing if topic.changing is not None else topic.creation
        topic.changing = outcome
        # A completed creation is applied a moment later, in the callback thread: until then the version
        # of the record is unknown here.
        if before is None or (before.done and before is not topic.creation):
            self._change(topic, changes, partitions, keys_since, outcome)
        else:
            before.on_done(lambda _: self._change(topic, changes, partitions, keys_since, outcome))
        return outcome

    def _change(
        self,
        topic: Topic,
        changes: dict[str, object],
        partitions: int | None,
        keys_since: int | None,
        outcome: Pending[tuple[int, TopicSettings]],
    ) -> None:
        try:
            if self.by_name.get(topic.info.name) is not topic:
                raise UnknownTopic(topic.info.name)
            count, settings = _changed(topic.info, changes, partitions)
            if keys_since is None or (settings.encryption and not keys_since):
                # Also when it was turned on again, since it was found without.
                keys_since = self._keys_since(topic.keys_since, settings) if changes else None
            record = msgspec.structs.replace(
                topic.record(),
                partitions=count,
                settings=settings,
                keys_since=topic.keys_since if keys_since is None else keys_since,
            )
            change = self._metadata.change(
                (self._records.put(topic.info.name, record, topic.version),)
            )
        except PenstockError as error:
            outcome.settle(None, error)
            return
        change.on_done(lambda done: self._apply(topic, record, done, outcome))

    def _apply(
        self,
        topic: Topic,
        record: TopicRecord,
        change: Pending[int],
        outcome: Pending[tuple[int, TopicSettings]],
    ) -> None:
        if change.error is not None:
            outcome.settle(None, change.error)
            return
        topic.version = change.result()
        topic.keys_since = record.keys_since
        topic.partitions.change(record.partitions, record.settings)
        self.partition_count += record.partitions - topic.info.partitions
        topic.info = msgspec.structs.replace(
            topic.info, partitions=record.partitions, settings=record.settings
        )
        if topic.described is not None:
            self._descriptions.note(topic)
        self._tell(topic.info.name)
        outcome.settle((record.partitions, record.settings), None)

    def remove(self, name: str, removed: Callable[[Topic], None]) -> Pending[int]:
        """Takes the topic away once that is durable, and calls back: its partitions must be stopped.

        Its committed offsets go with it. Concurrent calls share the same removal.
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

        change.on_done(done)
        return change

    def _forget(self, topic: Topic) -> None:
        self.by_name.pop(topic.info.name)
        self.names.discard(topic.info.name)
        self._directories[topic.directory] = None
        self.partition_count -= topic.info.partitions

    def note_records(self, topic: Topic) -> None:
        """The topic has records: from now on it has a directory, where its description belongs."""
        if topic.described is not topic.info:
            self._descriptions.note(topic)

    def describe(self, *, look: bool = True) -> None:
        """Writes the descriptions that are missing or old. Waits for the disk.

        With `look` also those of topics that nobody has used since start, some in each round.
        """
        if look:
            self._descriptions.look(self)
        self._descriptions.write()

    def remove_files(self, directory: str, before: Callable[[], None]) -> None:
        """Gives the space back in the background and then forgets the deletion. `before` runs there too,
        first: it may wait for the disk."""
        if self._remover is None:
            remover = threading.Thread(
                target=self._remove_queued, name="penstock-remove", daemon=True
            )
            remover.start()
            # Only now: a stop in another thread joins what it finds here.
            self._remover = remover
        self._removals.put((before, directory))

    def _remove_queued(self) -> None:
        """One thread for all deletions: what has gathered goes with one flush and one change."""
        while (first := self._removals.get()) is not None:
            removals = [first]
            with suppress(Empty):
                while len(removals) < REMOVED_AT_ONCE:
                    following = self._removals.get_nowait()
                    if following is None:
                        self._removals.put(None)
                        break
                    removals.append(following)
            for before, _ in removals:
                before()
            self._remove_files([directory for _, directory in removals])

    def _remove_files(self, directories: list[str]) -> None:
        with self._descriptions.lock:
            removed = [directory for directory in directories if self._remove_tree(directory)]
        if not removed:
            return
        try:
            self._files.sync_directory(self._root)
            edits = [self._deletions.delete(directory) for directory in removed]
            self._metadata.change(edits).result()
        except (OSError, PenstockError) as error:
            text = "the removal of %d topics failed, it goes on at the next start: %s"
            logger.warning(text, len(removed), error)
            return
        for directory in removed:
            self._directories.pop(directory)

    def _remove_tree(self, directory: str) -> bool:
        path = f"{self._root}/{directory}"
        try:
            if self._files.exists(path):
                self._files.remove_tree(path)
        except OSError as error:
            logger.warning("removing %s failed, it goes on at the next start: %s", path, error)
            return False
        return True

    def _finish_deletions(self) -> None:
        directories = [deletion.name for deletion in self._deletions.all()]
        # Taken until the deletion is forgotten: a new topic in it would be deleted next time.
        for directory in directories:
            self._directories[directory] = None
        self._remove_files(directories)

    def wait_for_removals(self) -> None:
        remover, self._remover = self._remover, None
        if remover is not None:
            self._removals.put(None)
            remover.join()


def _changed(
    info: TopicInfo, changes: dict[str, object], partitions: int | None
) -> tuple[int, TopicSettings]:
    """Raises InvalidSettings."""
    count, settings = info.partitions, info.settings
    if partitions is not None:
        check_partitions(partitions)
        if partitions < count:
            raise InvalidSettings("partitions", partitions, "a topic cannot lose partitions")
        count = partitions
    return count, settings.changed(changes) if changes else settings
