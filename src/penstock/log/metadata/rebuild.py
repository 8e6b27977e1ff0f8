"""A data directory whose metadata is lost: detected at start, and rebuilt from the directories of topics.

Restored are topics: names, ids, partitions and settings from the descriptions beside the records
(descriptions.py), and the records themselves, which were never touched. Lost are API keys, users, committed
offsets, settled ranges of subscribers, and transactions. No key is restored and the development key stays
off: losing a file must not open the server.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.log.metadata.descriptions import Description, read_description
from penstock.log.metadata.key_table import ENCRYPTION_KEYS, KeyRecord
from penstock.log.metadata.kinds import (
    COUNTERS,
    LAST_KEY_ID,
    LAST_TOPIC_ID,
    TOPICS,
    TopicRecord,
)
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata.transaction_rows import give_no_id_below
from penstock.log.metadata_errors import MetadataMissing
from penstock.log.records import Edit, Space
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import FileSystem
from penstock.log.storage.names import METADATA_FILE, TOPICS_DIRECTORY, topic_name_of
from penstock.log.storage.segment import LOG_SUFFIX, key_id_in, offset_of_name

# What is not finished yet has this name: a rebuild that is interrupted leaves no metadata behind.
_UNFINISHED_SUFFIX: Final = ".rebuild"
# What the catalogue puts behind the name of a directory while an older one is still being removed.
_ATTEMPT: Final = re.compile(r"~([0-9]{1,9})$")


class MetadataPresent(PenstockError):
    exit_code = 2

    path: str

    line = "{path} is there; move it away first if it is to be made anew"


def check_metadata_is_there(files: FileSystem, directory: str) -> None:
    """Raises MetadataMissing where topics lie without their metadata. A new directory has neither."""
    path = f"{directory}/{METADATA_FILE}"
    if _is_empty(path):
        topics = len(files.list(f"{directory}/{TOPICS_DIRECTORY}"))
        if topics:
            raise MetadataMissing(path, topics, directory)


def _is_empty(path: str) -> bool:
    return not os.path.exists(path) or os.path.getsize(path) == 0


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A topic that was taken back. `described`: its settings are those it had."""

    name: str
    partitions: int
    described: bool


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A directory that was not taken back."""

    directory: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Found:
    directory: str
    name: str
    partitions: int
    description: Description | None
    # Which of several directories for the same name is the newest.
    age: tuple[int, int]
    # Of the keys that its records are encrypted with.
    key_ids: frozenset[int]


def rebuild(
    files: FileSystem, directory: str, now_us: int
) -> tuple[list[Rebuilt], list[LeftAlone]]:
    """Makes metadata.db anew. The caller holds the lock of the directory. Raises MetadataPresent."""
    path = f"{directory}/{METADATA_FILE}"
    if not _is_empty(path):
        raise MetadataPresent(path)
    kept: dict[str, _Found] = {}
    left: list[LeftAlone] = []
    for found in _look(files, f"{directory}/{TOPICS_DIRECTORY}"):
        if isinstance(found, LeftAlone):
            left.append(found)
            continue
        other = kept.get(found.name)
        older = found if other is not None and other.age > found.age else other
        if older is not found:
            kept[found.name] = found
        if older is not None:
            reason = f"topic {found.name!r} has a newer directory"
            left.append(LeftAlone(older.directory, reason))
    _write(path, list(kept.values()), now_us)
    files.sync_directory(directory)
    rebuilt = [
        Rebuilt(one.name, one.partitions, one.description is not None) for one in kept.values()
    ]
    return rebuilt, left


def _look(files: FileSystem, root: str) -> Iterator[_Found | LeftAlone]:
    for directory in files.list(root):
        path = f"{root}/{directory}"
        try:
            names = files.list(path)
        except NotADirectoryError:
            yield LeftAlone(directory, "it is no directory")
            continue
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        description = read_description(files, path)
        attempt = _ATTEMPT.search(directory)
        age = int(attempt[1]) if attempt is not None else 1
        count = max(numbers, default=0) + 1
        key_ids = _key_ids(files, [f"{path}/{number}" for number in numbers])
        if description is not None:
            count = max(count, description.partitions)
            age_of = description.id, age
            yield _Found(directory, description.name, count, description, age_of, key_ids)
        elif numbers:
            name = topic_name_of(_ATTEMPT.sub("", directory)) or directory
            yield _Found(directory, name, count, None, (0, age), key_ids)
        else:
            yield LeftAlone(directory, "it holds no partition")


def _key_ids(files: FileSystem, partitions: list[str]) -> frozenset[int]:
    """As the segment files tell: one file, one key."""
    paths = [
        f"{partition}/{name}"
        for partition in partitions
        for name in files.list(partition)
        if offset_of_name(name, LOG_SUFFIX) is not None
    ]
    return frozenset(key_id_in(files, path) for path in paths) - {0}


def _write(path: str, topics: list[_Found], now_us: int) -> None:
    unfinished = path + _UNFINISHED_SUFFIX
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(unfinished + suffix):
            os.remove(unfinished + suffix)
    last_id = max((one.description.id for one in topics if one.description is not None), default=0)
    metadata = MetadataStore(unfinished)
    try:
        records = Space(metadata, TOPICS, TopicRecord)
        counters = Space(metadata, COUNTERS, int)
        edits: list[Edit] = []
        for one in topics:
            if one.description is not None:
                known = one.description.record(one.directory)
                record = msgspec.structs.replace(known, partitions=one.partitions)
            else:
                last_id += 1
                settings = TopicSettings(encryption=bool(one.key_ids))
                record = TopicRecord(last_id, one.directory, one.partitions, settings, now_us)
            # All keys have this generation: which came first is not known.
            record = msgspec.structs.replace(record, keys_since=int(bool(one.key_ids)))
            edits.append(records.put(one.name, record))
        keys = Space(metadata, ENCRYPTION_KEYS, KeyRecord)
        for key_id in frozenset[int]().union(*(one.key_ids for one in topics)):
            edits.append(keys.put(str(key_id), KeyRecord(1, b"")))
        edits.append(counters.put(LAST_TOPIC_ID, last_id))
        # A key was stored here once: then the development key is off.
        edits.append(counters.put(LAST_KEY_ID, now_us))
        metadata.change(edits).result()
        # Numbers of old transactions are in the partitions, as those of producers: the next ones must
        # not be taken for them. A number of today's microseconds is larger than any that was counted.
        metadata.submit(lambda db: give_no_id_below(db, now_us)).result()
    finally:
        metadata.close()
    os.replace(unfinished, path)
