"""A partition read by another process: sees all that is durable, nothing else, whatever the writer does."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.engines import WAIT_S, Opener, batch, make, put
from kit.faulty_files import FaultyFiles
from kit.records import offsets_of

from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import CorruptLog, OffsetOutOfRange
from penstock.log.partitions import cleaner
from penstock.log.partitions.partition import Partition
from penstock.log.settings import MIN_SEGMENT_BYTES
from penstock.log.storage.follower import Follower, Identity, identify
from penstock.log.storage.reader import ReadResult
from penstock.log.storage.segment import Segment

NOW_US = 1_000


def partition_of(engine: EmbeddedEngine) -> Partition:
    return engine.catalogue.partition("t", 0)


class Following:
    """A follower that asks the engine for its offsets, as the Flight process does."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.pauses: list[float] = []
        self.identities = 0
        self.follower = Follower(
            partition_of(engine).directory,
            lambda: NOW_US,
            identify=self._identify,
            pause=self.pauses.append,
        )

    def _identify(self, path: str) -> Identity:
        self.identities += 1
        return identify(path)

    def refresh(self) -> tuple[int, int]:
        return self.engine.offsets("t", 0)

    def read(self, offset: int, max_bytes: int = 1 << 20) -> ReadResult:
        return self.follower.read(offset, max_bytes, self.refresh)

    def values(self, offset: int | None = None) -> list[bytes]:
        """All values from `offset` on, after asking where the log ends."""
        earliest, latest = self.refresh()
        self.follower.told(earliest, latest)
        offset = earliest if offset is None else offset
        found: list[bytes] = []
        while offset < latest:
            result = self.read(offset)
            found.extend(value for view in result.views for value in view.values())
            assert result.next_offset > offset
            offset = result.next_offset
        return found


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    return opened()


@pytest.fixture
def small(engine: EmbeddedEngine) -> EmbeddedEngine:
    """With a topic that rolls every few batches."""
    make(engine, "t", segment_bytes=MIN_SEGMENT_BYTES)
    return engine


def fill(engine: EmbeddedEngine, count: int, first: int = 0) -> list[bytes]:
    values = [b"%06d" % number + b"x" * 200 for number in range(first, first + count)]
    for token in [engine.append("t", 0, batch(value)) for value in values]:
        token.result(WAIT_S)
    partition_of(engine).finish_rolls()
    return values


def snapshot(directory: str) -> dict[str, tuple[int, int]]:
    return {
        entry.name: (entry.stat().st_mtime_ns, entry.stat().st_size)
        for entry in os.scandir(directory)
    }


def test_appends_are_seen_as_they_come(engine: EmbeddedEngine) -> None:
    make(engine, "t")
    following = Following(engine)
    assert following.values() == []
    for number in range(5):
        put(engine, "t", b"a%d" % number, b"b%d" % number)
        assert len(following.values()) == 2 * (number + 1)
    assert following.values(7) == [b"b3", b"a4", b"b4"]
    assert following.pauses == []


def test_rolls_are_followed(small: EmbeddedEngine) -> None:
    following = Following(small)
    written: list[bytes] = []
    for round_number in range(6):
        written += fill(small, 12, 12 * round_number)
        assert following.values() == written
    assert len(partition_of(small).segments) > 5
    assert following.values(40) == written[40:]
    assert following.pauses == []


def test_a_fresh_follower_uses_the_index_files(small: EmbeddedEngine) -> None:
    written = fill(small, 60)
    assert any(name.endswith(".index") for name in os.listdir(partition_of(small).directory))
    assert Following(small).values(17) == written[17:]


def test_damaged_index_files_are_done_without(small: EmbeddedEngine) -> None:
    written = fill(small, 60)
    directory = Path(partition_of(small).directory)
    for path in directory.glob("*.index"):
        path.write_bytes(b"nonsense")
    assert Following(small).values() == written


