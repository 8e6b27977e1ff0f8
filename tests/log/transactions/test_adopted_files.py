"""Large files of a transaction become segments: which ones, with what they hold, and what may come between.

What a partition does with such a file is in partitions/test_adopting.py, power loss in faults/.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.encryption import SECRET, files_with, with_keys
from kit.engines import WAIT_S, Opener, batch, change, delete, make, put, values_of
from kit.faulty_files import CallKind, FaultyFiles
from kit.transactions import begin, everything, stage, staged_files

from penstock.log.batch.format import HEADER_SIZE, parse_header
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import CommitUnfinished, StagingDamaged, TransactionNotOpen
from penstock.log.maintenance import Maintenance
from penstock.log.metadata.transaction_rows import StagedBatch
from penstock.log.partitions.verify import verify
from penstock.log.storage.files import RealFiles
from penstock.log.storage.follower import Follower
from penstock.log.transactions.places import Places
from penstock.log.transactions.staging import OPEN_FILES

SEGMENT_BYTES = 16 * 1024
# Alone enough for a file that becomes a segment.
LARGE = SEGMENT_BYTES // 8
DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    engine = opened()
    make(engine, "t", 2, segment_bytes=SEGMENT_BYTES)
    make(engine, "u", segment_bytes=SEGMENT_BYTES, durability="none")
    return engine


def large(name: bytes, count: int = 1) -> bytes:
    return name + b"." * count * LARGE


def inodes(paths: list[str]) -> set[int]:
    return {os.stat(path).st_ino for path in paths}


def segments(engine: EmbeddedEngine, topic: str = "t", partition: int = 0) -> list[str]:
    return [one.path for one in engine.catalogue.partition(topic, partition).segments]


def names(engine: EmbeddedEngine) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in staged_files(engine))


def is_adopted(path: str) -> bool:
    """Of an adopted file every batch says that all of it was durable."""
    with open(path, "rb") as file:
        header = parse_header(file.read(HEADER_SIZE), 0)
    return header.durable_offset > header.base_offset


# --- which files ---------------------------------------------------------------------------------


def test_files_are_moved_and_small_ones_copied(engine: EmbeddedEngine, opened: Opener) -> None:
    begin(engine)
    put(engine, "t", b"before")
    stage(engine, 1, large(b"1.0"), to="t/0")
    stage(engine, 1, b"1.1", to="t/1")
    stage(engine, 2, b"2.0", to="t/0")
    stage(engine, 1, b"1.2", to="t/0")
    stage(engine, 2, large(b"2.1"), to="u/0")
    stage(engine, 2, b"2.2", to="t/1")
    assert names(engine) == ["1-0.stage", "1.stage", f"2-{1 << 24}.stage", "2.stage"]
    moved = inodes([path for path in staged_files(engine) if "-" in path.rpartition("/")[2]])
    engine.transactions.commit("q", [1, 2])
    expected = {
        "t/0": [b"before", large(b"1.0"), b"1.2", b"2.0"],
        "t/1": [b"1.1", b"2.2"],
        "u/0": [large(b"2.1")],
    }
    assert everything(engine) == expected
    assert moved <= inodes(segments(engine) + segments(engine, "u")), "written once"
    assert staged_files(engine) == []
    engine.transactions.commit("q", [1, 2])
    put(engine, "t", b"behind")
    expected["t/0"].append(b"behind")
    again = opened()
    assert everything(again) == expected
    again.transactions.commit("q", [1, 2])
    assert everything(again) == expected
    assert verify(RealFiles(), again.directory).clean


def test_many_files_at_once(engine: EmbeddedEngine) -> None:
    """No more of them are open at the same time than a few."""
    begin(engine)
    many = [("t", 0, batch(large(b"%d" % number, 8))) for number in range(3 * OPEN_FILES)]
    engine.transactions.stage_all("q", 1, many)
    assert len(names(engine)) == len(many)
    engine.transactions.commit("q", [1])
    assert values_of(engine, "t") == [large(b"%d" % number, 8) for number in range(len(many))]


def test_a_file_ends_where_a_segment_would(engine: EmbeddedEngine) -> None:
    begin(engine)
    for number in range(20):
        stage(engine, 1, large(b"%d" % number), to="t/0")
    assert len(names(engine)) == 3
    assert all(os.path.getsize(path) <= SEGMENT_BYTES for path in staged_files(engine))
    engine.transactions.commit("q", [1])
    assert values_of(engine, "t") == [large(b"%d" % number) for number in range(20)]
    assert [is_adopted(path) for path in segments(engine)] == [True] * 3


def test_few_bytes_make_no_segment(engine: EmbeddedEngine) -> None:
    """A stream of small transactions would else have a file for each."""
    for number in range(5):
        begin(engine, f"q{number}")
        stage(engine, 1, b"." * (LARGE // 2), to="t/0", of=f"q{number}")
        engine.transactions.commit(f"q{number}", [1])
    assert len(segments(engine)) == 1
    change(engine, "t", segment_bytes=8 * SEGMENT_BYTES)
    begin(engine)
    stage(engine, 1, large(b""), to="t/0")
    change(engine, "t", segment_bytes=64 * SEGMENT_BYTES)
    engine.transactions.commit("q", [1])
    assert len(segments(engine)) == 1
    assert len(values_of(engine, "t")) == 6


@pytest.mark.parametrize("settings", [{"compression": "zstd"}, {"encryption": True}])
@pytest.mark.parametrize("late", [False, True])
def test_what_must_be_written_anew_is_copied(
    opened: Opener, settings: dict[str, object], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed or encrypted, also where that was asked for after the staging."""
    monkeypatch.setattr(Maintenance, "soon", lambda _: None)  # it encrypts what was there before
    engine = opened(with_keys(1))
    make(engine, "t", 1, segment_bytes=SEGMENT_BYTES, **({} if late else settings))
    value = SECRET + b"." * 2 * LARGE
    begin(engine)
    stage(engine, 1, value, to="t/0")
    if late:
        change(engine, "t", None, **settings)
    else:
        assert names(engine) == ["1.stage"]
        if "encryption" in settings:
            assert files_with(engine.directory) == []
    engine.transactions.commit("q", [1])
    assert values_of(engine, "t") == [value]
    assert [is_adopted(path) for path in segments(engine)] == [False]
    if "encryption" in settings:
        assert files_with(engine.directory + "/topics") == []
    else:
        assert os.path.getsize(segments(engine)[0]) < LARGE


