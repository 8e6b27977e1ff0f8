"""Group commit: one flush for all that arrived meanwhile, timers, fairness, stopping."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.partitions import Bench

from penstock.log.batch.format import encode_values
from penstock.log.errors import OutcomeUnknown, PartitionStopped
from penstock.log.partitions.commit import GroupCommit
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(RealFiles())


@pytest.fixture
def commit() -> Iterator[GroupCommit]:
    running = GroupCommit(2)
    yield running
    running.close()


def open_partition(files: FaultyFiles, directory: Path, **settings: object) -> Partition:
    chosen = TopicSettings().changed(settings)
    return Bench(files, str(directory), chosen).open()


def append(commit: GroupCommit, partition: Partition, value: bytes = b"v") -> AppendToken:
    token = partition.append(encode_values([value], 1))
    commit.submit(partition)
    return token


def test_one_flush_covers_all_that_arrived_meanwhile(
    files: FaultyFiles, commit: GroupCommit, tmp_path: Path
) -> None:
    partition = open_partition(files, tmp_path / "0")
    append(commit, partition).result(HANG_S)
    before = files.calls["sync"]
    with files.pause("sync") as paused:
        first = append(commit, partition)
        paused.wait_until_reached()
        others = [append(commit, partition) for _ in range(64)]
        assert not first.done and not any(token.done for token in others)
        assert partition.visible_offset == 1
    assert [token.result(HANG_S) for token in [first, *others]] == list(range(1, 66))
    assert files.calls["sync"] == before + 2
    assert partition.counters.flushes == 3
    assert partition.visible_offset == 66


def test_a_slow_partition_does_not_hold_up_the_others(
    files: FaultyFiles, commit: GroupCommit, tmp_path: Path
) -> None:
    slow = open_partition(files, tmp_path / "slow")
    quick = open_partition(files, tmp_path / "quick")
    with files.pause("sync", suffix="slow/00000000000000000000.log") as paused:
        waiting = append(commit, slow)
        paused.wait_until_reached()
        assert append(commit, quick).result(HANG_S) == 0
        assert not waiting.done
    assert waiting.result(HANG_S) == 0


def test_tokens_complete_through_post(files: FaultyFiles, tmp_path: Path) -> None:
    posted: list[object] = []
    commit = GroupCommit(0, posted.append)
    partition = open_partition(files, tmp_path / "0")
    token = append(commit, partition)
    assert commit.step() and not commit.step()
    assert not token.done
    assert len(posted) == 1 and callable(posted[0])
    posted[0]()
    assert token.result(0) == 0
    commit.close()


@pytest.mark.parametrize(("durability", "flushes"), [("ack", 1), ("interval", 0), ("none", 0)])
def test_when_an_append_is_answered(
    durability: str, flushes: int, files: FaultyFiles, tmp_path: Path
) -> None:
    commit = GroupCommit(0)
    partition = open_partition(files, tmp_path / "0", durability=durability)
    token = append(commit, partition)
    assert commit.step()
    assert token.result(0) == 0
    assert partition.counters.flushes == files.calls["sync"] == flushes
    assert partition.visible_offset == 1
    commit.close()


def test_interval_flushes_when_its_time_has_come(files: FaultyFiles, tmp_path: Path) -> None:
    now = [100.0]
    commit = GroupCommit(0, monotonic=lambda: now[0])
    partition = open_partition(files, tmp_path / "0", durability="interval", flush_interval_ms=250)
    append(commit, partition)
    assert commit.step()
    now[0] += 0.2
    append(commit, partition)
    assert commit.step()
    assert not commit.step()
    assert partition.flushed_offset == 0 and partition.unflushed
    now[0] += 0.05
    assert commit.step()
    assert partition.flushed_offset == 2 and not partition.unflushed
    now[0] += 10
    assert not commit.step()
    assert partition.counters.flushes == 1
    commit.close()


def test_a_failed_flush_is_told_to_all_that_wait_and_stops_the_partition(
    files: FaultyFiles, commit: GroupCommit, tmp_path: Path
) -> None:
    partition = open_partition(files, tmp_path / "0")
    append(commit, partition).result(HANG_S)
    files.fail("sync", errno.EIO)
    with files.pause("sync") as paused:
        flushed = append(commit, partition)
        paused.wait_until_reached()
        queued = append(commit, partition)
    with pytest.raises(OutcomeUnknown):
        flushed.result(HANG_S)
    with pytest.raises(PartitionStopped):
        queued.result(HANG_S)
    with pytest.raises(PartitionStopped):
        append(commit, partition)
    assert (partition.visible_offset, partition.counters.flushes) == (1, 1)


def test_forget_waits_for_the_flush_that_runs(
    files: FaultyFiles, commit: GroupCommit, tmp_path: Path
) -> None:
    partition = open_partition(files, tmp_path / "0")
    forgotten = threading.Event()

    def forget() -> None:
        commit.forget(partition)
        forgotten.set()

    with files.pause("sync") as paused:
        token = append(commit, partition)
        paused.wait_until_reached()
        thread = threading.Thread(target=forget)
        thread.start()
        assert not forgotten.is_set()
    thread.join(HANG_S)
    assert forgotten.is_set() and token.result(HANG_S) == 0


def test_forget_drops_what_was_planned(files: FaultyFiles, tmp_path: Path) -> None:
    now = [0.0]
    commit = GroupCommit(0, monotonic=lambda: now[0])
    partition = open_partition(files, tmp_path / "0", durability="interval")
    append(commit, partition)
    assert commit.step()
    append(commit, partition)
    commit.forget(partition)
    now[0] += 100
    assert not commit.step()
    assert partition.counters.flushes == 0
    commit.close()


def test_a_defect_stops_only_its_partition(
    files: FaultyFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit = GroupCommit(0)
    broken = open_partition(files, tmp_path / "broken")
    sound = open_partition(files, tmp_path / "sound")
    batch = encode_values([b"v"], 1)
    batch.first_time_us = 1 << 70  # the header has no room for it
    broken.append(batch)
    commit.submit(broken)
    token = append(commit, sound)
    assert commit.step() and commit.step()
    assert token.result(0) == 0
    with pytest.raises(PartitionStopped):
        append(commit, broken)
    assert "commit of" in caplog.text
    commit.close()