def test_nothing_is_changed_and_no_file_stays_open(small: EmbeddedEngine) -> None:
    fill(small, 60)
    directory = partition_of(small).directory
    before = snapshot(directory)
    open_before = len(os.listdir("/proc/self/fd"))
    following = Following(small)
    following.values()
    assert snapshot(directory) == before
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_undurable_records_are_never_seen(opened: Opener, files: FaultyFiles) -> None:
    """A batch lies in the file while its flush hangs; then the flush fails."""
    engine = opened()
    make(engine, "t")
    put(engine, "t", b"durable")
    following = Following(engine)
    path = Segment(partition_of(engine).directory, 0, sealed=False).path
    size = os.path.getsize(path)
    # What the writer has written and not flushed, or only half written.
    for junk in (batch(b"not yet").stamp(1, 1) + batch(b"not yet").body, b"PSTK" + bytes(30)):
        with open(path, "ab") as file:
            file.write(junk)
        assert following.values() == [b"durable"]
        assert Following(engine).values() == [b"durable"]
        os.truncate(path, size)
    assert following.pauses == []
    put(engine, "t", b"later")
    assert following.values() == [b"durable", b"later"]


def test_the_told_offset_is_the_limit(engine: EmbeddedEngine) -> None:
    make(engine, "t")
    put(engine, "t", b"a")
    following = Following(engine)
    following.follower.told(0, 1)
    put(engine, "t", b"b")
    result = following.read(0)
    assert (offsets_of(result.views), result.next_offset, result.end_offset) == ([0], 1, 1)
    with pytest.raises(OffsetOutOfRange):
        following.read(2)


def test_trimming_is_noticed(small: EmbeddedEngine) -> None:
    written = fill(small, 60)
    following = Following(small)
    assert following.values() == written
    partition_of(small).trim(45)
    assert following.values() == written[45:]
    with pytest.raises(OffsetOutOfRange) as caught:
        following.read(3)
    assert (caught.value.offset, caught.value.earliest) == (3, 45)


def test_trimming_that_nobody_told_of(small: EmbeddedEngine) -> None:
    """The files go while the follower still believes in the old start."""
    fill(small, 60)
    following = Following(small)
    following.follower.told(0, 60)
    partition_of(small).trim(45)
    with pytest.raises(OffsetOutOfRange) as caught:
        following.read(3)
    assert caught.value.earliest == 45


def test_merged_segments_are_noticed(small: EmbeddedEngine) -> None:
    written = fill(small, 60)
    following = Following(small)
    assert following.values() == written
    assert cleaner.merge_small_batches(partition_of(small)).segments > 2
    assert following.values() == written
    assert following.values(31) == written[31:]


def keyed(engine: EmbeddedEngine, first: int, count: int) -> None:
    tokens = []
    for number in range(first, first + count):
        builder = BatchBuilder()
        builder.add(b"%04d" % number + b"y" * 200, 5, b"key%d" % (number % 3))
        tokens.append(engine.append("t", 0, builder.build()))
    for token in tokens:
        token.result(WAIT_S)
    partition_of(engine).finish_rolls()


def test_compaction_between_reads_of_one_follower(opened: Opener) -> None:
    engine = opened(EngineOptions(cache_bytes=0))
    make(engine, "t", segment_bytes=MIN_SEGMENT_BYTES, cleanup="compact")
    following = Following(engine)
    for round_number in range(4):
        keyed(engine, 40 * round_number, 40)
        following.values()
        cleaner.compact(partition_of(engine), NOW_US)
        latest = engine.offsets("t", 0)[1]
        expected: list[int] = []
        offset = 0
        while offset < latest:
            result = engine.read("t", 0, offset, 1 << 20).result(WAIT_S)
            expected += offsets_of(result.views)
            offset = result.next_offset
        seen: list[int] = []
        offset = 0
        following.follower.told(*engine.offsets("t", 0))
        while offset < latest:
            result = following.read(offset)
            seen += offsets_of(result.views)
            offset = result.next_offset
        assert seen == expected
        assert len(seen) < latest


