"""Damage that no crash makes: flipped bits, zeroed sectors, cut and removed files.

What is damaged refuses reads with the file and the position; all the rest is served, nothing is skipped in
silence, and appends go on. Torn tails, which crashes do make, are in test_torn_tail.py.
"""

from collections.abc import Callable

import pytest
from faults.log_kit import (
    OpenLog,
    batch_places,
    flip,
    fresh_disk,
    from_producer,
    log_paths,
    numbered,
    overwrite,
    plain,
    truncate,
)
from kit.partitions import DOOMSDAY_US
from kit.records import Row
from kit.simulated_disk import SimulatedDisk

from penstock.log.batch.encryption import KEY_BYTES, Sealer
from penstock.log.errors import CorruptLog, KeyUnknown
from penstock.log.partitions import cleaner
from penstock.log.storage import reader
from penstock.log.storage.segment import Segment

BATCHES = 8
Damager = Callable[[SimulatedDisk, str, int, int], None]


def make_log(disk: SimulatedDisk, *, clean: bool) -> list[bytes]:
    """Eight batches of two records: three to a segment, so two sealed ones and the active one."""
    log = OpenLog(disk)
    source = numbered()
    values = [next(source) for _ in range(2 * BATCHES)]
    for first in range(0, len(values), 2):
        log.store(*values[first : first + 2])
    assert [path[-6:] for path in log_paths(disk)] == ["00.log", "06.log", "12.log"]
    if clean:
        log.close()
    else:
        log.die()
    return values