@pytest.mark.parametrize("durability", ["ack", "interval", "none"])
def test_every_durability(opened: Opener, durability: str) -> None:
    engine = opened()
    make(engine, "t", segment_bytes=SEGMENT_BYTES, durability=durability)
    put(engine, "t", b"before")
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    engine.transactions.commit("q", [1])
    assert is_adopted(segments(engine)[-1])
    partition = engine.catalogue.partition("t", 0)
    assert partition.flushed_offset == partition.visible_offset == 2


def test_a_log_of_version_1(tmp_path: Path) -> None:
    """Its batches have no salt: those of the file begin it, as the first ones of a segment do."""
    directory = str(shutil.copytree(DATA / "format1", tmp_path / "old"))
    with closing(EmbeddedEngine(directory, clock_us=lambda: 1_794_827_470_000_000)) as engine:
        before = values_of(engine, "small")
        begin(engine)
        stage(engine, 1, large(b"new"), to="small/0")
        engine.transactions.commit("q", [1])
        assert is_adopted(segments(engine, "small")[-1])
        put(engine, "small", b"behind")
        assert values_of(engine, "small") == [*before, large(b"new"), b"behind"]
    with closing(EmbeddedEngine(directory, clock_us=lambda: 1_794_827_470_000_000)) as engine:
        assert values_of(engine, "small") == [*before, large(b"new"), b"behind"]
    assert verify(RealFiles(), directory).clean


