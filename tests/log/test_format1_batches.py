"""A data directory that was written before batch format 2: opened, read, appended to, compacted.

tests/data/format1 holds it; every test works on a copy.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.encryption import with_keys
from kit.engines import WAIT_S, put, values_of
from kit.records import Row, build, rows_of

from penstock.log.batch.view import BatchView
from penstock.log.embedded import EmbeddedEngine
from penstock.log.partitions import cleaner
from penstock.log.partitions.reencryption import Pace, reencrypt
from penstock.log.partitions.verify import verify
from penstock.log.storage.files import RealFiles
from penstock.log.storage.follower import Follower
from penstock.log.storage.reader import ReadResult

OLD = Path(__file__).parent.parent / "data" / "format1"
SMALL = [b"small %03d.%d " % (n, i) + b"x" * 60 for n in range(40) for i in range(5)]
PLAIN = {p: [b"plain %d.%d.%d" % (p, n, i) for n in range(3) for i in range(4)] for p in (0, 1)}
RICH = [
    Row(
        b"v%d" % i,
        5 + i,
        None if i % 3 else b"k%d" % i,
        ((b"h", b"%d" % i),) * (i % 3),
        (1 << 60) if i % 2 else 0,
    )
    for i in range(12)
]
VALUES = {
    "small": SMALL,
    "packed": [b"packed " * 50] * 20,
    "weak": [b"weak 0", b"weak 1"],
    "staged": [b"staged 0", b"staged 1"],
}
# Of each key the newest value; key 1 was deleted by an empty value and written again after it.
NEWEST = {b"key %d" % key: n for n in range(40) for key in ((n * 3) % 7 + i for i in range(3))}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "data"))


@pytest.fixture
def engine(directory: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(str(directory))
    yield engine
    engine.close()


def views_of(engine: EmbeddedEngine, topic: str) -> list[BatchView]:
    views: list[BatchView] = []
    offset, end = engine.offsets(topic, 0)
    while offset < end:
        found: ReadResult = engine.read(topic, 0, offset, 1 << 20).result(WAIT_S)
        views += found.views
        offset = found.next_offset
    return views


def versions(engine: EmbeddedEngine, topic: str) -> list[int]:
    """Of the batches as they lie on the disk, in order, each once."""
    engine.cache.drop({engine.catalogue.partition(topic, 0).tail})
    return list(dict.fromkeys(view.header.version for view in views_of(engine, topic)))


def test_it_is_clean(directory: Path) -> None:
    report = verify(RealFiles(), str(directory))
    assert report.damages == [] and report.torn == []
    assert report.records == sum(map(len, VALUES.values())) + 24 + 12 + 121


def test_everything_is_there(engine: EmbeddedEngine) -> None:
    for topic, values in VALUES.items():
        assert values_of(engine, topic) == values
        assert versions(engine, topic) == [1]
    for partition, values in PLAIN.items():
        assert values_of(engine, "plain", partition) == values
    rich = [record for view in views_of(engine, "rich") for record in view.records()]
    assert [
        Row(r.value or b"", r.time_us, r.key, tuple(r.headers), r.expiry_us) for r in rich
    ] == RICH


@pytest.mark.parametrize("topic", VALUES)
def test_version_2_goes_behind_version_1(directory: Path, topic: str) -> None:
    for number in range(2):
        engine = EmbeddedEngine(str(directory))
        put(engine, topic, b"new %d" % number)
        assert versions(engine, topic) == [1, 2]
        engine.close()
    engine = EmbeddedEngine(str(directory))
    assert values_of(engine, topic) == [*VALUES[topic], b"new 0", b"new 1"]
    partition = engine.catalogue.partition(topic, 0)
    assert partition.recovered.damages == []
    # Not mixed in one file; the second start goes on in the file of the first.
    assert partition.salt.since == partition.segments[-1].base_offset == len(VALUES[topic])
    follower = Follower(partition.directory, engine.clock_us)
    follower.told(partition.start_offset, partition.visible_offset)
    found = follower.read(len(VALUES[topic]) - 1, 1 << 20, lambda: (0, partition.visible_offset))
    while found.next_offset < partition.visible_offset:
        more = follower.read(found.next_offset, 1 << 20, lambda: (0, partition.visible_offset))
        found = ReadResult(found.views + more.views, more.next_offset, more.end_offset)
    last = [value for view in found.views for value in view.values()]
    assert last == [VALUES[topic][-1], b"new 0", b"new 1"]
    engine.close()
    report = verify(RealFiles(), str(directory))
    assert report.damages == [] and report.torn == []


def test_what_was_staged_is_committed(engine: EmbeddedEngine) -> None:
    assert engine.transactions.state("done") == "committed"
    engine.transactions.commit("open", [1])
    assert values_of(engine, "staged") == [b"staged 0", b"staged 1", b"never seen"]


def test_small_batches_are_merged(directory: Path, engine: EmbeddedEngine) -> None:
    put(engine, "small", *SMALL[:50])
    partition = engine.catalogue.partition("small", 0)
    partition.roll(1 << 62)
    put(engine, "small", b"active")
    assert cleaner.merge_small_batches(partition).segments > 2
    assert versions(engine, "small") == [2]
    assert values_of(engine, "small") == [*SMALL, *SMALL[:50], b"active"]
    engine.close()
    again = EmbeddedEngine(str(directory))
    assert values_of(again, "small") == [*SMALL, *SMALL[:50], b"active"]
    again.close()


def test_it_is_compacted(directory: Path, engine: EmbeddedEngine) -> None:
    """An empty value that version 1 has written is a deletion mark, one of version 2 is a value."""
    rows = [Row(b"", 2_000_000, b"key 2"), Row(b"", 2_000_000, b"key 3", null=True), Row(b"end")]
    engine.append("compacted", 0, build(rows)).result(WAIT_S)
    partition = engine.catalogue.partition("compacted", 0)
    partition.roll(1 << 62)
    put(engine, "compacted", b"active")
    marks = [record.key for view in views_of(engine, "compacted") for record in view.records()
             if not record.value and view.is_deletion(view.row_at(record.offset))]  # fmt: skip
    assert marks == [b"key 1", b"key 3"]
    for _ in range(3):
        cleaner.compact(partition, engine.clock_us())
    left = [record for view in views_of(engine, "compacted") for record in view.records()]
    found = {record.key: record.value for record in left if record.key is not None}
    expected: dict[bytes, bytes | None] = {
        key: b"value %03d " % number + b"y" * 100 for key, number in NEWEST.items()
    }
    expected[b"key 2"] = b""
    del expected[b"key 3"]
    assert found == expected
    engine.close()
    again = EmbeddedEngine(str(directory))
    assert [r.value for view in views_of(again, "compacted") for r in view.records()] == [
        record.value for record in left
    ]
    again.close()


def test_a_mark_of_version_1_stays_one_when_it_is_written_anew(engine: EmbeddedEngine) -> None:
    """Merged into a batch of version 2 it still deletes, when its time has come."""
    partition = engine.catalogue.partition("compacted", 0)
    put(engine, "compacted", b"active")
    cleaner.merge_small_batches(partition)
    assert versions(engine, "compacted")[0] == 2
    marks = [
        view.key(row)
        for view in views_of(engine, "compacted")
        for row in range(view.first_row, view.last_row)
        if view.is_deletion(row)
    ]
    assert marks == [b"key 1"]


@pytest.mark.parametrize("topic", ["rich", "compacted", "packed", "small"])
def test_old_records_are_encrypted(directory: Path, topic: str) -> None:
    """Segments of format 1 are rewritten; every column comes back, and deletion marks stay such."""

    def everything(engine: EmbeddedEngine) -> list[tuple[Row, int, bool]]:
        views = views_of(engine, topic)
        rows = rows_of(views)
        numbers = [(view, row) for view in views for row in range(view.first_row, view.last_row)]
        return [
            (found, view.offset_of(row), view.is_deletion(row))
            for found, (view, row) in zip(rows, numbers, strict=True)
        ]

    engine = EmbeddedEngine(str(directory), with_keys(1))
    try:
        before = everything(engine)
        engine.change_topic(topic, {"encryption": True, "retention_ms": 0}).result(WAIT_S)
        partition = engine.catalogue.partition(topic, 0)
        reencrypt(partition, Pace(lambda _: False))
        assert before and partition.key_ids() == {1}
        engine.cache.drop({partition.tail})
        assert everything(engine) == before
    finally:
        engine.close()
    assert verify(RealFiles(), str(directory)).clean
