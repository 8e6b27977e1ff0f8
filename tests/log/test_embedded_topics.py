"""The embedded engine: topics from creation to deletion, and the offsets of groups."""

import errno
import threading
from pathlib import Path

import pytest
from kit.engines import (
    WAIT_S,
    BusyMetadata,
    Opener,
    batch,
    change,
    delete,
    flushed,
    make,
    put,
    settle,
    values_of,
)
from kit.faulty_files import FaultyFiles

from penstock.log.errors import InvalidTopicName, UnknownPartition, UnknownTopic
from penstock.log.metadata_errors import MetadataRefused
from penstock.log.records import Delete
from penstock.log.settings import TopicSettings


def test_create_describe_list_delete(opened: Opener) -> None:
    engine = opened()
    for name in ("b", "a"):
        make(engine, name, 2)
    assert [info.name for info in engine.topics()] == ["a", "b"]
    info = engine.topic("a")
    assert info is not None and (info.partitions, info.settings) == (2, TopicSettings())
    put(engine, "a", b"one", b"two", partition=1)
    described = engine.partition_info("a", 1)
    assert (described.earliest, described.latest, described.next_offset) == (0, 2, 2)
    assert (described.segments, described.stopped, described.damages) == (1, None, ())
    assert described.size_bytes > 0
    delete(engine, "a")
    assert engine.topic("a") is None
    with pytest.raises(UnknownTopic):
        engine.read("a", 0, 0, 1)
    with pytest.raises(UnknownPartition):
        engine.append("b", 2, batch(b"v"))


def test_topics_and_records_are_there_after_a_restart(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders", 2, durability="none")
    put(engine, "orders", b"one", b"two")
    put(engine, "orders", b"three", partition=1)
    before = engine.topics()
    engine = opened()
    assert engine.topics() == before
    assert values_of(engine, "orders") == [b"one", b"two"]
    assert values_of(engine, "orders", 1) == [b"three"]
    assert put(engine, "orders", b"four") == 2


def test_a_deleted_topic_gives_its_space_back_and_can_be_created_at_once(
    opened: Opener, tmp_path: Path
) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"old" * 1000)
    old = engine.topic("orders")
    delete(engine, "orders")
    make(engine, "orders")
    new = engine.topic("orders")
    assert old is not None and new is not None and new.id > old.id
    assert engine.offsets("orders", 0) == (0, 0)
    assert put(engine, "orders", b"new") == 0
    engine = opened()
    assert values_of(engine, "orders") == [b"new"]
    logs = list((tmp_path / "data" / "topics").rglob("*.log"))
    assert len(logs) == 1 and logs[0].stat().st_size < 1000


def test_a_deleted_topic_keeps_no_file_open(opened: Opener, files: FaultyFiles) -> None:
    engine = opened()
    make(engine, "orders")
    with files.pause("write", suffix=".log") as paused:
        token = engine.append("orders", 0, batch(b"v"))
        paused.wait_until_reached()
        late = engine.append("orders", 0, batch(b"v"))
        deleting = threading.Thread(target=lambda: engine.delete_topic("orders"))
        deleting.start()
        with pytest.raises(UnknownTopic):
            late.result(WAIT_S)
    deleting.join(WAIT_S)
    settle(engine)
    assert token.result(WAIT_S) == 0
    engine.catalogue.wait_for_removals()
    assert len(engine.pool) == 0


def test_an_interrupted_delete_finishes_at_the_next_start(
    opened: Opener, files: FaultyFiles, tmp_path: Path
) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"v")
    files.fail("remove_tree", errno.EIO)
    engine.delete_topic("orders")
    settle(engine)
    engine.close()
    topics = tmp_path / "data" / "topics"
    assert [path.name for path in topics.iterdir()] == ["orders"]
    engine = opened()
    assert engine.topics() == [] and list(topics.iterdir()) == []


def test_names_that_look_alike_hold_their_own_records(opened: Opener) -> None:
    names = ["..", "a/b", "a%2fb", "A", "a", "%41", ".", "penstock.lock", "ü" * 124]
    engine = opened()
    for name in names:
        make(engine, name)
        put(engine, name, name.encode())
    engine = opened()
    assert {name: values_of(engine, name) for name in names} == {n: [n.encode()] for n in names}