# --- readers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_readers_go_through_the_seam(opened: Opener, cache_bytes: int) -> None:
    engine = opened(EngineOptions(cache_bytes=cache_bytes))
    make(engine, "t", segment_bytes=SEGMENT_BYTES)
    follower = Follower(engine.catalogue.partition("t", 0).directory, lambda: 0)

    def followed() -> list[bytes]:
        """As the Flight process reads."""
        offset, end = engine.offsets("t", 0)
        follower.told(offset, end)
        found: list[bytes] = []
        while offset < end:
            result = follower.read(offset, 1 << 20, lambda: engine.offsets("t", 0))
            found += [value for view in result.views for value in view.values()]
            offset = result.next_offset
        return found

    expected: list[bytes] = []
    for number in range(4):
        put(engine, "t", b"%d" % number)
        assert followed() == [*expected, b"%d" % number]
        woken = threading.Event()
        engine.watch("t", 0, engine.offsets("t", 0)[1], woken.set)
        begin(engine, f"q{number}")
        stage(engine, 1, large(b"%d" % number), b"second", to="t/0", of=f"q{number}")
        assert not woken.is_set()
        engine.transactions.commit(f"q{number}", [1])
        assert woken.wait(WAIT_S)
        expected += [b"%d" % number, large(b"%d" % number), b"second"]
        assert values_of(engine, "t") == followed() == expected
        for offset in range(len(expected)):
            assert values_of(engine, "t", offset=offset) == expected[offset:]
    assert engine.partition_info("t", 0).size_bytes == sum(map(os.path.getsize, segments(engine)))


# --- what comes between ------------------------------------------------------------------------------


def test_a_restart_between_two_batches(engine: EmbeddedEngine, opened: Opener) -> None:
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    stage(engine, 1, b"two", to="t/0")
    again = opened()
    stage(again, 1, large(b"three"), to="t/0")
    stage(again, 1, b"four", to="t/1")
    again.transactions.commit("q", [1])
    assert values_of(again, "t") == [large(b"one"), b"two", large(b"three")]
    assert values_of(again, "t", 1) == [b"four"]
    assert [is_adopted(path) for path in segments(again)] == [True, True]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failed_write_leaves_no_hole(
    engine: EmbeddedEngine, files: FaultyFiles, call: CallKind
) -> None:
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    files.fail(call, errno.EIO, suffix=".stage")
    with pytest.raises(OSError):
        stage(engine, 1, large(b"lost"), to="t/0")
    stage(engine, 1, large(b"two"), to="t/0")
    group = [("t", 0, batch(large(b"three")))]
    files.fail(call, errno.EIO, suffix=".stage")
    with pytest.raises(OSError):
        engine.transactions.stage_groups("q", 2, [group], 0)
    assert engine.transactions.stage_groups("q", 2, [group], 0) == 0
    assert engine.transactions.stage_groups("q", 2, [group], 0) == 1
    engine.transactions.commit("q", {1: None, 2: 1})
    assert values_of(engine, "t") == [large(b"one"), large(b"two"), large(b"three")]
    assert [is_adopted(path) for path in segments(engine)] == [True] * 3


