"""Encrypted topics of the embedded engine: no plaintext on disk, and every reader gets the records."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from kit.encryption import KEYS, SECRET, files_with, keys, with_keys
from kit.engines import WAIT_S, Opener, batch, change, put, settle, values_of
from kit.partitions import Clock
from kit.records import Row, build
from kit.transactions import HOUR_US

from penstock.log.batch.encryption import Keyring
from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Keys
from penstock.log.errors import CorruptLog, InvalidSettings, KeyMissing, KeyWrong
from penstock.log.maintenance import Maintenance
from penstock.log.metadata.rebuild import rebuild
from penstock.log.partitions import reencryption
from penstock.log.partitions.reencryption import Pace
from penstock.log.partitions.verify import verify
from penstock.log.settings import TopicSettings
from penstock.log.storage import reader
from penstock.log.storage.files import RealFiles
from penstock.log.storage.follower import Follower


@pytest.fixture(autouse=True)
def rounds_by_hand(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A test says when a round of maintenance runs."""
    if "by_itself" not in request.node.name:
        monkeypatch.setattr(Maintenance, "soon", lambda _: None)


def make(engine: EmbeddedEngine, name: str, **settings: object) -> None:
    """Keeps what is as old as the records of these tests."""
    chosen = TopicSettings(retention_ms=0).changed(settings)
    engine.create_topic(name, 1, chosen)
    settle(engine)


def rows(count: int, first: int = 0) -> list[Row]:
    return [
        Row(SECRET + b" value %d" % n, n, SECRET + b" key %d" % (n % 3), ((SECRET, SECRET),))
        for n in range(first, first + count)
    ]


def fill(engine: EmbeddedEngine, topic: str = "orders", batches: int = 12) -> list[bytes]:
    """Over some segments of 4 KiB; gives the values."""
    values = []
    for number in range(batches):
        some = rows(5, 5 * number)
        engine.append(topic, 0, build(some)).result(WAIT_S)
        values += [row.value for row in some]
    return values


def key_ids(engine: EmbeddedEngine, topic: str = "orders") -> set[int]:
    engine.catalogue.partition(topic, 0)
    return set(engine.partition_info(topic, 0).key_ids or ())


def from_disk(engine: EmbeddedEngine, topic: str = "orders") -> list[bytes]:
    """Past the cache."""
    partition = engine.catalogue.partition(topic, 0)
    engine.cache.drop({partition.tail})
    return values_of(engine, topic, 0, partition.start_offset)


def maintained(engine: EmbeddedEngine) -> None:
    engine.maintain()
    settle(engine)


