"""Topics of a data directory: their rows, their directories, deletes that a crash interrupts."""

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.partitions import Clock

from penstock.log.errors import (
    InvalidSettings,
    InvalidTopicName,
    RecordConflict,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.catalogue import Catalogue, Topic
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata_errors import MetadataError
from penstock.log.partitions.ends import Ends
from penstock.log.partitions.partition import Partition
from penstock.log.pending import Pending
from penstock.log.records import Delete
from penstock.log.settings import MAX_PARTITIONS, TopicSettings
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import RealFiles
from penstock.log.storage.handles import HandlePool


class Room:
    """A data directory whose catalogue can be opened again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = FaultyFiles(RealFiles())
        self.pool = HandlePool(self.files)
        self.clock = Clock()
        self.metadata = MetadataStore(str(root / "metadata.db"))

    def open(self) -> Catalogue:
        return Catalogue(str(self.root), self.files, self.metadata, self.open_partition, self.clock)

    def open_partition(self, path: str, settings: TopicSettings, ends: Ends) -> Partition:
        return Partition(
            path, settings, self.pool, BatchCache(0), self.clock, durable_offset=ends.next_offset
        )

    def create(self, catalogue: Catalogue, name: str, partitions: int = 1) -> str:
        topic = catalogue.create(name, partitions, TopicSettings())
        self.settle()
        (self.root / "topics" / topic.directory).mkdir()
        return topic.directory

    def settle(self) -> None:
        """Waits until the callbacks of all metadata changes so far have run."""
        for _ in range(2):
            self.metadata.submit(lambda db: None).result(HANG_S)

    @contextmanager
    def locked_metadata(self) -> Iterator[None]:
        """Another program holds the database for longer than is waited for: nothing can be written."""
        self.metadata.submit(lambda db: db.execute("PRAGMA busy_timeout = 10")).result(HANG_S)
        with closing(sqlite3.connect(self.metadata.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    def deletions(self) -> list[str]:
        return [record.name for record in self.metadata.list("deletions")]

    def close(self) -> None:
        self.metadata.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def test_topics_are_there_again(room: Room) -> None:
    catalogue = room.open()
    settings = TopicSettings(durability="none", retention_ms=5)
    catalogue.create("orders", 3, settings)
    room.settle()
    again = room.open().get("orders").info
    assert again == catalogue.get("orders").info
    assert (again.partitions, again.settings, again.created_us) == (3, settings, room.clock())


def test_wrong_creations_leave_nothing(room: Room) -> None:
    catalogue = room.open()
    room.create(catalogue, "there")
    with pytest.raises(TopicExists):
        catalogue.create("there", 1, TopicSettings())
    with pytest.raises(InvalidTopicName):
        catalogue.create("", 1, TopicSettings())
    for partitions in (0, -1, MAX_PARTITIONS + 1):
        with pytest.raises(InvalidSettings):
            catalogue.create("other", partitions, TopicSettings())
    with pytest.raises(InvalidSettings):
        catalogue.create("other", 1, TopicSettings(durability="maybe"))
    assert [topic.info.name for topic in catalogue] == ["there"]
    assert [topic.info.name for topic in room.open()] == ["there"]


@pytest.mark.parametrize("number", [-1, 2, 100])
def test_unknown_topics_and_partitions(room: Room, number: int) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders", 2)
    assert catalogue.partition("orders", 1).directory.endswith("/orders/1")
    assert catalogue.find("nothing") is None
    with pytest.raises(UnknownTopic):
        catalogue.get("nothing")
    with pytest.raises(UnknownPartition):
        catalogue.partition("orders", number)


NAMES = (
    "..",
    ".",
    "a/b",
    "a%2fb",
    "A",
    "a",
    "Å",
    "å",
    "a~2",
    "a ",
    "con",
    "topics",
    "%41",
    "é" * 124,
)


def test_names_that_look_alike_have_directories_of_their_own(room: Room) -> None:
    catalogue = room.open()
    directories = [room.create(catalogue, name) for name in NAMES]
    assert len({directory.lower() for directory in directories}) == len(NAMES)
    assert sorted(path.name for path in (room.root / "topics").iterdir()) == sorted(directories)
    assert {topic.info.name: topic.directory for topic in room.open()} == dict(
        zip(NAMES, directories, strict=True)
    )


def test_a_change_of_settings_and_partitions(room: Room) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders")
    catalogue.change("orders", {"retention_ms": 9, "durability": "none"}, 3)
    room.settle()
    for found in (catalogue, room.open()):
        topic = found.get("orders")
        assert (topic.info.partitions, topic.info.settings.retention_ms) == (3, 9)
        opened = [topic.partitions.open(number) for number in range(len(topic.partitions))]
        assert [partition.settings.durability for partition in opened] == ["none"] * 3


@pytest.mark.parametrize(
    ("changes", "partitions"), [({"retention_ms": -1}, None), ({}, 1), ({}, 10_001)]
)
def test_an_impossible_change_changes_nothing(
    room: Room, changes: dict[str, object], partitions: int | None
) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders", 2)
    before = catalogue.get("orders").info
    with pytest.raises(InvalidSettings):
        catalogue.change("orders", changes, partitions)
    assert catalogue.get("orders").info == before == room.open().get("orders").info


def test_changes_at_the_same_time_add_up(room: Room) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders")
    wanted: list[tuple[dict[str, object], int | None]] = [
        ({"retention_ms": 9}, None),
        ({"durability": "none"}, 3),
        ({}, 2),
    ]
    for changes, partitions in wanted:
        change = catalogue.change("orders", changes, partitions)
    with pytest.raises(InvalidSettings, match="a topic cannot lose partitions"):
        change.result(HANG_S)
    info = catalogue.get("orders").info
    assert (info.partitions, info.settings.retention_ms, info.settings.durability) == (3, 9, "none")


@pytest.mark.parametrize("what", ["change", "remove"])
def test_what_is_not_written_does_not_count(room: Room, what: str) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders")
    before = catalogue.get("orders").info
    with room.locked_metadata():
        change: Pending[Any]
        if what == "change":
            change = catalogue.change("orders", {"retention_ms": 1, "durability": "none"}, 2)
        else:
            change = catalogue.remove("orders", lambda topic: pytest.fail("it is still there"))
        with pytest.raises(MetadataError, match="not written"):
            change.result(HANG_S)
    room.settle()
    topic = catalogue.get("orders")
    assert (topic.info, len(topic.partitions)) == (before, 1)
    assert topic.partitions.open(0).settings == before.settings
    assert room.open().get("orders").info == before


def test_a_removed_topic_gives_its_files_back(room: Room) -> None:
    catalogue = room.open()
    directory = room.create(catalogue, "orders")
    (room.root / "topics" / directory / "file").write_bytes(b"x")
    removed: list[Topic] = []
    changes = [catalogue.remove("orders", removed.append) for _ in range(2)]
    room.settle()
    assert [change.error for change in changes] == [None, None]
    assert catalogue.find("orders") is None
    assert room.deletions() == [directory]
    (topic,) = removed
    catalogue.remove_files(topic.directory, lambda: None)
    catalogue.wait_for_removals()
    assert list((room.root / "topics").iterdir()) == []
    assert room.deletions() == []
    assert room.create(catalogue, "orders") == directory


def test_a_topic_created_while_the_old_one_goes_has_a_directory_of_its_own(room: Room) -> None:
    catalogue = room.open()
    directory = room.create(catalogue, "orders")
    catalogue.remove("orders", lambda topic: None)
    room.settle()
    assert room.create(catalogue, "orders") == f"{directory}~2"
    catalogue.remove_files(directory, lambda: None)
    catalogue.wait_for_removals()
    assert [path.name for path in (room.root / "topics").iterdir()] == [f"{directory}~2"]
    assert room.open().get("orders").directory == f"{directory}~2"


def test_an_interrupted_delete_finishes_at_the_next_start(room: Room) -> None:
    catalogue = room.open()
    directory = room.create(catalogue, "orders")
    catalogue.remove("orders", lambda topic: None)
    room.settle()
    assert (room.root / "topics" / directory).exists()
    again = room.open()
    assert again.find("orders") is None
    assert not (room.root / "topics" / directory).exists()
    assert room.deletions() == []


@pytest.mark.parametrize("step", ["remove_tree", "sync_directory"])
def test_a_directory_is_not_used_again_before_its_deletion_is_forgotten(
    room: Room, step: Literal["remove_tree", "sync_directory"], caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next start would take the new topic for the old one and delete it."""
    catalogue = room.open()
    directory = room.create(catalogue, "orders")
    catalogue.remove("orders", lambda topic: None)
    room.settle()
    room.files.fail(step, errno.EIO)
    again = room.open()
    assert "goes on at the next start" in caplog.text
    assert room.create(again, "orders") == f"{directory}~2"
    last = room.open()
    assert last.get("orders").directory == f"{directory}~2"
    assert [path.name for path in (room.root / "topics").iterdir()] == [f"{directory}~2"]
    assert room.deletions() == []


def test_a_directory_of_no_topic_is_left_alone(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.open()
    (room.root / "topics" / "orders").mkdir()
    with caplog.at_level(logging.WARNING):
        catalogue = room.open()
    assert "belongs to no topic" in caplog.text
    assert room.create(catalogue, "orders") == "orders~2"
    assert (room.root / "topics" / "orders").exists()


def test_a_topic_whose_record_cannot_be_written_is_gone_again(room: Room) -> None:
    catalogue = room.open()
    room.create(room.open(), "taken")
    topic = catalogue.create("taken", 1, TopicSettings())
    creation = topic.creation
    if creation is not None:
        with pytest.raises(RecordConflict, match="changed meanwhile"):
            creation.result(HANG_S)
    room.settle()
    assert catalogue.find("taken") is None


def test_the_id_of_a_deleted_topic_is_never_given_again(room: Room) -> None:
    ids = []
    for _ in range(3):
        catalogue = room.open()
        ids.append(catalogue.create("orders", 1, TopicSettings()).info.id)
        catalogue.remove("orders", lambda topic: None).result(HANG_S)
    assert ids == [1, 2, 3]


def test_a_change_of_a_record_that_somebody_else_has_changed_fails(room: Room) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders")
    other = room.open()
    other.change("orders", {"retention_ms": 9}, None).result(HANG_S)
    with pytest.raises(RecordConflict):
        catalogue.change("orders", {"retention_ms": 8}, None).result(HANG_S)
    assert room.open().get("orders").info.settings.retention_ms == 9


def test_a_change_of_a_topic_that_is_gone_by_then_fails(room: Room) -> None:
    catalogue = room.open()
    room.create(catalogue, "orders")
    room.metadata.change((Delete("topics", "orders"),)).result(HANG_S)
    with pytest.raises(RecordConflict):
        catalogue.change("orders", {"retention_ms": 8}, None).result(HANG_S)
