"""Partitions open when they are touched: what is known before, what waits, what a crash changes."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from kit.engines import WAIT_S, Opener, batch, change, delete, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.overriding import Overriding
from kit.partitions import Bench, Clock, read_all

from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import AppendFailed, LogClosed, LogError, UnknownTopic
from penstock.log.partitions.commit import call_now
from penstock.log.partitions.ends import CLEAN_STOP_FILE, ENDS_FILE, Ends
from penstock.log.partitions.opening import Openings, Partitions
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.verify import verify
from penstock.log.settings import TopicSettings
from penstock.log.storage import reader
from penstock.log.storage.files import FileSystem, RealFiles


def opened_numbers(engine: EmbeddedEngine, topic: str) -> list[int]:
    partitions = engine.catalogue.get(topic).partitions
    return [n for n in range(len(partitions)) if partitions.opened(n) is not None]


@pytest.fixture
def written(opened: Opener) -> Opener:
    """A log of three partitions, two of them written, after a clean stop."""
    engine = opened()
    make(engine, "orders", 3)
    put(engine, "orders", b"a", b"b")
    put(engine, "orders", b"c", partition=2)
    engine.close()
    return opened


def test_a_start_opens_nothing_and_lists_know_the_ends(written: Opener) -> None:
    engine = written()
    assert [engine.offsets("orders", n) for n in range(3)] == [(0, 2), (0, 0), (0, 1)]
    details = [engine.partition_info("orders", n) for n in range(3)]
    assert [one.latest for one in details] == [2, 0, 1]
    assert [one.segments for one in details] == [1, 0, 1]
    assert details[0].size_bytes > details[2].size_bytes > 0
    statistics = engine.statistics()
    assert (statistics.partitions, statistics.end_offsets) == (3, 3)
    assert opened_numbers(engine, "orders") == []
    engine.maintain()
    engine.close()
    again = written()
    assert [again.offsets("orders", n)[1] for n in range(3)] == [2, 0, 1]


def test_an_open_partition_knows_the_sizes_of_its_files(opened: Opener) -> None:
    """Lists ask for them on the event loop, and there may be thousands: the disk is asked once."""
    engine = opened()
    make(engine, "t", segment_bytes=4096)
    for _ in range(20):
        put(engine, "t", b"x" * 1000)
    engine.close()
    again = opened()
    put(again, "t", b"x")
    partition = again.catalogue.partition("t", 0)

    def ask(path: str) -> int:
        raise AssertionError(f"asked for {path}")

    partition.pool.files = cast(FileSystem, Overriding(again.files, size=ask))
    found = again.partition_info("t", 0)
    assert found.segments > 3
    on_disk = [path.stat().st_size for path in Path(partition.directory).glob("*.log")]
    assert (found.segments, found.size_bytes) == (len(on_disk), sum(on_disk))


@pytest.mark.parametrize("touch", ["append", "read", "watch", "time"])
def test_a_touch_opens_one_partition(written: Opener, touch: str) -> None:
    engine = written()
    if touch == "append":
        assert put(engine, "orders", b"d") == 2
    elif touch == "read":
        assert values_of(engine, "orders") == [b"a", b"b"]
    elif touch == "watch":
        told = threading.Event()
        engine.watch("orders", 0, 1, told.set)
        assert told.wait(WAIT_S)
    else:
        assert engine.offset_at_time("orders", 0, 0).result(WAIT_S) == 0
    assert opened_numbers(engine, "orders") == [0]


def test_what_comes_while_a_partition_opens_keeps_its_order(
    written: Opener, files: FaultyFiles
) -> None:
    engine = written()
    told = threading.Event()
    with files.pause("open", suffix="0.log") as pause:
        tokens = [engine.append("orders", 0, batch(b"%d" % number)) for number in range(5)]
        pause.wait_until_reached()
        engine.watch("orders", 0, 6, told.set)
        ended = threading.Event()
        engine.watch("orders", 0, 6, ended.set)
        engine.unwatch("orders", 0, ended.set)
        tokens.append(engine.append("orders", 0, batch(b"late")))
        assert not any(token.done for token in tokens)
        # Others are not held up.
        assert put(engine, "orders", b"x", partition=1) == 0
    assert [token.result(WAIT_S) for token in tokens] == [2, 3, 4, 5, 6, 7]
    assert told.wait(WAIT_S) and not ended.is_set()
    assert values_of(engine, "orders", offset=2) == [b"0", b"1", b"2", b"3", b"4", b"late"]


def test_nobody_overtakes_those_who_waited(tmp_path: Path) -> None:
    """Where callbacks run in the thread that opened the partition, others append in the middle of them: the
    way is free for them when the last one who waited is in front of them."""
    release, done = threading.Event(), threading.Event()

    def open_partition(path: str, settings: TopicSettings, ends: Ends) -> Partition:
        assert release.wait(WAIT_S)
        return Bench(RealFiles(), path, settings).open()

    partitions = Partitions(str(tmp_path), TopicSettings(), 1, open_partition)
    found: list[Partition | None] = []

    def look_meanwhile(_: Partition) -> None:
        look = threading.Thread(target=lambda: found.append(openings.partition(partitions, 0)))
        look.start()
        look.join(WAIT_S)

    with ThreadPoolExecutor(1) as threads:
        openings = Openings(threads.submit, call_now, look_meanwhile)
        for value in (b"a", b"b"):
            openings.append(partitions, 0, batch(value))
        openings.watch(partitions, 0, -1, done.set)
        release.set()
        assert done.wait(WAIT_S)
    assert found == [None, None]
    partition = openings.partition(partitions, 0)
    assert partition is not None
    deliver(partition.write_pending())
    assert [row.value for _, row in read_all(partition)] == [b"a", b"b"]


@pytest.mark.parametrize("touch", ["append", "watch", "read", "time"])
def test_what_comes_after_the_close_is_refused(written: Opener, touch: str) -> None:
    """Also by a partition that was never opened: the threads that would open it have ended."""
    engine = written()
    engine.close()
    with pytest.raises(LogClosed):
        if touch == "append":
            engine.append("orders", 0, batch(b"late")).result(WAIT_S)
        elif touch == "watch":
            engine.watch("orders", 0, 9, lambda: None)
        elif touch == "read":
            engine.read("orders", 0, 0, 1 << 20).result(WAIT_S)
        else:
            engine.offset_at_time("orders", 0, 0).result(WAIT_S)


def test_a_stop_writes_what_waited_for_its_partition(written: Opener, files: FaultyFiles) -> None:
    engine = written()
    pause = files.pause("open", suffix="0.log")
    with pause:
        token = engine.append("orders", 0, batch(b"c"))
        pause.wait_until_reached()
        stop = threading.Thread(target=engine.close)
        stop.start()
    stop.join(WAIT_S)
    assert token.result(0) == 2
    assert values_of(written(), "orders") == [b"a", b"b", b"c"]


def test_a_partition_that_cannot_be_opened_refuses_and_is_tried_again(
    written: Opener, files: FaultyFiles
) -> None:
    engine = written()
    files.fail("open", errno.EIO, suffix=".log")
    token = engine.append("orders", 0, batch(b"c"))
    with pytest.raises(AppendFailed):
        token.result(WAIT_S)
    files.clear()
    assert put(engine, "orders", b"c") == 2


def test_a_delete_meets_a_partition_that_opens(written: Opener, files: FaultyFiles) -> None:
    engine = written()
    with files.pause("open", suffix="0.log") as pause:
        token = engine.append("orders", 0, batch(b"c"))
        pause.wait_until_reached()
        delete(engine, "orders")
    with pytest.raises(UnknownTopic):
        token.result(WAIT_S)
    assert engine.topics() == []


def test_who_reads_a_topic_that_is_deleted_meanwhile_hears_so(
    written: Opener, files: FaultyFiles
) -> None:
    """Neither of a shutdown nor of damage, whether the partition was open or not."""
    engine = written()
    opened, unopened = engine.catalogue.partition("orders", 0), engine.catalogue.get("orders")
    engine.cache.drop({opened.tail})
    delete(engine, "orders")
    engine.catalogue.wait_for_removals()
    with pytest.raises(UnknownTopic):
        reader.read(opened, 0, 1 << 20)
    with pytest.raises(UnknownTopic):
        opened.watch(9, lambda: None)
    with pytest.raises(UnknownTopic):
        unopened.partitions.open(2)


def test_after_a_crash_all_that_was_written_is_opened_at_start(
    written: Opener, tmp_path: Path
) -> None:
    (tmp_path / "data" / CLEAN_STOP_FILE).unlink()
    engine = written()
    assert opened_numbers(engine, "orders") == [0, 2]
    assert [engine.offsets("orders", n)[1] for n in range(3)] == [2, 0, 1]


def test_a_start_says_that_it_has_begun(written: Opener, tmp_path: Path) -> None:
    """Whoever crashes from here on leaves no ends that somebody could trust."""
    written()
    assert not (tmp_path / "data" / CLEAN_STOP_FILE).exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_without_good_ends_everything_is_opened(
    written: Opener, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "data" / ENDS_FILE
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    engine = written()
    assert opened_numbers(engine, "orders") == [0, 2]


@pytest.mark.parametrize("crashed", [False, True])
def test_what_was_durable_at_a_clean_stop_is_missed(
    written: Opener, tmp_path: Path, crashed: bool
) -> None:
    """The noted ends prove it, also when a crash came behind them: a lost tail is damage, not torn."""
    (log,) = (tmp_path / "data" / "topics" / "orders" / "2").glob("*.log")
    log.write_bytes(b"")
    report = verify(RealFiles(), str(tmp_path / "data"))
    assert [(one.first_offset, one.next_offset) for one in report.damages] == [(0, 1)]
    if crashed:
        (tmp_path / "data" / CLEAN_STOP_FILE).unlink()
    engine = written()
    with pytest.raises(LogError):
        values_of(engine, "orders", 2)
    assert put(engine, "orders", b"new", partition=2) == 1
    assert len(engine.partition_info("orders", 2).damages) == 1
    engine.close()
    # Damage is told at every start, not only when somebody comes by.
    assert opened_numbers(written(), "orders") == [2]


def test_the_ends_of_a_deleted_topic_are_not_those_of_the_next(
    written: Opener, tmp_path: Path
) -> None:
    clock = Clock(1_000)
    engine = written(clock_us=clock)
    delete(engine, "orders")
    engine.catalogue.wait_for_removals()
    make(engine, "orders", 3)
    put(engine, "orders", b"other")
    ends = (tmp_path / "data" / ENDS_FILE).read_bytes()
    engine.close()
    (tmp_path / "data" / ENDS_FILE).write_bytes(ends)  # as if the second run had crashed
    again = written()
    assert values_of(again, "orders") == [b"other"]
    assert again.partition_info("orders", 0).damages == ()


def test_maintenance_opens_what_is_due(opened: Opener) -> None:
    clock = Clock(1_000_000)
    engine = opened(clock_us=clock)
    make(engine, "old", retention_ms=1000)
    make(engine, "kept")
    for name in ("old", "kept"):
        put(engine, name, b"v", time_us=1_000_000)
    engine.close()
    clock.now_us = 1_500_000
    engine = opened(clock_us=clock)
    engine.maintain()
    assert opened_numbers(engine, "old") == []
    clock.now_us = 3_000_000
    engine.maintain()
    assert engine.offsets("old", 0) == (1, 1)
    assert opened_numbers(engine, "kept") == []
    change(engine, "kept", retention_ms=1)
    engine.maintain()
    assert engine.offsets("kept", 0) == (1, 1)


def test_nothing_is_opened_once_the_engine_is_closed(opened: Opener) -> None:
    engine = opened(EngineOptions(commit_threads=0))
    make(engine, "orders")
    partitions = engine.catalogue.partitions("orders", 0)
    engine.close()
    with pytest.raises(LogClosed):
        partitions.open(0)


def test_ends_are_known_while_another_thread_opens_the_partition(
    written: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened between the two looks of `offsets`: a subscriber would begin at 0."""
    engine = written()
    look = Partitions.ends

    def opened_meanwhile(partitions: Partitions, number: int) -> Ends | None:
        thread = threading.Thread(target=lambda: partitions.open(number))
        thread.start()
        thread.join(WAIT_S)
        return look(partitions, number)

    monkeypatch.setattr(Partitions, "ends", opened_meanwhile)
    assert engine.offsets("orders", 0) == (0, 2)


def test_a_deletion_waits_for_an_opening_under_way(
    written: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its recovery would go on in the directory of the next topic of that name."""
    engine = written()
    partitions = engine.catalogue.get("orders").partitions
    begun, go_on = threading.Event(), threading.Event()
    recovered = partitions._open

    def slow(*given: Any) -> Partition:
        begun.set()
        assert go_on.wait(WAIT_S)
        return recovered(*given)

    monkeypatch.setattr(partitions, "_open", slow)
    errors: list[Exception] = []

    def touch() -> None:
        try:
            partitions.open(0)
        except LogClosed as error:
            errors.append(error)

    opening = threading.Thread(target=touch)
    opening.start()
    assert begun.wait(WAIT_S)
    closed = threading.Event()

    def close() -> None:
        partitions.close()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(WAIT_S)
    opening.join(WAIT_S)
    closing.join(WAIT_S)
    assert len(errors) == 1
    # What a clean stop notes of it is what was known before.
    assert partitions.all_ends()[0].next_offset == 2
