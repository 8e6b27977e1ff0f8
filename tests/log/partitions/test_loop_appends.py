"""Batches that the caller writes itself because nobody else is at the partition: when they are told,
and what happens to those that must be queued after all."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.partitions import Bench, read_all

from penstock.log.batch.format import encode_values
from penstock.log.errors import OutcomeUnknown, PartitionStopped, StorageFull, UnknownTopic
from penstock.log.partitions.commit import GroupCommit
from penstock.log.partitions.loop_appends import LOOP_WRITE_BYTES
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.partitions.verify import verify
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles


class Log:
    """A partition that has been written to, and a group commit without threads that writes when idle."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.files = FaultyFiles(RealFiles())
        self.posted: list[Callable[[], None]] = []
        self.now_s = 0.0
        self.commit = GroupCommit(0, self.posted.append, lambda: self.now_s, write_idle=True)
        chosen = TopicSettings().changed(settings)
        self.partition: Partition = Bench(self.files, str(directory / "0"), chosen).open()
        self.append(b"first")
        self.run()

    def append(self, value: bytes = b"v", count: int = 1) -> AppendToken:
        return self.commit.append(self.partition, encode_values([value] * count, 1))

    def run(self) -> None:
        while self.commit.step():
            continue
        while self.posted:
            self.posted.pop(0)()

    def values(self) -> list[bytes]:
        return [row.value for _, row in read_all(self.partition)]