def test_a_late_write_does_not_reach_the_log(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    """Who is still writing to a file keeps it from becoming a segment; who comes later is refused."""
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    stage(engine, 2, large(b"two"), to="t/0")
    with (
        ThreadPoolExecutor(1) as pool,
        files.pause("write", suffix="/1-0.stage") as paused,
    ):
        late = pool.submit(stage, engine, 1, large(b"late"), to="t/0")
        paused.wait_until_reached()
        engine.transactions.commit("q", [1, 2])
        assert [is_adopted(path) for path in segments(engine)] == [False, True]
        paused.release()
        with pytest.raises(TransactionNotOpen, match="committed"):
            late.result(WAIT_S)
    assert staged_files(engine) == []
    assert values_of(engine, "t") == [large(b"one"), large(b"two")]
    assert verify(RealFiles(), engine.directory).clean


def test_a_write_that_begins_during_the_commit_is_refused(
    engine: EmbeddedEngine, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    transactions = engine.transactions
    seen, go_on = threading.Event(), threading.Event()
    take = Places.take

    def pausing(places: Places, *given: Any) -> list[StagedBatch]:
        """It has seen the transaction open, and has not begun to write."""
        found = take(places, *given)
        seen.set()
        assert go_on.wait(WAIT_S)
        return found

    monkeypatch.setattr(Places, "take", pausing)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(stage, engine, 1, large(b"late"), to="t/0")
        assert seen.wait(WAIT_S)
        with files.pause("rename", suffix="/1-0.stage") as paused:
            commit = pool.submit(transactions.commit, "q", [1])
            paused.wait_until_reached()
            go_on.set()
            with pytest.raises(TransactionNotOpen, match="committing"):
                late.result(WAIT_S)
        commit.result(WAIT_S)
    assert values_of(engine, "t") == [large(b"one")]
    assert verify(RealFiles(), engine.directory).clean


def test_a_topic_that_is_deleted_after_the_decision(
    engine: EmbeddedEngine, files: FaultyFiles
) -> None:
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    stage(engine, 1, large(b"two"), to="u/0")
    files.fail("rename", errno.ENOSPC, suffix=".stage")
    with pytest.raises(CommitUnfinished):
        engine.transactions.commit("q", [1])
    delete(engine, "t")
    engine.transactions.commit("q", [1])
    assert everything(engine) == {"u/0": [large(b"two")]}


# --- a disk that fails -------------------------------------------------------------------------------

FAULTS: list[tuple[CallKind, str]] = [
    ("open", ".stage"),
    ("write", ".stage"),
    ("sync", ".stage"),
    ("rename", ".stage"),
    ("make_directory", "/0"),
    ("sync_directory", "/transactions/1"),
    ("sync_directory", "/topics/t/0"),
    ("sync_directory", "/topics/u/0"),
]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(("call", "suffix"), FAULTS)
def test_all_of_it_or_nothing_whatever_fails(
    engine: EmbeddedEngine,
    opened: Opener,
    files: FaultyFiles,
    call: CallKind,
    suffix: str,
    error: int,
    nth: int,
) -> None:
    """And after a restart it is there, once."""
    begin(engine)
    for task in (1, 2):
        for to in ("t/0", "u/0"):
            stage(engine, task, large(b"%d" % task), b"more", to=to)
    stage(engine, 2, b"small", to="t/1")
    both = [large(b"1"), b"more", large(b"2"), b"more"]
    whole = {"t/0": both, "t/1": [b"small"], "u/0": both}
    files.fail(call, error, nth=nth, suffix=suffix)
    try:
        engine.transactions.commit("q", [1, 2])
    except (CommitUnfinished, OSError):
        assert not any(everything(engine).values())
    files.clear()
    again = opened()
    again.transactions.commit("q", [1, 2])
    assert everything(again) == whole
    assert staged_files(again) == []
    assert verify(RealFiles(), again.directory).clean


def flip(path: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[-9] ^= 1
    Path(path).write_bytes(content)


def cut(path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-8])


@pytest.mark.parametrize("harm", [flip, cut, os.unlink])
def test_damage_is_found_before_the_point_of_no_return(
    engine: EmbeddedEngine, harm: Callable[[str], None]
) -> None:
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    stage(engine, 2, large(b"two"), to="t/0")
    (path,) = (path for path in staged_files(engine) if path.endswith("/1-0.stage"))
    harm(path)
    with pytest.raises(StagingDamaged, match=r"1-0\.stage"):
        engine.transactions.commit("q", [1, 2])
    assert engine.transactions.state("q") == "open"
    engine.transactions.commit("q", [2])
    assert values_of(engine, "t") == [large(b"two")]


def test_headers_of_a_commit_that_was_cut_short_do_not_count(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    """The file has headers for one place in the log, and gets into another one."""
    begin(engine)
    stage(engine, 1, large(b"one"), to="t/0")
    files.fail("rename", errno.EIO, times=None, suffix="/1-0.stage")
    with pytest.raises(CommitUnfinished):
        engine.transactions.commit("q", [1])
    put(engine, "t", b"meanwhile")
    again = opened()
    assert again.transactions.unfinished == 1
    put(again, "t", b"later")
    files.clear()
    (path,) = staged_files(again)
    content = Path(path).read_bytes()
    Path(path).write_bytes(b"\0" * HEADER_SIZE + content[HEADER_SIZE:])
    again.transactions.commit("q", [1])
    assert values_of(again, "t") == [b"meanwhile", b"later", large(b"one")]
