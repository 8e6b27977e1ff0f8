"""Flushes that run while the next group is written: what is told when, and what an error costs."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles

from penstock.log.batch.format import encode_values
from penstock.log.errors import OutcomeUnknown, PartitionStopped
from penstock.log.partitions import appending
from penstock.log.partitions.commit import call_now
from penstock.log.partitions.flush_threads import FlushThreads
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import RealFile, RealFiles
from penstock.log.storage.handles import HandlePool


class Log:
    """One partition whose every append is a group of its own, with a thread for flushes."""

    def __init__(self, directory: Path, threads: FlushThreads) -> None:
        self.files = FaultyFiles(RealFiles())
        self.partition = Partition(
            str(directory / "0"),
            TopicSettings(),
            HandlePool(self.files),
            BatchCache(),
            lambda: 1,
            None,
            threads,
        )
        first = self.append(b"first")
        assert self.step() == [first]

    def append(self, value: bytes) -> AppendToken:
        return self.partition.append(encode_values([value], 1))

    def step(self) -> list[AppendToken]:
        return self.partition.write_pending().tokens


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(appending, "GROUP_BYTES", 1)
    # Small groups are flushed in turns else.
    monkeypatch.setattr(appending, "OVERLAP_BYTES", 1)
    threads = FlushThreads(1, call_now)
    log = Log(tmp_path, threads)
    yield log
    log.files.clear()
    log.partition.close()
    threads.close()


def test_the_next_group_is_written_while_a_flush_runs(log: Log) -> None:
    one, two = log.append(b"one"), log.append(b"two")
    writes = log.files.calls["write"]
    with log.files.pause("sync", suffix=".log") as paused:
        assert log.step() == [], "nothing is durable yet"
        paused.wait_until_reached()
        assert log.partition.visible_offset == 1
        assert log.files.calls["write"] == writes + 1
    assert log.step() == [one, two]
    assert (one.base_offset, two.base_offset) == (1, 2)
    assert log.partition.visible_offset == 3


def test_a_flush_covers_only_what_was_written_before_it(log: Log) -> None:
    one, two = log.append(b"one"), log.append(b"two")
    assert log.step() == []
    log.files.fail("sync", errno.EIO, suffix=".log")
    # The flush of the first group is done or fails by itself; the fault may hit either of the two.
    told = log.step()
    assert told in ([one, two], [two, one])
    assert isinstance(two.error, OutcomeUnknown)
    if one.error is None:
        assert log.partition.visible_offset == 2
    else:
        assert isinstance(one.error, OutcomeUnknown)
        assert log.partition.visible_offset == 1


def test_an_error_of_the_flush_takes_what_was_written_since_with_it(log: Log) -> None:
    one, two, three = log.append(b"one"), log.append(b"two"), log.append(b"three")
    log.files.fail("sync", errno.EIO, suffix=".log")
    assert log.step() == []
    told = log.step()
    assert set(map(id, told)) == {id(one), id(two), id(three)}
    assert isinstance(one.error, OutcomeUnknown)
    assert isinstance(two.error, OutcomeUnknown)
    assert isinstance(three.error, PartitionStopped), "it was never written"
    assert log.partition.visible_offset == 1
    with pytest.raises(PartitionStopped):
        log.append(b"later")


@pytest.mark.parametrize("where", ["here", "in another thread"])
def test_a_flush_that_fails_by_something_else_than_the_disk(
    log: Log, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nobody knows what is on the disk: everybody is told, and nothing more is written."""

    def fail(file: RealFile) -> None:
        raise MemoryError("no memory")

    tokens = [log.append(b"one")]
    if where != "here":
        tokens.append(log.append(b"two"))
    monkeypatch.setattr(RealFile, "sync", fail)
    told = log.step() + (log.step() if where == "in another thread" else [])
    assert set(map(id, told)) == set(map(id, tokens))
    assert isinstance(tokens[0].error, OutcomeUnknown)
    assert all(token.error is not None for token in tokens)
    assert log.partition.visible_offset == 1
    with pytest.raises(PartitionStopped):
        log.append(b"later")


def test_a_repeat_is_told_after_the_flush_of_its_first_copy(log: Log) -> None:
    def batch() -> AppendToken:
        return log.partition.append(encode_values([b"once"], 1).from_producer(7, 0, 0))

    first, repeat, other = batch(), batch(), log.append(b"other")
    assert log.step() == [], "neither of them before the flush"
    assert set(map(id, log.step())) == {id(first), id(repeat)}
    assert log.step() == [other]
    assert repeat.repeated
    assert repeat.base_offset == first.base_offset == 1
    assert other.base_offset == 2


def test_close_waits_for_the_flush(log: Log) -> None:
    one, two = log.append(b"one"), log.append(b"two")
    assert log.step() == []
    assert log.partition.close().tokens == [one, two]
    assert log.partition.flushed_offset == 3


def test_settle_answers_what_a_flush_covers(log: Log) -> None:
    one = log.append(b"one")
    log.append(b"two")
    assert log.step() == []
    assert log.partition.settle().tokens == [one]
    assert log.partition.settle().tokens == []