@pytest.fixture
def ack(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.commit.close()


@pytest.mark.parametrize("durability", ["none", "interval"])
def test_without_a_flush_an_append_is_done_when_it_returns(durability: str, tmp_path: Path) -> None:
    log = Log(tmp_path, durability=durability)
    woken: list[int] = []
    log.partition.watch(1, lambda: woken.append(log.partition.visible_offset))
    token = log.append(b"second")
    assert token.done and token.base_offset == 1
    assert log.partition.visible_offset == 2
    assert not woken, "a watcher is woken after the append, not from inside it"
    log.run()
    assert woken == [2]
    assert log.partition.counters.flushes == 0
    assert log.values() == [b"first", b"second"]


def test_with_ack_it_is_written_at_once_and_told_when_flushed(ack: Log) -> None:
    writes, syncs = ack.files.calls["write"], ack.files.calls["sync"]
    tokens = [ack.append(b"one"), ack.append(b"two")]
    assert ack.files.calls["write"] == writes + 2
    assert not any(token.done for token in tokens)
    assert ack.partition.visible_offset == 1 and ack.values() == [b"first"]
    ack.run()
    assert [token.result(0) for token in tokens] == [1, 2]
    assert ack.files.calls["sync"] == syncs + 1, "one flush for both"
    assert ack.values() == [b"first", b"one", b"two"]


def test_interval_is_flushed_at_its_time(tmp_path: Path) -> None:
    log = Log(tmp_path, durability="interval", flush_interval_ms=250)
    log.now_s += 1
    log.run()
    assert log.append().done
    log.run()
    assert log.partition.flushed_offset == 1
    log.now_s += 0.25
    log.run()
    assert log.partition.flushed_offset == 2


def test_a_failed_flush_reaches_those_that_the_caller_wrote(ack: Log) -> None:
    ack.files.fail("sync", errno.EIO)
    token = ack.append()
    ack.run()
    assert isinstance(token.error, OutcomeUnknown)
    with pytest.raises(PartitionStopped):
        ack.append()
    assert ack.partition.visible_offset == 1


def test_a_full_disk_is_told_by_the_commit_thread_and_leaves_nothing(ack: Log) -> None:
    ack.files.fail("write", errno.ENOSPC, times=2)
    token = ack.append(b"lost")
    assert not token.done
    ack.run()
    assert isinstance(token.error, StorageFull)
    assert ack.append(b"kept").base_offset == -1
    ack.run()
    assert ack.values() == [b"first", b"kept"]


def test_what_fell_short_is_written_again_at_the_same_place(ack: Log) -> None:
    ack.files.write_short(50, errno.ENOSPC, times=0)
    tokens = [ack.append(b"one"), ack.append(b"two")]
    ack.run()
    assert [token.result(0) for token in tokens] == [1, 2]
    assert ack.values() == [b"first", b"one", b"two"]


@pytest.mark.parametrize("following", ["shorter", "in a new segment"])
def test_what_fell_short_does_not_stay_behind_the_end(tmp_path: Path, following: str) -> None:
    """The batch itself is written again; another one may come before it, from a transaction."""
    log = Log(tmp_path, segment_bytes=4096)
    log.files.write_short(600, errno.ENOSPC, times=0)
    assert log.partition.append_idle(encode_values([b"x" * 2000], 1)) is None
    small = following == "shorter"
    log.partition.append(encode_values([b"y" * (100 if small else 4000)], 1))
    log.commit.submit(log.partition)
    log.run()
    first = log.partition.segments[0]
    assert first.sealed is not small
    assert first.index is not None
    assert Path(first.path).stat().st_size == first.index.size
    deliver(log.partition.close())
    again = Bench(log.files, str(tmp_path / "0")).open()
    assert again.recovered.cut_bytes == 0
    assert not verify(log.files, again.directory).damages


def test_nobody_overtakes_what_is_queued(ack: Log) -> None:
    large = ack.append(b"x" * 1000, LOOP_WRITE_BYTES // 1000 + 1)
    small = ack.append(b"small")
    assert not large.done and not small.done
    ack.run()
    assert large.base_offset == 1
    assert small.base_offset == 1 + large.count


def test_while_others_write_it_is_queued(ack: Log) -> None:
    with ack.partition.write_lock:
        token = ack.append(b"queued")
        assert ack.partition.pending_batches == 1
    ack.run()
    assert token.result(0) == 1


def test_a_repeat_is_recognised(ack: Log) -> None:
    batch = encode_values([b"once"], 1).from_producer(7, 0, 0)
    again = encode_values([b"once"], 1).from_producer(7, 0, 0)
    first, repeat = (ack.commit.append(ack.partition, one) for one in (batch, again))
    ack.run()
    assert (first.base_offset, repeat.base_offset, repeat.repeated) == (1, 1, True)


def test_a_new_segment_is_begun_by_the_commit_thread(tmp_path: Path) -> None:
    log = Log(tmp_path, durability="none", segment_bytes=4096)
    tokens = [log.append(b"x" * 400) for _ in range(20)]
    log.run()
    assert [token.result(0) for token in tokens] == list(range(1, 21))
    assert len(log.partition.segments) > 1


def test_a_deleted_partition_refuses_what_is_not_flushed(ack: Log) -> None:
    token = ack.append()
    deliver(ack.partition.abandon("orders"))
    ack.commit.forget(ack.partition)
    deliver(ack.partition.settle())
    assert isinstance(token.error, UnknownTopic)


def test_close_flushes_what_the_caller_wrote(ack: Log) -> None:
    token = ack.append()
    deliver(ack.partition.close())
    assert token.result(0) == 1 and ack.partition.flushed_offset == 2


class HookedLock:
    """A lock that calls a function when it was released the n-th time."""

    def __init__(self, lock: threading.Lock, number: int, then: Callable[[], object]) -> None:
        self._lock = lock
        self._left = number
        self._then = then

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        self._left -= 1
        if not self._left:
            self._then()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_close_tells_what_the_caller_writes_meanwhile(ack: Log) -> None:
    """Behind its first flush, and before the partition is closed."""
    tokens: list[AppendToken] = []
    ack.partition.write_lock = HookedLock(  # type: ignore[assignment]  # as far as it is used
        ack.partition.write_lock, 2, lambda: tokens.append(ack.append(b"meanwhile"))
    )
    deliver(ack.partition.close())
    (token,) = tokens
    assert token.done and token.result(0) == 1
    assert ack.partition.flushed_offset == 2


def test_appends_do_not_wait_while_a_segment_is_replaced(ack: Log) -> None:
    """Merging and compaction put files in place and sync the directory meanwhile."""
    putting, appended = threading.Event(), threading.Event()

    def put() -> None:
        putting.set()
        assert appended.wait(HANG_S)

    segment = ack.partition.segments[0]
    thread = threading.Thread(target=ack.partition.replace_segments, args=([segment], segment, put))
    thread.start()
    assert putting.wait(HANG_S)
    token = ack.append()
    queued = ack.partition.append(encode_values([b"queued"], 1))
    appended.set()
    thread.join(HANG_S)
    ack.run()
    assert (token.result(0), queued.result(0)) == (1, 2)
