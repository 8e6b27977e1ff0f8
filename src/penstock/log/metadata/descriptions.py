"""A small file in the directory of each topic that says what the topic is: name, id, partitions, settings.

The metadata is authoritative. The file is a copy for the case that the metadata is lost: `penstock log
rebuild-metadata` (rebuild.py) restores topics from it. It is written after the appends, so it may be a
minute old; a topic without records has no directory and no file.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from penstock.log.engine import TopicInfo
from penstock.log.metadata.kinds import TopicRecord
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import (
    TEMPORARY_SUFFIX,
    read_small_file,
    write_file,
    write_small_file,
)

DESCRIPTION_FILE: Final = "topic.json"

# Descriptions that are written together, and those of idle topics that one round of maintenance looks at:
# about 30 ms of a thread.
WRITTEN_AT_ONCE: Final = 1_000
# So many together are made durable by a sync of the whole file system, fewer by one of each.
MANY: Final = 8

logger = logging.getLogger(__name__)


class Description(msgspec.Struct, frozen=True):
    """As JSON, for people too. Fields that are added later need a default."""

    name: str
    id: int
    partitions: int
    settings: TopicSettings
    created_us: int

    @classmethod
    def of(cls, name: str, record: TopicRecord) -> "Description":
        return cls(name, record.id, record.partitions, record.settings, record.created_us)

    def record(self, directory: str) -> TopicRecord:
        return TopicRecord(self.id, directory, self.partitions, self.settings, self.created_us)


def write_descriptions(
    files: FileSystem, root: str, descriptions: Sequence[tuple[str, Description]]
) -> None:
    """By directory below `root`. All are durable on return; an old one is replaced as a whole."""
    changed: list[tuple[str, bytes]] = []
    for directory, description in descriptions:
        path = f"{root}/{directory}/{DESCRIPTION_FILE}"
        content = msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"
        if read_small_file(files, path) != content:
            changed.append((path, content))
    if len(changed) < MANY:
        for path, content in changed:
            write_small_file(files, path, content)
        return
    # A sync for each takes minutes for thousands of them.
    for path, content in changed:
        write_file(files, path + TEMPORARY_SUFFIX, content, sync=False)
    files.sync_all(root)
    for path, _ in changed:
        files.rename(path + TEMPORARY_SUFFIX, path)
    files.sync_all(root)


def read_description(files: FileSystem, directory: str) -> Description | None:
    """None when there is none, or none that can be read."""
    data = read_small_file(files, f"{directory}/{DESCRIPTION_FILE}")
    try:
        return None if data is None else msgspec.json.decode(data, type=Description)
    except msgspec.DecodeError:
        return None


class Describable(Protocol):
    """A topic of the catalogue."""

    info: TopicInfo
    # What the description beside its records says; None when nobody looked yet.
    described: TopicInfo | None

    @property
    def directory(self) -> str: ...
    def record(self) -> TopicRecord: ...


class Descriptions:
    """Topics whose descriptions are missing or old. `is_there` is False for a topic that was deleted."""

    def __init__(
        self, files: FileSystem, root: str, is_there: Callable[[Describable], bool]
    ) -> None:
        self._files = files
        self._root = root
        self._is_there = is_there
        self._waiting: set[Describable] = set()
        # Of the start, still to be looked at; None before the first look.
        self._unseen: list[Describable] | None = None
        # Held while files come to directories of topics: none of these is removed meanwhile.
        self.lock = threading.Lock()

    def note(self, topic: Describable) -> None:
        """The topic has records, or has changed."""
        self._waiting.add(topic)

    def look(self, topics: Iterable[Describable]) -> None:
        """Also notes topics that nobody has used since start, some in each round."""
        if self._unseen is None:
            there = set(self._files.list(self._root))
            self._unseen = [topic for topic in topics if topic.directory in there]
        self._waiting.update(self._unseen[-WRITTEN_AT_ONCE:])
        del self._unseen[-WRITTEN_AT_ONCE:]

    def write(self) -> None:
        """Writes what is noted. Waits for the disk."""
        while self._waiting:
            some = [self._waiting.pop() for _ in range(min(len(self._waiting), WRITTEN_AT_ONCE))]
            try:
                self._write(some)
            except OSError as error:
                # One line for all of them, a full disk say; the next round tries again.
                self._waiting.update(some)
                name, left = some[0].info.name, len(self._waiting)
                logger.warning("descriptions of %d topics wait, %r: %s", left, name, error)
                return

    def _write(self, topics: list[Describable]) -> None:
        with self.lock:
            there = [
                (topic, topic.info, topic.record())
                for topic in topics
                if self._is_there(topic) and self._files.exists(f"{self._root}/{topic.directory}")
            ]
            descriptions = [
                (topic.directory, Description.of(info.name, record))
                for topic, info, record in there
            ]
            write_descriptions(self._files, self._root, descriptions)
        for topic, info, _ in there:
            topic.described = info
