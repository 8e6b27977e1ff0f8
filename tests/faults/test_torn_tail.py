"""A torn tail is cut, counted and logged once, and everything before it is served.

Also: what looks like one but is not. Bytes that some later batch, a snapshot or a checkpoint proves to
have been durable are damage (test_damage.py), and are never cut.
"""

import logging
from pathlib import Path

import pytest
from faults.log_kit import (
    OpenLog,
    batch_places,
    flip,
    fresh_disk,
    log_paths,
    numbered,
    overwrite,
    plain,
    truncate,
)
from kit.limits import HANG_S
from kit.simulated_disk import SimulatedDisk

from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import CorruptLog
from penstock.log.partitions.ends import CLEAN_STOP_FILE
from penstock.log.storage.files import RealFiles

pytestmark = pytest.mark.usefixtures("writes")


def stored_values(disk: SimulatedDisk, batches: int) -> list[bytes]:
    log = OpenLog(disk)
    source = numbered()
    values = [next(source) for _ in range(batches)]
    for value in values:
        log.store(value)
    log.die()
    return values


@pytest.mark.parametrize("kept", range(1, 180, 7))
def test_a_batch_that_is_half_there(kept: int) -> None:
    disk = fresh_disk()
    values = stored_values(disk, 7)
    path = log_paths(disk)[-1]
    position, length = batch_places(disk, path)[-1]
    assert kept < length
    truncate(disk, path, position + kept)
    log = OpenLog(disk, cache_bytes=0)
    assert log.partition.counters.cut_bytes == kept
    assert log.partition.recovered.cut_path == path
    assert log.partition.recovered.damages == []
    assert log.values() == values[:-1]
    assert log.store(b"in its place") == len(values) - 1
    log.die()
    log = OpenLog(disk)
    assert log.partition.counters.cut_bytes == 0
    assert log.values() == [*values[:-1], b"in its place"]


@pytest.mark.parametrize("garbage", [bytes(100), b"\xff" * 33, b"PSTK" * 30], ids=str)
def test_garbage_behind_the_last_batch(garbage: bytes) -> None:
    disk = fresh_disk()
    values = stored_values(disk, 3)
    path = log_paths(disk)[-1]
    overwrite(disk, path, disk.size(path), garbage)
    log = OpenLog(disk)
    assert log.partition.counters.cut_bytes == len(garbage)
    assert log.values() == values


def test_a_torn_tail_over_two_segments() -> None:
    """The group that was being written reached the second file but not the end of the first."""
    disk = fresh_disk()
    values = stored_values(disk, 4)
    log = OpenLog(disk)
    source = numbered(b"lost")
    for _ in range(4):
        log.queue(plain(next(source)))
    log.run()
    assert len(log_paths(disk)) == 2
    synced = disk.contents()
    log.die()
    first, second = log_paths(disk)
    for path in log_paths(disk, ".index") + log_paths(disk, ".producers"):
        disk.remove(path)
    truncate(disk, first, batch_places(disk, first)[4][0] + 50)
    cut = 50 + disk.size(second)
    log = OpenLog(disk)
    assert synced[second]
    assert log.partition.counters.cut_bytes == cut
    assert log_paths(disk) == [first]
    assert log.values() == values


@pytest.mark.parametrize("proof", ["a later batch", "a checkpoint", "nothing"])
def test_the_proof_of_durability_decides(proof: str) -> None:
    disk = fresh_disk()
    values = stored_values(disk, 3)
    path = log_paths(disk)[0]
    position, _ = batch_places(disk, path)[-1]
    if proof != "nothing":
        log = OpenLog(disk)
        if proof == "a later batch":
            log.store(b"later")
            log.die()
        else:
            log.close()
    flip(disk, path, position + 80)
    log = OpenLog(disk, cache_bytes=0)
    assert [log.answers()[0], log.answers()[1]] == values[:2]
    if proof == "nothing":
        assert log.partition.counters.cut_bytes and log.partition.next_offset == 2
    else:
        assert log.partition.counters.cut_bytes == 0
        assert isinstance(log.answers()[2], CorruptLog)
        assert log.store(b"new") == (4 if proof == "a later batch" else 3)


def crashed(directory: Path) -> None:
    """As if the last stop had not been clean: then a start looks at every partition."""
    (directory / CLEAN_STOP_FILE).unlink()


def test_it_is_logged_once_with_file_and_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EmbeddedEngine(str(tmp_path))
    for topic in ("torn", "whole"):
        engine.create_topic(topic)
        for number in range(3):
            engine.append(topic, 0, plain(b"%d" % number)).result(HANG_S)
    engine.close()
    (path,) = tmp_path.glob("topics/torn*/0/*.log")
    with path.open("ab") as file:
        file.write(b"x" * 77)
    crashed(tmp_path)
    caplog.set_level(logging.INFO)
    engine = EmbeddedEngine(str(tmp_path))
    try:
        for topic in ("torn", "whole"):  # a partition opens when it is touched
            views = engine.read(topic, 0, 0, 1000).result(HANG_S).views
            assert [value for view in views for value in view.values()] == [b"0", b"1", b"2"]
        lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert lines == [f"{path}: torn tail of 77 bytes cut"]
    finally:
        engine.close()
    caplog.clear()
    EmbeddedEngine(str(tmp_path)).close()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert RealFiles().size(str(path)) > 0


def test_damage_in_one_partition_leaves_the_others_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EmbeddedEngine(str(tmp_path))
    engine.create_topic("t", 2)
    for partition in (0, 1, 0, 1):
        engine.append("t", partition, plain(b"value")).result(HANG_S)
    engine.close()
    (path,) = tmp_path.glob("topics/t*/0/*.log")
    content = bytearray(path.read_bytes())
    content[90] ^= 1  # in the value of the first record
    path.write_bytes(content)
    crashed(tmp_path)
    engine = EmbeddedEngine(str(tmp_path))
    try:
        with pytest.raises(CorruptLog, match="at byte 0"):
            engine.read("t", 0, 0, 1000).result(HANG_S)
        assert [str(path) in r.getMessage() for r in caplog.records] == [True]
        assert engine.read("t", 0, 1, 1000).result(HANG_S).count() == 1
        assert engine.read("t", 1, 0, 1000).result(HANG_S).count() == 2
        assert engine.append("t", 0, plain(b"on")).result(HANG_S) == 2
        (text,) = engine.partition_info("t", 0).damages
        assert str(path) in text and "at byte 0" in text
    finally:
        engine.close()
