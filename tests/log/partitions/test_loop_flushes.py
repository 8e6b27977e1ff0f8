"""Flushes that the event loop begins: what is queued meanwhile, what is told when, and who takes over where
the event loop would have to wait. The test is the event loop: it runs what is posted."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest
from kit.faulty_files import FaultyFile, FaultyFiles
from kit.limits import HANG_S
from kit.partitions import read_all

from penstock.log.batch.format import FLAG_AT_MOST_ONCE, encode_values
from penstock.log.errors import OutcomeUnknown, PartitionStopped
from penstock.log.partitions.commit import LATE_FLUSH_S, GroupCommit
from penstock.log.partitions.flush_threads import FlushThreads
from penstock.log.partitions.loop_appends import LOOP_WRITE_BYTES
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import RealFiles
from penstock.log.storage.handles import HandlePool


class Log:
    """A partition that has been written to; commit threads are there only as `step`."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.files = FaultyFiles(RealFiles())
        self.posted: Queue[Callable[[], None]] = Queue()
        # What the commit asked for later, with the delay.
        self.delayed: list[tuple[float, Callable[[], None]]] = []
        self.threads = FlushThreads(1, self.posted.put)
        self.commit = GroupCommit(0, self.posted.put, write_idle=True, later=self.later)
        self.partition = Partition(
            str(directory / "0"),
            TopicSettings().changed(settings),
            HandlePool(self.files),
            BatchCache(),
            lambda: 1,
            None,
            self.threads,
        )
        self.append(b"first")
        while self.commit.step():  # the first segment is begun by a commit thread
            self.turn()

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.delayed.append((delay_s, work))

    def append(self, value: bytes = b"v", count: int = 1, flags: int = 0) -> AppendToken:
        batch = encode_values([value] * count, 1)
        batch.flags |= flags
        return self.commit.append(self.partition, batch)

    def turn(self) -> None:
        """Runs the next thing that is posted; waits for it."""
        self.posted.get(timeout=HANG_S)()

    def values(self) -> list[bytes]:
        return [row.value for _, row in read_all(self.partition)]

    def close(self) -> None:
        self.files.clear()
        self.partition.close()
        self.threads.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.close()


def test_a_lone_append_needs_no_commit_thread(log: Log) -> None:
    token = log.append(b"second")
    assert not token.done and log.partition.visible_offset == 1
    assert not log.commit.step(), "nothing for a commit thread to do"
    log.turn()
    assert token.done and token.result(0) == 1
    assert log.values() == [b"first", b"second"]


def test_what_is_queued_during_a_flush_is_written_at_its_end_and_flushed_once(log: Log) -> None:
    with log.files.pause("sync", suffix=".log") as paused:
        one = log.append(b"one")
        paused.wait_until_reached()
        writes = log.files.calls["write"]
        later = [log.append(value) for value in (b"two", b"three", b"four")]
        assert log.files.calls["write"] == writes, "not written beside the flush"
        assert log.partition.pending_batches == 3
    syncs = log.files.calls["sync"]
    log.turn()
    assert one.done and not any(token.done for token in later)
    assert log.files.calls["write"] == writes + 1, "one write for all three"
    assert log.partition.visible_offset == 2, "what is not flushed is not seen"
    log.turn()
    assert [token.result(0) for token in later] == [2, 3, 4]
    assert log.files.calls["sync"] == syncs + 1, "one flush for all three"
    assert not log.commit.step()
    assert log.values() == [b"first", b"one", b"two", b"three", b"four"]


def test_a_flush_that_fails_stops_the_partition_and_tells_everybody(log: Log) -> None:
    log.files.fail("sync", errno.EIO, suffix=".log")
    with log.files.pause("sync", suffix=".log") as paused:
        one = log.append(b"one")
        paused.wait_until_reached()
        two = log.append(b"two")
    log.turn()
    assert isinstance(one.error, OutcomeUnknown) and isinstance(two.error, PartitionStopped)
    assert one.done and two.done
    with pytest.raises(PartitionStopped):
        log.append(b"three")
    assert log.partition.visible_offset == 1


def test_a_flush_that_fails_by_something_else_is_no_success(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: FaultyFile) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(FaultyFile, "sync", broken)
    one = log.append(b"one")
    log.turn()
    assert isinstance(one.error, OutcomeUnknown)
    assert log.partition.stopped is not None
    monkeypatch.undo()


def test_who_holds_the_partition_is_not_waited_for(log: Log) -> None:
    """Maintenance has the lock when the flush ends: a commit thread tells of it later."""
    with log.files.pause("sync", suffix=".log") as paused:
        one = log.append(b"one")
        paused.wait_until_reached()
    with log.partition.write_lock:
        log.turn()
        assert not one.done
    assert log.commit.step()
    log.turn()
    assert one.result(0) == 1


