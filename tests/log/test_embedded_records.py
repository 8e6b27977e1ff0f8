"""The embedded engine: append, read, find by time, watch, limits."""

import errno
import threading

import pytest
from kit.engines import WAIT_S, Opener, batch, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.records import Row, build

from penstock.log.embedded import EngineOptions
from penstock.log.errors import OffsetOutOfRange, Overloaded, SequenceGap, StorageFull, TooLarge
from penstock.log.partitions.tokens import AppendToken


def test_reads_come_from_memory_or_through_a_thread(opened: Opener, files: FaultyFiles) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"one", b"two")
    before = files.calls["read"]
    token = engine.read("orders", 0, 1, 100)
    assert token.done and token.result().views[0].values() == [b"two"]
    assert files.calls["read"] == before
    engine = opened()
    with files.pause("read", suffix=".log") as paused:
        token = engine.read("orders", 0, 0, 100)
        paused.wait_until_reached()
        assert not token.done
    assert token.result(WAIT_S).views[0].values() == [b"one", b"two"]
    assert engine.read("orders", 0, 2, 100).result(0).views == []


@pytest.mark.parametrize("offset", [-1, 3])
def test_reads_out_of_range(opened: Opener, offset: int) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"one", b"two")
    with pytest.raises(OffsetOutOfRange) as caught:
        engine.read("orders", 0, offset, 100).result(WAIT_S)
    assert (caught.value.earliest, caught.value.latest) == (0, 2)


def test_a_disk_that_cannot_be_read_is_an_error_of_the_read(
    opened: Opener, files: FaultyFiles
) -> None:
    engine = opened()
    make(engine, "orders")
    put(engine, "orders", b"v")
    engine = opened()
    files.fail("read", errno.EIO, suffix=".log")
    with pytest.raises(OSError, match="Input/output error"):
        engine.read("orders", 0, 0, 100).result(WAIT_S)
    assert values_of(engine, "orders") == [b"v"]


def test_offsets_by_time(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    for time_us in (10, 20, 20, 30):
        put(engine, "orders", b"v", b"w", time_us=time_us)
    found = {
        t: engine.offset_at_time("orders", 0, t).result(WAIT_S) for t in (0, 10, 11, 20, 30, 31)
    }
    assert found == {0: 0, 10: 0, 11: 2, 20: 2, 30: 6, 31: 8}


def test_a_watcher_hears_of_new_records_without_polling(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    heard = threading.Event()
    engine.watch("orders", 0, 0, heard.set)
    assert not heard.is_set()
    engine.append("orders", 0, batch(b"v"))
    assert heard.wait(WAIT_S)
    assert values_of(engine, "orders") == [b"v"]
    late: list[int] = []
    engine.watch("orders", 0, 0, lambda: late.append(1))
    assert late == [1]


def test_a_watcher_that_went_away_hears_nothing(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    heard: list[int] = []

    def callback() -> None:
        heard.append(1)

    engine.watch("orders", 0, 0, callback)
    engine.unwatch("orders", 0, callback)
    engine.unwatch("orders", 7, callback)
    engine.unwatch("nothing", 0, callback)
    put(engine, "orders", b"v")
    assert heard == []


def test_watchers_of_a_deleted_topic_are_woken(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders")
    heard = threading.Event()
    engine.watch("orders", 0, 5, heard.set)
    engine.delete_topic("orders")
    assert heard.wait(WAIT_S)


def test_what_follows_a_refused_batch_of_a_producer_is_refused_too(
    opened: Opener, files: FaultyFiles
) -> None:
    """Stored without the first one, it would make the first one count as stored when it is sent again."""
    engine = opened()
    make(engine, "orders")
    files.fail("write", errno.ENOSPC, suffix=".log")

    def send(sequence: int) -> AppendToken:
        content = batch(b"%d" % sequence).from_producer(7, 0, sequence)
        return engine.append("orders", 0, content)

    with pytest.raises(StorageFull):
        send(0).result(WAIT_S)
    with pytest.raises(SequenceGap):
        send(1).result(WAIT_S)
    assert [send(sequence).result(WAIT_S) for sequence in (0, 1, 0)] == [0, 1, 0]
    assert values_of(engine, "orders") == [b"0", b"1"]


def test_a_record_over_the_limit_is_refused(opened: Opener) -> None:
    engine = opened()
    make(engine, "orders", record_bytes=1000)
    assert put(engine, "orders", *[b"x" * 1000] * 5) == 0
    with pytest.raises(TooLarge, match="record of 1001 bytes is over the limit of 1000"):
        engine.append("orders", 0, batch(b"small", b"x" * 1001))
    keyed = build([Row(b"x" * 900, key=b"k" * 101)])
    with pytest.raises(TooLarge):
        engine.append("orders", 0, keyed)
    with pytest.raises(TooLarge):
        engine.append("orders", 0, batch(b"x" * 5000).compressed())
    assert engine.offsets("orders", 0) == (0, 5)


def test_what_is_not_durable_is_counted_over_all_partitions_and_bounded(
    opened: Opener, files: FaultyFiles
) -> None:
    one = batch(b"x" * 1000)
    engine = opened(EngineOptions(undurable_bytes=2 * one.size()))
    make(engine, "a", 2)
    for partition in range(2):
        engine.append("a", partition, batch(b"first")).result(WAIT_S)
    assert engine.undurable_bytes == 0
    with files.pause("sync", suffix=".log") as paused:
        tokens = [engine.append("a", partition, batch(b"x" * 1000)) for partition in range(2)]
        paused.wait_until_reached()
        assert engine.statistics().undurable_bytes == engine.undurable_bytes > 0
        with pytest.raises(Overloaded, match="wait to be durable"):
            engine.append("a", 0, batch(b"x" * 2000))
    for token in tokens:
        token.result(WAIT_S)
    assert engine.undurable_bytes == 0
    engine.append("a", 0, batch(b"x" * 1000)).result(WAIT_S)