def test_reading_while_everything_happens(small: EmbeddedEngine) -> None:
    """Appends, rolls and merges while another reads from the start, again and again."""
    following = Following(small)
    following.follower = Follower(partition_of(small).directory, lambda: NOW_US)
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                numbers = [int(value[:6]) for value in following.values()]
                assert numbers == list(range(len(numbers)))
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for round_number in range(6):
            fill(small, 20, 20 * round_number)
            cleaner.merge_small_batches(partition_of(small))
    finally:
        done.set()
        reader.join(WAIT_S)
    assert failures == []
    assert len(following.values()) == 120


def test_a_writer_that_dies_and_comes_back(opened: Opener) -> None:
    """After a crash the torn tail is cut and written over: the follower never saw it."""
    engine = opened()
    make(engine, "t")
    put(engine, "t", b"one", b"two")
    following = Following(engine)
    assert following.values() == [b"one", b"two"]
    path = Segment(partition_of(engine).directory, 0, sealed=False).path
    engine.close()
    torn = encode_values([b"torn" * 10], 5)
    with open(path, "ab") as file:
        file.write((torn.stamp(2, 2) + torn.body)[:100])
    engine = opened()
    following.engine = engine
    put(engine, "t", b"three")
    assert following.values() == [b"one", b"two", b"three"]
    assert following.pauses == []


def damage(path: str, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_is_an_error_that_names_it(small: EmbeddedEngine, sealed: bool) -> None:
    written = fill(small, 60)
    segment = partition_of(small).segments[1 if sealed else -1]
    base = segment.base_offset
    damage(segment.path, 100)
    following = Following(small)
    following.follower.told(0, 60)
    with pytest.raises(CorruptLog) as caught:
        following.read(base)
    assert (caught.value.path, caught.value.position) == (segment.path, 0)
    assert (caught.value.first_offset, caught.value.next_offset) == (base, base + 1)
    assert len(following.pauses) > 3  # it might have been the cleaner at work
    assert following.values(base + 1) == written[base + 1 :]


def test_a_missing_file_is_damage_in_the_end(small: EmbeddedEngine) -> None:
    fill(small, 60)
    first, second = partition_of(small).segments[1:3]
    os.unlink(first.path)
    following = Following(small)
    following.follower.told(0, 60)
    with pytest.raises(CorruptLog) as caught:
        following.read(first.base_offset)
    assert caught.value.next_offset == second.base_offset


def test_the_files_of_the_cleaner_between_its_steps(small: EmbeddedEngine) -> None:
    """Segments removed, the new one not yet in place: the follower waits for it."""
    written = fill(small, 60)
    first, second = partition_of(small).segments[1:3]
    aside = second.path + ".aside"
    os.rename(second.path, aside)
    following = Following(small)
    following.follower.told(0, 60)

    def pause(_: float) -> None:
        if os.path.exists(aside):
            os.rename(aside, second.path)

    following.follower._pause = pause
    result = following.read(second.base_offset)
    assert result.views[0].value(0) == written[second.base_offset]
    assert following.values(first.base_offset) == written[first.base_offset :]


@pytest.fixture
def replaced_file(small: EmbeddedEngine) -> Iterator[tuple[Following, str]]:
    fill(small, 60)
    following = Following(small)
    following.values()
    yield following, partition_of(small).segments[1].path


def test_a_file_replaced_while_it_is_opened(
    replaced_file: tuple[Following, str], small: EmbeddedEngine
) -> None:
    """Between the look at the name and the open another file got the name."""
    following, path = replaced_file
    base = partition_of(small).segments[1].base_offset
    copy = path + ".copy"
    replaced: list[str] = []

    def swap_once(name: str) -> Identity:
        found = identify(name)
        if name == path and not replaced:
            replaced.append(name)
            with open(path, "rb") as source, open(copy, "wb") as target:
                target.write(source.read())
            os.rename(copy, path)
        return found

    following.follower._identify = swap_once
    assert following.read(base).views[0].first_offset() == base
    assert replaced