@contextmanager
def refused(error: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(error) as caught:
        yield
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text and KEYS[1].hex() not in text


@pytest.mark.parametrize("durability", ["ack", "none"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_no_plaintext_on_disk(opened: Opener, durability: str, compression: str) -> None:
    engine = opened(with_keys(1))
    settings = {"durability": durability, "compression": compression, "segment_bytes": 4096}
    make(engine, "orders", encryption=True, **settings)
    values = fill(engine)
    assert values_of(engine, "orders") == from_disk(engine) == values
    assert key_ids(engine) == {1}
    maintained(engine)
    assert from_disk(engine) == values
    assert files_with(engine.directory) == []
    engine = opened(with_keys(1))
    assert from_disk(engine) == values
    assert put(engine, "orders", SECRET) == len(values)
    engine.close()
    assert files_with(engine.directory) == []


def test_a_topic_that_is_not_encrypted_stays_plain(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "open")
    put(engine, "open", SECRET)
    assert key_ids(engine, "open") == {0} and engine.keys_needed("open") == []
    assert files_with(engine.directory)


def test_without_a_key_no_topic_can_be_encrypted(opened: Opener) -> None:
    engine = opened()
    assert not engine.can_encrypt
    with refused(InvalidSettings, "encryption", "encryption.keys"):
        make(engine, "orders", encryption=True)
    make(engine, "orders")
    with refused(InvalidSettings, "encryption", "encryption.keys"):
        change(engine, "orders", encryption=True)
    assert put(engine, "orders", b"v") == 0


# --- keys that are missing or wrong ----------------------------------------------------------------


def test_a_missing_key_refuses_the_start(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    values = fill(engine)
    engine.close()
    for options in (None, with_keys(2)):
        with refused(KeyMissing, "'orders'", "key 1", "encryption.keys"):
            opened(options)
    assert from_disk(opened(with_keys(1))) == values


def test_a_wrong_key_refuses_the_start(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    engine.close()  # before the first record: the metadata alone tells
    with refused(KeyWrong, "'orders'", "number 1"):
        opened(replace(with_keys(1), keys=Keys({1: KEYS[2]}, 1)))
    assert opened(with_keys(1)).can_encrypt


def test_keys_that_nobody_needs_may_go_or_change(opened: Opener) -> None:
    opened(with_keys(1))
    opened(replace(with_keys(1), keys=Keys({1: KEYS[2]}, 1)))
    opened()
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    assert engine.keys_needed("orders") == [1]


def test_use_keys_changes_nothing_when_one_is_missing(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    with refused(KeyMissing, "'orders'", "key 1"):
        engine.use_keys(keys(2))
    put(engine, "orders", b"v")
    assert engine.keys.ids() == [1] and key_ids(engine) == {1}


# --- rotation --------------------------------------------------------------------------------------


def test_rotation_encrypts_everything_anew(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    values = fill(engine)
    engine.use_keys(keys(1, 2))
    put(engine, "orders", SECRET)
    assert key_ids(engine) == {1, 2}, "new records use the new key at once"
    assert engine.keys_needed("orders") == [1, 2]
    maintained(engine)
    assert key_ids(engine) == {2} and engine.keys_needed("orders") == [2]
    assert from_disk(engine) == [*values, SECRET]
    assert engine.statistics().reencrypted_segments >= 3
    engine.use_keys(keys(2))
    assert from_disk(engine) == [*values, SECRET]
    assert from_disk(opened(with_keys(2))) == [*values, SECRET]
    assert files_with(engine.directory) == []


def test_rotation_goes_on_in_rounds(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round does a part, so that retention has its turn in between, and the next one goes on."""
    monkeypatch.setattr(reencryption, "ROUND_BYTES", 4096)
    wanted: list[object] = []

    def note(one: Maintenance) -> None:
        wanted.append(one)

    monkeypatch.setattr(Maintenance, "soon", note)
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    values = fill(engine)
    engine.use_keys(keys(1, 2))
    wanted.clear()
    maintained(engine)
    assert len(wanted) == 1, "the round asks for the next"
    engine.use_keys(keys(1, 2, 3))
    fill(engine)
    partition = engine.catalogue.partition("orders", 0)
    rounds = 0
    while reencryption.is_stale(partition):
        assert reencryption.reencrypt(partition, Pace(lambda _: False)).segments
        rounds += 1
    assert rounds >= 2 and from_disk(engine) == [*values, *values]


def test_rotation_that_is_stopped_leaves_the_segments_as_they_were(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reencryption, "STEP_BYTES", 1)
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    values = fill(engine)
    engine.use_keys(keys(1, 2))
    engine._maintenance._closing.set()
    partition = engine.catalogue.partition("orders", 0)
    assert reencryption.reencrypt(partition, Pace(lambda _: True)).segments == 0
    engine._maintenance._closing.clear()
    assert not list(Path(engine.directory).rglob("*.tmp"))
    assert from_disk(engine) == values and 1 in key_ids(engine)


def test_rotation_begins_by_itself(opened: Opener) -> None:
    """After a change of keys, after a start with another key, and when a topic is changed."""
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    put(engine, "orders", SECRET)
    engine.use_keys(keys(1, 2))
    until(lambda: engine.keys_needed("orders") == [2], "a change of keys")
    engine.close()
    engine = opened(with_keys(2, 3))
    until(lambda: engine.keys_needed("orders") == [3], "a start with another key")
    change(engine, "orders", encryption=False)
    until(lambda: engine.keys_needed("orders") == [], "a change of the topic")
    assert from_disk(engine) == [SECRET]


def test_rotation_reaches_partitions_that_nobody_opened(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    make(engine, "empty", encryption=True)
    put(engine, "orders", SECRET)
    engine.close()
    engine = opened(with_keys(1, 2))
    assert engine.keys_needed("orders") == engine.keys_needed("empty") == [1, 2]
    maintained(engine)
    assert engine.keys_needed("orders") == engine.keys_needed("empty") == [2]
    assert from_disk(opened(with_keys(2))) == [SECRET]


def test_the_way_back_to_an_older_key(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    put(engine, "orders", b"one")
    engine.use_keys(keys(1, 2))
    put(engine, "orders", b"two")
    engine.use_keys(keys(1, 2, current=1))
    put(engine, "orders", b"three")
    assert engine.keys_needed("orders") == [1, 2]
    maintained(engine)
    assert key_ids(engine) == {1} and engine.keys_needed("orders") == [1]
    assert from_disk(opened(with_keys(1))) == [b"one", b"two", b"three"]


def test_a_key_is_needed_while_something_is_staged_with_it(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    engine.transactions.begin("q", HOUR_US)
    engine.transactions.stage("q", 0, "orders", 0, batch(SECRET))
    engine.use_keys(keys(1, 2))
    maintained(engine)
    assert engine.keys_needed("orders") == [1, 2]
    engine.transactions.commit("q", [0])
    maintained(engine)
    assert engine.keys_needed("orders") == [2]
    assert from_disk(opened(with_keys(2))) == [SECRET]


def test_encryption_is_turned_on_and_off(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", segment_bytes=4096)
    values = fill(engine)
    assert files_with(engine.directory)
    change(engine, "orders", encryption=True)
    put(engine, "orders", SECRET)
    assert key_ids(engine) == {0, 1}
    maintained(engine)
    assert key_ids(engine) == {1} and files_with(engine.directory) == []
    assert from_disk(engine) == [*values, SECRET]
    change(engine, "orders", encryption=False)
    put(engine, "orders", b"open")
    maintained(engine)
    assert key_ids(engine) == {0} and engine.keys_needed("orders") == []
    assert from_disk(opened()) == [*values, SECRET, b"open"]


def test_turning_it_on_reaches_partitions_after_a_restart(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", SECRET)
    engine.close()
    engine = opened(with_keys(1))
    change(engine, "orders", encryption=True)
    engine.close()
    engine = opened(with_keys(1))
    maintained(engine)
    assert files_with(engine.directory) == [] and from_disk(engine) == [SECRET]


def test_a_damaged_segment_keeps_its_key(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    fill(engine)
    segment = engine.catalogue.partition("orders", 0).segments[1]
    with open(segment.path, "r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    engine.use_keys(keys(1, 2))
    maintained(engine)
    assert key_ids(engine) == {1, 2}
    assert engine.keys_needed("orders") == [1, 2]
    assert engine.partition_info("orders", 0).damages


# --- what else writes and reads ----------------------------------------------------------------------


def test_compaction_and_merging(opened: Opener) -> None:
    clock = Clock(10_000_000)
    engine = opened(with_keys(1), clock_us=clock)
    make(engine, "orders", encryption=True, segment_bytes=4096, cleanup="compact", tombstone_ms=0)
    values = fill(engine, batches=20)
    maintained(engine)
    left = from_disk(engine)
    assert len(left) < len(values) / 2 and left[-3:] == values[-3:]
    assert key_ids(engine) == {1}
    engine.close()
    # Where a compacted segment ends is known without a key.
    assert verify(RealFiles(), engine.directory).clean
    engine = opened(with_keys(1), clock_us=clock)
    assert from_disk(engine) == left and files_with(engine.directory) == []


def test_an_index_is_made_anew_without_a_key(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096, cleanup="compact", tombstone_ms=0)
    fill(engine, batches=20)
    maintained(engine)
    left = from_disk(engine)
    engine.close()
    indexes = list(Path(engine.directory).rglob("*.index"))
    contents = [path.read_bytes() for path in indexes]
    for path in indexes:
        path.unlink()
    assert contents
    assert from_disk(opened(with_keys(1))) == left
    assert [path.read_bytes() for path in indexes] == contents


@pytest.mark.parametrize("at_once", [True, False])
def test_staged_records_are_encrypted(
    opened: Opener, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a commit is decided and cannot be finished."""
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    make(engine, "open")
    monkeypatch.setattr(engine.transactions._applier, "_append_all", _no_space)
    targets = [("orders", 0, batch(SECRET)), ("open", 0, batch(b"not secret"))]
    with pytest.raises(Exception, match="decided"):
        if at_once:
            engine.transactions.commit_at_once("q", targets)
        else:
            engine.transactions.begin("q", HOUR_US)
            engine.transactions.stage_groups("q", 0, [targets])
            assert files_with(engine.directory, b"not secret")
            engine.transactions.commit("q", {0: 1})
    assert files_with(engine.directory) == []
    assert files_with(engine.directory, b"not secret")
    # Killed here: a copy is what the next process finds.
    copy = f"{engine.directory}-copy"
    shutil.copytree(engine.directory, copy)
    again = EmbeddedEngine(copy, with_keys(1))
    assert (values_of(again, "orders"), values_of(again, "open")) == ([SECRET], [b"not secret"])
    again.close()
    assert files_with(copy) == []


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_follower_reads_what_is_encrypted(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    values = fill(engine)
    partition = engine.catalogue.partition("orders", 0)
    ends = partition.start_offset, partition.visible_offset
    follower = Follower(partition.directory, Clock(), keys=engine.keys)
    follower.told(*ends)
    found: list[bytes] = []
    offset = 0
    while offset < ends[1]:
        result = follower.read(offset, 1000, lambda: ends)
        found += [value for view in result.views for value in view.values()]
        offset = result.next_offset
    assert found == values
    blind = Follower(partition.directory, Clock(), pause=lambda _: None)
    blind.told(*ends)
    with pytest.raises(CorruptLog, match="key 1"):
        blind.read(0, 1000, lambda: ends)


def test_records_are_found_by_time(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    fill(engine)
    partition = engine.catalogue.partition("orders", 0)
    engine.cache.drop({partition.tail})
    assert reader.offset_at_time(partition, 33) == 33


def test_bytes_that_somebody_changed_are_refused(opened: Opener) -> None:
    """With a checksum that is right: only the key tells."""
    from crc32c import crc32c

    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    put(engine, "orders", SECRET)
    partition = engine.catalogue.partition("orders", 0)
    with open(partition.segments[0].path, "r+b") as file:
        content = bytearray(file.read())
        content[130] ^= 1
        checksum = crc32c(bytes(content[12:80]), crc32c(bytes(content[80:])))
        content[8:12] = checksum.to_bytes(4, "little")
        file.seek(0)
        file.write(content)
    with pytest.raises(CorruptLog, match="cannot be decrypted with key 1"):
        from_disk(engine)


def test_a_backup_that_is_restored_goes_on(opened: Opener, tmp_path: Path) -> None:
    """Two directories that go on from the same place share no nonce."""
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    put(engine, "orders", b"common")
    engine.close()
    copies = []
    for name in ("one", "two"):
        shutil.copytree(engine.directory, tmp_path / name)
        copy = EmbeddedEngine(str(tmp_path / name), with_keys(1))
        put(copy, "orders", b"same plaintext at the same offset")
        copies.append(copy.catalogue.partition("orders", 0).segments[0].path)
        copy.close()
    first, second = (Path(path).read_bytes() for path in copies)
    assert len(first) == len(second)
    common = next(n for n in range(len(first)) if first[n] != second[n])
    bodies = [content[common // 8 * 8 :] for content in (first, second)]
    assert bodies[0][-64:] != bodies[1][-64:]


# --- without keys ------------------------------------------------------------------------------------


def test_verify_needs_no_keys(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True, segment_bytes=4096)
    make(engine, "open")
    fill(engine)
    put(engine, "open", b"v")
    engine.close()
    report = verify(RealFiles(), engine.directory)
    assert report.clean and report.batches_by_key == {0: 1, 1: 12}
    assert verify(RealFiles(), engine.directory, engine.keys).clean
    wrong = verify(RealFiles(), engine.directory, Keyring({1: KEYS[2]}, 1))
    assert len(wrong.damages) == 12


def test_metadata_that_was_rebuilt_asks_for_the_keys(opened: Opener) -> None:
    engine = opened(with_keys(1))
    make(engine, "orders", encryption=True)
    make(engine, "forgotten", encryption=True)
    put(engine, "orders", SECRET)
    put(engine, "forgotten", SECRET)
    engine.close()
    for path in Path(engine.directory).glob("metadata.db*"):
        path.unlink()
    next(Path(engine.directory).glob("topics/forgotten/topic.json")).unlink()
    rebuild(RealFiles(), engine.directory, 5)
    with refused(KeyMissing, "key 1"):
        opened()
    engine = opened(with_keys(1))
    assert from_disk(engine) == from_disk(engine, "forgotten") == [SECRET]
    put(engine, "forgotten", SECRET)
    engine.close()
    assert files_with(engine.directory) == []
