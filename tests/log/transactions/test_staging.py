"""Staged batches on the disk: files that survive a power loss, damage that is named, rows and states."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.engines import batch
from kit.faulty_files import FaultyFiles
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES

from penstock.log.batch.format import Batch
from penstock.log.batch.view import view_appended
from penstock.log.errors import CorruptLog, TransactionNotOpen
from penstock.log.metadata import transaction_rows as kept
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata.transaction_rows import StagedBatch
from penstock.log.transactions.staging import Staging

TASK = 7 << 32 | 3


def entries(*batches: Batch, task: int = TASK, number: int = 0, at: int = 0) -> list[StagedBatch]:
    found = []
    for one in batches:
        found.append(StagedBatch(task, number, "t", 0, at, one.size()))
        number += 1
        at += one.size()
    return found


def values(batches: Iterator[Batch]) -> list[list[bytes]]:
    return [list(view_appended(one, 0).values()) for one in batches]


def test_what_was_written_is_read_in_the_order_asked_for(
    files: FaultyFiles, tmp_path: Path
) -> None:
    staging = Staging(str(tmp_path), files)
    first = [batch(b"a", b"b"), batch(b"", time_us=9)]
    second = [batch(b"c").compressed(), batch(b"x" * 5000).compressed()]
    one, two = entries(*first), entries(*second, task=1)
    staging.write(4, one, first)
    staging.write(4, two, second)
    assert values(staging.read(4, [*two, *one])) == [[b"c"], [b"x" * 5000], [b"a", b"b"], [b""]]
    (again,) = list(staging.read(4, one[1:]))
    assert (again.first_time_us, again.max_time_us, again.count) == (9, 9, 1)
    assert list(staging.read(4, [])) == []
    assert staging.present() == [4]
    staging.remove(4)
    staging.remove(4)
    assert staging.present() == []


def test_every_power_loss_after_a_write_finds_it() -> None:
    """Also when the very write that created the file had failed."""
    disk = SimulatedDisk(1)
    files = FaultyFiles(disk)
    staging = Staging("/data", files)
    one, two = batch(b"lost"), batch(b"kept")
    files.fail("sync", errno.EIO, suffix=".stage")
    with pytest.raises(OSError):
        staging.write(1, entries(one), [one])
    places = entries(two, number=1, at=one.size())
    staging.write(1, places, [two])
    for mode in PURE_MODES:
        after = Staging("/data", disk.crash_after(len(disk.operations), mode, 3))
        assert values(after.read(1, places)) == [[b"kept"]], mode


def test_a_file_that_was_taken_away_does_not_come_back_with_a_hole(
    files: FaultyFiles, tmp_path: Path
) -> None:
    staging = Staging(str(tmp_path), files)
    one = batch(b"v")
    staging.write(1, entries(one), [one])
    files.remove(str(tmp_path / "transactions" / "1" / f"{TASK}.stage"))
    with pytest.raises(FileNotFoundError):
        staging.write(1, entries(one, number=1, at=one.size()), [one])


def flip(path: Path, one: Batch) -> None:
    content = bytearray(path.read_bytes())
    content[one.size() + 80] ^= 1
    path.write_bytes(content)


def cut(path: Path, one: Batch) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def swap(path: Path, one: Batch) -> None:
    """A whole batch, but not the one that belongs there."""
    path.write_bytes(path.read_bytes()[: one.size()] * 2)


def remove(path: Path, one: Batch) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [flip, cut, swap, remove])
def test_damage_is_named(
    files: FaultyFiles, tmp_path: Path, harm: Callable[[Path, Batch], None]
) -> None:
    staging = Staging(str(tmp_path), files)
    batches = [batch(b"one", b"two"), batch(b"six", b"ten")]
    places = entries(*batches)
    staging.write(1, places, batches)
    path = tmp_path / "transactions" / "1" / f"{TASK}.stage"
    harm(path, batches[0])
    with pytest.raises(CorruptLog) as caught:
        list(staging.read(1, places))
    assert caught.value.path == str(path)
    assert caught.value.position == (0 if harm is remove else places[1].position)


def test_foreign_names_are_left_alone(files: FaultyFiles, tmp_path: Path) -> None:
    for name in ("12", "x1", "٣", "²"):
        (tmp_path / "transactions" / name).mkdir(parents=True)
    assert Staging(str(tmp_path), files).present() == [12]


# --- rows ------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(str(tmp_path / "metadata.db"))
    yield store
    store.close()


def begin(store: MetadataStore, name: str = "q", now_us: int = 100, time_us: int = 50) -> int:
    found, state = store.submit(
        lambda db: kept.begin_row(db, name, now_us, now_us + time_us)
    ).result()
    assert state == "open"
    return found


def stage(store: MetadataStore, id_: int, task: int, number: int = 0, now_us: int = 100) -> None:
    place = StagedBatch(task, kept.number_of(number, 0), "t", 0, 10 * number, 10)
    store.submit(lambda db: kept.stage_row(db, "q", id_, [place], now_us)).result()


def decide(store: MetadataStore, id_: int, *tasks: int) -> str:
    return store.submit(
        lambda db: kept.decide_row(db, "q", id_, dict.fromkeys(tasks), 200, None)
    ).result()


def remove_late(store: MetadataStore, id_: int, late_us: int | None) -> str:
    return store.submit(lambda db: kept.remove_row(db, id_, late_us)).result()


def test_the_first_decision_stands(store: MetadataStore) -> None:
    id_ = begin(store)
    for task in (1, 2, 3):
        stage(store, id_, task)
    assert decide(store, id_, 1, 3, 99) == "committing"
    assert decide(store, id_, 2) == "committing"
    assert remove_late(store, id_, None) == "committing"
    with pytest.raises(TransactionNotOpen, match="committing"):
        stage(store, id_, 1, 1)
    assert [one.task for one in kept.staged_by(store, id_)] == [1, 3]
    assert kept.in_state(store, "committing") == [id_]
    store.submit(lambda db: kept.finish_row(db, id_, 300)).result()
    assert decide(store, id_, 2) == remove_late(store, id_, None) == "committed"
    assert kept.staged_by(store, id_) == []


def test_numbers_go_on_behind_the_highest(store: MetadataStore) -> None:
    id_ = begin(store)
    assert kept.place_after(store, id_, 5) == (0, 0)
    stage(store, id_, 5, 0)
    stage(store, id_, 5, 2)  # the write of number 1 failed
    assert kept.place_after(store, id_, 5) == (3, 30)


def test_the_deadline_keeps_its_distance_from_the_last_sign_of_life(store: MetadataStore) -> None:
    id_ = begin(store)
    assert kept.late_at(store, 149) == []
    assert kept.late_at(store, 150) == [id_]
    stage(store, id_, 1, now_us=140)
    assert kept.late_at(store, 189) == []
    stage(store, id_, 1, 1, now_us=120)  # a clock that goes back takes no time away
    assert kept.late_at(store, 189) == []
    assert remove_late(store, id_, 150) == "open"
    assert kept.late_at(store, 190) == [id_]
    assert begin(store, now_us=190) == id_
    assert kept.late_at(store, 239) == []
    assert remove_late(store, id_, 240) == "unknown"
    assert kept.staged_by(store, id_) == []
    assert begin(store) > id_, "an id is never used again"


def test_a_decision_about_nothing_is_refused(store: MetadataStore) -> None:
    id_ = begin(store)
    assert remove_late(store, id_, None) == remove_late(store, id_, None) == "unknown"
    with pytest.raises(TransactionNotOpen, match="'q' is unknown"):
        decide(store, id_, 1)
    with pytest.raises(TransactionNotOpen, match="unknown"):
        stage(store, id_, 1)


@pytest.mark.parametrize("task", [(1 << 63) - 1, -1, -(1 << 63)])
def test_tasks_are_signed_numbers_of_64_bits(store: MetadataStore, task: int) -> None:
    id_ = begin(store)
    stage(store, id_, task)
    assert decide(store, id_, task) == "committing"
    assert [one.task for one in kept.staged_by(store, id_)] == [task]


def test_a_task_beyond_that_changes_nothing(store: MetadataStore) -> None:
    id_ = begin(store)
    stage(store, id_, 1)
    with pytest.raises(OverflowError):
        stage(store, id_, 1 << 63)
    with pytest.raises(OverflowError):
        decide(store, id_, 1 << 63)
    assert kept.in_state(store, "open") == [id_]
    assert [one.task for one in kept.staged_by(store, id_)] == [1]