def test_another_thread_may_take_the_flush_over(log: Log) -> None:
    with log.files.pause("sync", suffix=".log") as paused:
        one = log.append(b"one")
        paused.wait_until_reached()
        found: list[list[AppendToken]] = []
        taker = threading.Thread(target=lambda: found.append(log.partition.flush().tokens))
        taker.start()
    taker.join(HANG_S)
    assert found == [[one]]
    log.turn()  # the end of the flush is posted all the same, and finds nothing to tell
    assert log.posted.empty()
    two = log.append(b"two")
    log.turn()
    assert two.result(0) == 2


def test_much_that_is_queued_is_left_to_a_commit_thread(log: Log) -> None:
    with log.files.pause("sync", suffix=".log") as paused:
        log.append(b"one")
        paused.wait_until_reached()
        big = log.append(bytes(LOOP_WRITE_BYTES))
    assert log.commit.step()
    while not big.done:
        log.turn()
    assert big.result(0) == 2


def test_a_full_segment_is_left_to_a_commit_thread(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=1024 * 1024)
    value = bytes(LOOP_WRITE_BYTES // 2)
    tokens = []
    for _ in range(40):
        token = log.append(value)
        tokens.append(token)
        while not token.done:
            if log.posted.empty():
                log.commit.step()
            log.turn()
    assert [token.result(0) for token in tokens] == list(range(1, 41))
    assert len(log.partition.segments) > 1
    log.close()


def test_appends_during_a_close_are_told(log: Log) -> None:
    with log.files.pause("sync", suffix=".log") as paused:
        one = log.append(b"one")
        paused.wait_until_reached()
        two = log.append(b"two")
    outcome = log.partition.close()
    assert outcome.tokens == [one, two]
    log.turn()
    assert log.posted.empty()


def test_a_late_word_of_one_flush_does_not_wait_for_the_next(log: Log) -> None:
    """Another thread has told of the first flush, and the second is under way."""
    first = log.append(b"one")
    late = log.posted.get(timeout=HANG_S)
    assert log.partition.flush().tokens == [first]
    with log.files.pause("sync", suffix=".log") as paused:
        second = log.append(b"two")
        paused.wait_until_reached()
        late()
        assert not second.done and log.partition.visible_offset == 2
    log.turn()
    assert second.result(0) == 2


def test_a_repeat_is_not_answered_before_the_batch_that_it_repeats_is_durable(log: Log) -> None:
    with log.files.pause("sync", suffix=".log") as paused:
        log.append(b"one")
        paused.wait_until_reached()
        tokens = [
            log.commit.append(log.partition, encode_values([b"once"], 1).from_producer(7, 0, 0))
            for _ in range(2)
        ]
    with log.files.pause("sync", suffix=".log") as paused:
        log.turn()  # the end of the flush: what is queued is left to a commit thread
        assert not any(token.done for token in tokens)
        served = threading.Thread(target=log.commit.step)
        served.start()
        paused.wait_until_reached()
        assert log.posted.empty() and not any(token.done for token in tokens)
    served.join(HANG_S)
    log.turn()
    assert [(token.base_offset, token.repeated) for token in tokens] == [(2, False), (2, True)]


def test_messages_at_most_once_are_flushed_a_moment_later(log: Log) -> None:
    first = log.append(b"early", flags=FLAG_AT_MOST_ONCE)
    second = log.append(b"early too", flags=FLAG_AT_MOST_ONCE)
    assert log.partition.early_offset == 3, "subscribers need not wait"
    assert log.posted.empty() and log.partition.visible_offset == 1
    [(delay_s, flush)] = log.delayed  # one for both
    assert delay_s == LATE_FLUSH_S
    flush()
    log.turn()
    assert first.done and second.done and log.partition.visible_offset == 3


def test_an_append_that_is_waited_for_takes_the_late_ones_with_it(log: Log) -> None:
    early = log.append(b"early", flags=FLAG_AT_MOST_ONCE)
    token = log.append(b"second")
    log.turn()
    assert early.done and token.done
    flushes = log.partition.counters.flushes
    log.delayed.pop()[1]()
    assert log.posted.empty() and log.partition.counters.flushes == flushes
    log.append(b"early again", flags=FLAG_AT_MOST_ONCE)
    assert len(log.delayed) == 1, "the next one is asked for again"


def test_a_late_flush_of_a_closed_partition_does_nothing(log: Log) -> None:
    early = log.append(b"early", flags=FLAG_AT_MOST_ONCE)
    deliver(log.partition.close())
    log.delayed.pop()[1]()
    assert early.done and log.posted.empty()