@pytest.mark.parametrize("name", [" ", "a\u202eb"])
def test_a_topic_that_is_there_keeps_a_name_that_no_new_one_may_have(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Made by an older version."""
    engine = opened()
    with pytest.raises(InvalidTopicName):
        engine.create_topic(name)
    with monkeypatch.context() as older:
        older.setattr("penstock.log.metadata.catalogue.check_topic_name", lambda name: None)
        make(engine, name)
    put(engine, name, b"one")
    engine = opened()
    assert put(engine, name, b"two") == 1
    assert values_of(engine, name) == [b"one", b"two"]
    delete(engine, name)
    assert engine.topics() == []


def test_settings_and_partitions_change(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"before")
    change(engine, "orders", 3, durability="none")
    assert put(engine, "orders", b"after", partition=2) == 0
    assert engine.catalogue.partition("orders", 2).counters.flushes == 0
    engine = opened()
    info = engine.topic("orders")
    assert info is not None and (info.partitions, info.settings.durability) == (3, "none")
    assert values_of(engine, "orders") == [b"before"]
    assert values_of(engine, "orders", 2) == [b"after"]


# --- a topic that is still being created ----------------------------------------------------------


def test_an_append_waits_for_its_topic_to_be_durable(opened: Opener) -> None:
    engine = opened()
    busy = BusyMetadata(engine)
    engine.create_topic("orders")
    token = engine.append("orders", 0, batch(b"v"))
    assert flushed(engine, "orders").wait(WAIT_S)
    assert not token.done and engine.topic_durable("orders") is not None
    busy.release()
    assert token.result(WAIT_S) == 0
    settle(engine)
    assert engine.topic_durable("orders") is None
    assert put(engine, "orders", b"w") == 1


def test_a_topic_that_cannot_be_created_takes_its_appends_with_it(
    opened: Opener, tmp_path: Path
) -> None:
    engine = opened()
    busy = BusyMetadata(engine)
    engine.metadata.submit(lambda db: db.execute("DROP TABLE records"))
    engine.create_topic("orders")
    creation = engine.topic_durable("orders")
    token = engine.append("orders", 0, batch(b"v"))
    assert creation is not None and flushed(engine, "orders").wait(WAIT_S)
    busy.release()
    with pytest.raises(MetadataRefused):
        token.result(WAIT_S)
    with pytest.raises(MetadataRefused):
        creation.result(WAIT_S)
    settle(engine)
    assert engine.topic("orders") is None
    with pytest.raises(UnknownTopic):
        engine.append("orders", 0, batch(b"v"))
    engine.close()
    assert list((tmp_path / "data" / "topics").iterdir()) == []


# --- groups -----------------------------------------------------------------------------------------


def test_group_offsets_are_durable(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders", 2)
    assert engine.committed_offset("g", "orders", 0) is None
    for offset in (3, 7):
        engine.commit_offset("g", "orders", 0, offset).result(WAIT_S)
    engine.commit_offset("h", "orders", 1, 1).result(WAIT_S)
    settle(engine)
    expected = {"g": {("orders", 0): 7}, "h": {("orders", 1): 1}}
    assert engine.groups() == expected
    engine = opened()
    assert engine.groups() == expected
    assert engine.committed_offset("g", "orders", 0) == 7
    with pytest.raises(UnknownPartition):
        engine.commit_offset("g", "orders", 2, 1)


def test_a_deleted_topic_takes_its_group_offsets_with_it(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    engine.commit_offset("g", "orders", 0, 5).result(WAIT_S)
    settle(engine)
    busy = BusyMetadata(engine)
    late = engine.commit_offset("g", "orders", 0, 9)
    deletion = engine.delete_topic("orders")
    too_late = engine.commit_offset("g", "orders", 0, 11)
    busy.release()
    late.result(WAIT_S)
    deletion.result(WAIT_S)
    with pytest.raises(UnknownTopic):
        too_late.result(WAIT_S)
    make(engine, "orders")
    assert engine.committed_offset("g", "orders", 0) is None
    engine = opened()
    assert engine.groups() == {}


def test_a_commit_for_a_topic_that_is_not_stored_fails(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    engine.metadata.change((Delete("topics", "orders"),)).result(WAIT_S)
    with pytest.raises(UnknownTopic):
        engine.commit_offset("g", "orders", 0, 5).result(WAIT_S)
    assert engine.committed_offset("g", "orders", 0) is None


def test_a_purge_survives_a_restart_and_gives_space_back(opened: Opener) -> None:
    engine = opened()
    make(engine, "t", 2)
    for partition in (0, 1):
        put(engine, "t", b"x" * 10_000, b"y", partition=partition)
    freed_bytes = engine.purge_topic("t").result(WAIT_S)
    assert freed_bytes > 20_000
    for _ in range(2):
        for partition in (0, 1):
            info = engine.partition_info("t", partition)
            assert (info.earliest, info.latest, info.size_bytes) == (2, 2, 0)
        engine = opened()
    assert put(engine, "t", b"z") == 2
    assert engine.purge_topic("t").result(WAIT_S) > 0
    with pytest.raises(UnknownTopic):
        engine.purge_topic("missing")


def test_a_deleted_group_stays_deleted(opened: Opener) -> None:
    engine = opened()
    for name in ("a", "b"):
        make(engine, name, 2)
        for group in ("g", "g/h", "other"):
            for partition in (0, 1):
                engine.commit_offset(group, name, partition, 7)
    settle(engine)
    engine.delete_group("g")
    engine.delete_group("never was")
    settle(engine)
    for _ in range(2):
        assert sorted(engine.groups()) == ["g/h", "other"]
        assert len(engine.group("other")) == len(engine.group("g/h")) == 4
        assert (engine.group("g"), engine.committed_offset("g", "a", 0)) == ({}, None)
        assert engine.sizes().groups == 2
        engine = opened()
    engine.commit_offset("g", "a", 1, 3)
    settle(engine)
    assert engine.group("g") == {("a", 1): 3}