def flip_magic(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    flip(disk, path, at)


def flip_checksum(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    flip(disk, path, at + 9)


def flip_offset(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    flip(disk, path, at + 17)


def flip_body(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    flip(disk, path, at + length - 30)


def shorten_length(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    overwrite(disk, path, at + 4, (length - 64).to_bytes(4, "little"))


def lengthen_a_little(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    overwrite(disk, path, at + 4, (length + 64).to_bytes(4, "little"))


def lengthen_past_the_end(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    overwrite(disk, path, at + 4, (length + (1 << 20)).to_bytes(4, "little"))


def zero_it(disk: SimulatedDisk, path: str, at: int, length: int) -> None:
    overwrite(disk, path, at, bytes(length))


DAMAGERS = pytest.mark.parametrize(
    "damage",
    [
        flip_magic,
        flip_checksum,
        flip_offset,
        flip_body,
        shorten_length,
        lengthen_a_little,
        lengthen_past_the_end,
        zero_it,
    ],
)


def check_answers(log: OpenLog, values: list[bytes], lost: range, path: str) -> None:
    """Each offset alone: its value, or an error that names the place."""
    answers = log.answers()
    assert list(answers) == list(range(len(values))), "offsets that nobody can ask for"
    for offset, answer in answers.items():
        if offset in lost:
            assert isinstance(answer, CorruptLog), offset
            assert answer.path == path
            assert path in str(answer) and f"byte {answer.position}" in str(answer)
            assert lost.start <= answer.first_offset <= offset
            assert answer.next_offset == lost.stop, "where a reader can go on"
        else:
            assert answer == values[offset], offset


def go_on(log: OpenLog, values: list[bytes], lost: range, path: str) -> None:
    """Appends, restarts after a kill and after a clean stop, with the same answers."""
    for restart in (OpenLog.die, OpenLog.close, OpenLog.die):
        check_answers(log, values, lost, path)
        assert log.store(b"new") == len(values)
        values.append(b"new")
        restart(log)
        log = OpenLog(log.files, cache_bytes=0)
        assert log.partition.recovered.cut_bytes == 0
    check_answers(log, values, lost, path)


@DAMAGERS
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_damaged_batch(damage: Damager, clean: bool, segment: int, batch: int) -> None:
    """In sealed segments and in the active one, never the last batch: that one may be torn."""
    disk = fresh_disk()
    values = make_log(disk, clean=clean)
    path = log_paths(disk)[segment]
    if (segment, batch) == (2, 1) and not clean:
        log = OpenLog(disk)
        log.store(b"proof that what came before was durable")
        values.append(b"proof that what came before was durable")
        log.die()
    damage(disk, path, *batch_places(disk, path)[batch])
    first = 6 * segment + 2 * batch
    go_on(OpenLog(disk, cache_bytes=0), values, range(first, first + 2), path)


@pytest.mark.parametrize("keep", [0, 1, 100, 400, 401, 700])
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_truncated_file(keep: int, segment: int) -> None:
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    path = log_paths(disk)[segment]
    places = batch_places(disk, path)
    truncate(disk, path, min(keep, disk.size(path) - 8))
    whole = sum(position + length <= disk.size(path) for position, length in places)
    end = min(6 * segment + 6, len(values))
    log = OpenLog(disk, cache_bytes=0)
    go_on(log, values, range(6 * segment + 2 * whole, end), path)


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("with_index", [True, False])
def test_a_removed_segment(segment: int, with_index: bool) -> None:
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    path = log_paths(disk)[segment]
    disk.remove(path)
    index = path.replace(".log", ".index")
    if with_index and disk.exists(index):
        disk.remove(index)
    lost = range(6 * segment, min(6 * segment + 6, len(values)))
    log = OpenLog(disk, cache_bytes=0)
    assert log.partition.next_offset == len(values), "no offset is used twice"
    # A missing file is noticed at the end of the one before it, if there is one.
    go_on(log, values, lost, log_paths(disk)[segment - 1] if segment else path)


def test_all_segments_removed() -> None:
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    first = log_paths(disk)[0]
    for path in log_paths(disk):
        disk.remove(path)
    log = OpenLog(disk, cache_bytes=0)
    assert len(log.partition.recovered.damages) == 1
    go_on(log, values, range(len(values)), first)


def test_a_segment_removed_while_it_is_served() -> None:
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    log = OpenLog(disk, cache_bytes=0)
    path = log_paths(disk)[1]
    disk.remove(path)
    check_answers(log, values, range(6, 12), path)
    assert log.values(12) == values[12:]


@pytest.mark.parametrize("suffix", [".index", ".producers", "checkpoint"])
@pytest.mark.parametrize("how", ["flip", "empty", "remove"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_files_that_can_be_built_again(suffix: str, how: str, clean: bool) -> None:
    """No record is lost with them, and no repeat is stored twice."""
    disk = fresh_disk()
    values = make_log(disk, clean=clean)
    log = OpenLog(disk)
    rows = [Row(b"once" * 40)]
    for sequence in range(9):
        log.send(from_producer(rows, 5, 0, sequence))
        values += [rows[0].value]
    if clean:
        log.close()
    else:
        log.die()
    paths = log_paths(disk, suffix)
    assert paths or not clean
    # The snapshots are there twice, so that one may be damaged.
    for path in paths[-1:] if suffix == ".producers" else paths:
        if how == "flip":
            flip(disk, path, disk.size(path) - 1)
        elif how == "empty":
            truncate(disk, path, 0)
        else:
            disk.remove(path)
    log = OpenLog(disk, cache_bytes=0)
    assert log.partition.recovered.damages == []
    assert log.values() == values
    for sequence in range(9):
        assert log.send(from_producer(rows, 5, 0, sequence)).repeated
    assert log.values() == values
    assert reader.offset_at_time(log.partition, 0) == 0


@pytest.mark.parametrize("how", ["flip", "empty"])
def test_a_damaged_start_file(how: str) -> None:
    """It brings given-up records of the first segment back to light, and loses none."""
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    log = OpenLog(disk)
    log.partition.trim(8)
    log.close()
    if how == "flip":
        flip(disk, "/log/start", 9)
    else:
        truncate(disk, "/log/start", 0)
    log = OpenLog(disk)
    assert log.partition.recovered.damages == []
    assert log.records() == {offset: Row(values[offset]) for offset in range(6, len(values))}


def test_a_removed_start_file_looks_like_lost_segments() -> None:
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    log = OpenLog(disk)
    log.partition.trim(8)
    log.close()
    disk.remove("/log/start")
    log = OpenLog(disk)
    assert isinstance(log.answers()[0], CorruptLog)
    assert log.values(6) == values[6:]
    log.partition.trim(6)
    assert log.values() == values[6:]


def test_every_bit_of_a_sealed_segment() -> None:
    """Right data or CorruptLog, never wrong data, and at least the other batch is served."""
    disk = fresh_disk()
    log = OpenLog(disk)
    values = [b"first", b"second", b"third", b"fourth"]
    log.store(*values[:2])
    log.store(*values[2:])
    log.partition.roll(DOOMSDAY_US)
    log.store(b"active")
    log.close()
    path = log_paths(disk)[0]
    (_, first_length), _ = batch_places(disk, path)
    size = disk.size(path)
    log = OpenLog(disk, cache_bytes=0)
    for position in range(size):
        lost = range(2) if position < first_length else range(2, 4)
        for bit in range(8):
            flip(disk, path, position, bit)
            log.partition.segments[0] = Segment("/log", 0, sealed=True)
            check_answers(log, [*values, b"active"], lost, path)
            flip(disk, path, position, bit)


@pytest.mark.parametrize("damage", [flip_body, zero_it])
def test_the_cleaner_leaves_damage_alone(damage: Damager) -> None:
    """It goes on with the other segments, and tells once."""
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    path = log_paths(disk)[0]
    damage(disk, path, *batch_places(disk, path)[1])
    log = OpenLog(disk, cache_bytes=0)
    with pytest.raises(CorruptLog):
        cleaner.merge_small_batches(log.partition)
    assert len(batch_places(disk, log_paths(disk)[1])) == 1
    assert cleaner.merge_small_batches(log.partition) == cleaner.Cleaned()
    check_answers(log, values, range(2, 4), path)


@pytest.mark.parametrize("cut_batches", [1, 2])
def test_the_cleaner_does_not_hide_missing_records(cut_batches: int) -> None:
    """A file cut between two batches looks whole; merged with the next one the gap would vanish."""
    disk = fresh_disk()
    values = make_log(disk, clean=True)
    path = log_paths(disk)[0]
    places = batch_places(disk, path)
    truncate(disk, path, places[-cut_batches][0])
    log = OpenLog(disk, cache_bytes=0)
    with pytest.raises(CorruptLog, match="records are missing"):
        cleaner.compact(log.partition, 0)
    with pytest.raises(CorruptLog, match="records are missing"):
        log.values(6 - 2 * cut_batches)
    assert log.values(6) == values[6:]


def test_a_batch_with_an_unknown_key_is_kept_and_refused() -> None:
    """Another server may have the key: recovery does not cut it, readers say what is wrong."""
    disk = fresh_disk()
    log = OpenLog(disk)
    log.store(b"before")
    batch = plain(b"hidden")
    header, sealed = Sealer(7, bytes(KEY_BYTES), bytes).seal(batch, 1, 1, log.partition.salt.value)
    log.die()
    path = log_paths(disk)[0]
    size = disk.size(path)
    file = disk.open(path, write=True)
    file.pwritev([header, sealed.body], size)
    file.close()
    log = OpenLog(disk, cache_bytes=0)
    assert (log.partition.recovered.cut_bytes, log.partition.next_offset) == (0, 2)
    log.store(b"after")
    with pytest.raises(KeyUnknown, match="encrypted with key 7, which is not known here") as told:
        log.values(1)
    assert (told.value.path, told.value.position) == (path, size)
    assert (log.answers()[0], log.answers()[2]) == (b"before", b"after")
    log.partition.roll(DOOMSDAY_US)
    log.store(b"active")
    with pytest.raises(KeyUnknown):
        cleaner.compact(log.partition, 0)
