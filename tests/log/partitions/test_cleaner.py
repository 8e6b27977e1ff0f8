"""Maintenance: retention, compaction, merging, expiry, and readers meanwhile."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.faulty_files import FaultyFiles
from kit.partitions import Bench, append_now, append_rows, read_all, roll
from kit.records import ROWS, Row, build
from kit.simulated_disk import SimulatedDisk, SimulatedFile

from penstock.log.batch.format import FLAG_CLEANED
from penstock.log.batch.origin import door_of, origin_flags
from penstock.log.errors import OffsetOutOfRange
from penstock.log.partitions import cleaner
from penstock.log.partitions.cleaner import apply_retention, clean, compact, merge_small_batches
from penstock.log.partitions.partition import Partition
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles
from penstock.log.storage.reader import offset_at_time, read

DAY_US = 24 * 3600 * 1_000_000


def bench(**changes: object) -> Bench:
    return Bench(SimulatedDisk(1), "/data/0", TopicSettings().changed(changes))


def filled(work: Bench, segments: list[list[Row]]) -> Partition:
    """A partition with these sealed segments (one batch per row) and an active one of one row."""
    partition = work.open()
    for number, rows in enumerate(segments):
        for place, row in enumerate(rows):
            if number and not place:
                roll(partition, row)
            else:
                append_rows(partition, [[row]])
    roll(partition, Row(b"active"))
    return partition


def files_in(work: Bench, suffix: str) -> list[str]:
    return [name for name in work.files.list(work.directory) if name.endswith(suffix)]


# --- retention ----------------------------------------------------------------------------------


def test_retention_by_age_gives_whole_segments_up() -> None:
    work = bench(retention_ms=24 * 3600 * 1000)
    partition = filled(work, [[Row(b"a", 1)], [Row(b"b", 2)], [Row(b"c", 2 * DAY_US)]])
    size = partition.size_bytes()
    freed = apply_retention(partition, DAY_US + 2)
    assert freed > 0 and partition.size_bytes() == size - freed
    assert partition.start_offset == 1
    assert [offset for offset, _ in read_all(partition)] == [1, 2, 3]
    assert len(files_in(work, ".log")) == 3
    with pytest.raises(OffsetOutOfRange):
        read(partition, 0, 100)
    assert work.open().start_offset == 1


def test_a_segment_stays_as_long_as_one_record_is_young() -> None:
    work = bench(retention_ms=1)
    partition = filled(work, [[Row(b"young", DAY_US), Row(b"old", 1)], [Row(b"old", 1)]])
    assert apply_retention(partition, DAY_US) == 0
    assert partition.start_offset == 0


def test_retention_by_size_keeps_the_newest() -> None:
    rows = [[Row(b"x" * 1000)] for _ in range(5)]
    work = bench(retention_ms=0, retention_bytes=3500)
    partition = filled(work, rows)
    assert apply_retention(partition, 0) > 0
    assert partition.size_bytes() <= 3500
    assert partition.start_offset == 2
    assert apply_retention(partition, 0) == 0


def test_without_limits_everything_stays() -> None:
    partition = filled(bench(retention_ms=0), [[Row(b"a")]] * 3)
    assert apply_retention(partition, 1 << 60) == 0
    assert partition.start_offset == 0


def test_a_compacted_topic_is_not_retained_by_age() -> None:
    partition = filled(bench(cleanup="compact", retention_ms=1), [[Row(b"a")]] * 3)
    assert apply_retention(partition, 1 << 60) == 0


def test_an_active_segment_that_is_too_old_goes_without_another_append() -> None:
    work = bench(retention_ms=1)
    partition = work.open()
    append_rows(partition, [[Row(b"old", 1)], [Row(b"older", 0)]])
    assert apply_retention(partition, DAY_US) > 0
    assert (partition.start_offset, partition.size_bytes(), read_all(partition)) == (2, 0, [])
    for _ in range(2):
        # An empty segment is not rolled again.
        assert (apply_retention(partition, 2 * DAY_US), len(partition.segments)) == (0, 1)
    partition.close()
    partition = work.open()
    append_rows(partition, [[Row(b"new", DAY_US)]])
    apply_retention(partition, DAY_US)
    assert read_all(partition) == [(2, Row(b"new", DAY_US))]


# --- compaction ---------------------------------------------------------------------------------


def compacted(**changes: object) -> Bench:
    return bench(cleanup="compact", tombstone_ms=1000, **changes)


def test_a_deletion_mark_stays_while_an_older_record_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more keys than are remembered at once, the old record may not be found."""
    monkeypatch.setattr(cleaner, "MAX_KEYS", 2)
    rows = [Row(b"old", 1, b"k"), Row(b"", 2, b"k", null=True)]
    rows += [Row(b"x", 3, name) for name in (b"n1", b"n2", b"n3")]
    partition = filled(compacted(), [[row] for row in rows])
    compact(partition, DAY_US)
    left = [row.null for _, row in read_all(partition) if row.key == b"k"]
    assert left[-1:] == [True], "the key is still deleted"


def test_a_full_table_still_follows_the_keys_that_are_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the old record counts as the newest, its mark goes, and the key is back."""
    monkeypatch.setattr(cleaner, "MAX_KEYS", 2)
    rows = [
        Row(b"old", 1, b"k"),
        Row(b"x", 1, b"n1"),
        Row(b"", 2, b"k", null=True),
        Row(b"x", 3, b"n2"),
    ]
    partition = filled(compacted(), [rows])
    compact(partition, DAY_US)
    assert [row.value for _, row in read_all(partition) if row.key == b"k"] in ([], [b""])


def test_a_deletion_mark_stays_while_an_older_segment_waits_for_its_seal() -> None:
    """A segment that is not sealed is not rewritten: its record would come back without the mark."""
    rows = [Row(b"old", 1, b"k"), Row(b"", 2, b"k", null=True), Row(b"x", 3, b"n")]
    partition = filled(compacted(), [rows[:1], rows[1:]])
    partition.segments[0].sealed = False
    compact(partition, DAY_US)
    assert [row.value for _, row in read_all(partition) if row.key == b"k"] == [b"old", b""]


def test_the_newest_record_of_each_key_stays() -> None:
    rows = [
        Row(b"1", 1, b"a"),
        Row(b"2", 2, b"b"),
        Row(b"3", 3, b"a"),
        Row(b"4", 4),
        Row(b"5", 5, b"b"),
    ]
    work = compacted()
    partition = filled(work, [rows[:2], rows[2:]])
    done, _ = compact(partition, 10)
    assert (done.records_removed, done.segments) == (2, 2)
    kept = [(offset, row.value) for offset, row in read_all(partition)]
    assert kept == [(2, b"3"), (3, b"4"), (4, b"5"), (5, b"active")]
    assert read_all(work.open()) == read_all(partition)
    assert compact(partition, 10)[0].records_removed == 0


def test_the_active_segment_is_not_looked_at() -> None:
    partition = filled(compacted(), [[Row(b"1", 1, b"a"), Row(b"2", 2, b"b")]])
    append_rows(partition, [[Row(b"3", 3, b"a")]])
    assert compact(partition, 10)[0].records_removed == 0


@pytest.mark.parametrize(("now_us", "kept"), [(1_000_004, [1, 2]), (1_000_006, [2])])
def test_a_deletion_mark_goes_when_it_is_old_enough(now_us: int, kept: list[int]) -> None:
    rows = [Row(b"1", 1, b"a"), Row(b"", 5, b"a", null=True), Row(b"2", 5, b"b")]
    partition = filled(compacted(), [rows])
    compact(partition, now_us)
    assert [offset for offset, _ in read_all(partition)] == [*kept, 3]


def test_an_empty_value_is_a_value() -> None:
    rows = [Row(b"1", 1, b"a"), Row(b"", 5, b"a"), Row(b"2", 5, b"b")]
    partition = filled(compacted(), [rows])
    compact(partition, DAY_US)
    assert [row for _, row in read_all(partition)][:2] == rows[1:]


@pytest.mark.parametrize("cleanup", ["compact", "delete"])
def test_nulls_survive_rewriting(cleanup: str) -> None:
    rows = [Row(b"", 5, null=True), Row(b"", 5), Row(b"", DAY_US, b"k", null=True), Row(b"v", 5)]
    work = bench(cleanup=cleanup, tombstone_ms=1000)
    partition = filled(work, [rows, [Row(b"1", 1, b"k2"), Row(b"2", 2, b"k2"), Row(b"3", 3)]])
    compact(partition, DAY_US) if cleanup == "compact" else merge_small_batches(partition)
    assert [row for _, row in read_all(partition)][:4] == rows
    assert read_all(work.open()) == read_all(partition)


def test_the_last_record_of_a_segment_stays_so_that_its_end_is_known() -> None:
    partition = filled(compacted(), [[Row(b"1", 1, b"a"), Row(b"", 5, b"a", null=True)]])
    compact(partition, 1 << 60)
    assert [offset for offset, _ in read_all(partition)] == [1, 2]


def test_small_segments_are_joined() -> None:
    work = compacted()
    partition = filled(work, [[Row(b"1", 1, b"a")], [Row(b"2", 2, b"a")], [Row(b"3", 3, b"b")]])
    compact(partition, 10)
    assert len(partition.segments) == 2
    assert [offset for offset, _ in read_all(partition)] == [1, 2, 3]
    assert [offset for offset, _ in read_all(work.open())] == [1, 2, 3]
    assert len(files_in(work, ".log")) == 2


def test_a_read_in_a_gap_goes_on_behind_it() -> None:
    rows = [Row(b"1", 1, b"a"), Row(b"2", 2, b"a"), Row(b"3", 3, b"a")]
    partition = filled(compacted(), [rows])
    compact(partition, 10)
    for offset in (0, 1, 2):
        assert read(partition, offset, 1).views[0].first_offset() == 2


@settings(max_examples=30)
@given(st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_compaction_equals_the_model(segments: list[list[Row]]) -> None:
    work = bench(cleanup="compact", tombstone_ms=0)
    partition = filled(work, segments)
    work.clock.now_us = partition.clock_us()
    before = read_all_raw(partition)
    sealed = before[:-1]
    newest = {row.key: offset for offset, row in sealed if row.key is not None}
    ends = {group[-1] for group in offset_groups(segments)}
    done, _ = compact(partition, 1 << 62)
    after = read_all_raw(partition)
    lost = [entry for entry in before if entry not in after]
    assert len(lost) == done.records_removed
    for offset, row in lost:
        mark = row.null and row.time_us < (1 << 62)
        assert row.key is not None and (newest[row.key] > offset or mark)
    for offset, row in sealed:
        if row.key is not None and newest[row.key] > offset and offset not in ends:
            assert (offset, row) in lost
    assert read_all_raw(work.open()) == after


def offset_groups(segments: list[list[Row]]) -> list[list[int]]:
    groups, offset = [], 0
    for rows in segments:
        groups.append(list(range(offset, offset + len(rows))))
        offset += len(rows)
    return groups


def read_all_raw(partition: Partition) -> list[tuple[int, Row]]:
    """As read_all, with nothing expired: the clock stands at the beginning of time."""
    partition.clock_us = lambda: 0
    return read_all(partition)


# --- merging ------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.lists(ROWS, min_size=2, max_size=12), min_size=1, max_size=3), st.booleans())
def test_merging_keeps_everything(segments: list[list[Row]], zstd: bool) -> None:
    work = bench(compression="zstd" if zstd else "none")
    partition = filled(work, segments)
    before = read_all_raw(partition)
    assert [row for _, row in before[:-1]] == [row for rows in segments for row in rows]
    times = [0, 7, 1 << 40]
    found = [offset_at_time(partition, time_us) for time_us in times]
    done = merge_small_batches(partition)
    assert (done.segments, done.records_removed) == (len(segments), 0)
    assert read_all_raw(partition) == before
    assert [offset_at_time(partition, time_us) for time_us in times] == found
    again = work.open()
    assert read_all_raw(again) == before
    assert merge_small_batches(again).segments == 0


def test_many_small_batches_become_one() -> None:
    partition = filled(bench(), [[Row(b"v" * 50, n) for n in range(200)]])
    size = partition.size_bytes()
    assert merge_small_batches(partition).bytes_removed > 0
    assert partition.size_bytes() < size
    views = read(partition, 0, 1 << 20).views
    assert [len(view) for view in views] == [200, 1]
    assert views[0].header.flags & FLAG_CLEANED


def test_merged_records_keep_the_door_that_they_came_in_by() -> None:
    work = bench()
    partition = work.open()
    for door in ("flymq", "flymq", "blipmq", ""):
        batch = build([Row(b"v")])
        batch.flags |= origin_flags(door)
        append_now(partition, batch)
    roll(partition, Row(b"active"))
    assert merge_small_batches(partition).segments == 1
    views = read(partition, 0, 1 << 20).views
    found = [(door_of(view.flags), len(view)) for view in views]
    assert found == [("flymq", 2), ("blipmq", 1), ("", 1), ("", 1)]


def test_large_batches_are_left_alone() -> None:
    work = bench()
    partition = work.open()
    append_rows(partition, [[Row(b"x" * 70_000)] * 2] * 2)
    roll(partition, Row(b"active"))
    assert merge_small_batches(partition).segments == 0


def test_a_producer_is_still_known_after_merging() -> None:
    work = bench()
    partition = work.open()
    for sequence in range(3):
        batch = build([Row(b"v")]).from_producer(9, 0, sequence)
        append_now(partition, batch).result(0)
    roll(partition, Row(b"active"))
    merge_small_batches(partition)
    again = work.open()
    token = append_now(again, build([Row(b"v")]).from_producer(9, 0, 2))
    assert (token.result(0), token.repeated) == (2, True)
    assert again.next_offset == 4


def test_a_reader_goes_on_through_a_replacement(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    work = Bench(files, str(tmp_path / "0"))
    partition = filled(work, [[Row(b"%d" % n, n) for n in range(50)]])
    before = read_all(partition)
    with partition.open_segment(0) as (segment, end, file):
        first = read(partition, 0, 20)
        merge_small_batches(partition)
        assert end == 50
        assert file.size() > 0, "the old file stays open for its reader"
        assert segment not in partition.segments
    rest = read(partition, first.next_offset, 1 << 20)
    values = [value for view in [*first.views, *rest.views] for value in view.values()]
    assert values == [row.value for _, row in before]


# --- expiry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_expired_records_are_skipped_and_reading_goes_on(cache_bytes: int) -> None:
    work = Bench(SimulatedDisk(1), "/data/0", cache_bytes=cache_bytes)
    partition = work.open()
    rows = [Row(b"a", expiry_us=5), Row(b"b"), Row(b"c", expiry_us=10), Row(b"d", expiry_us=5)]
    append_rows(partition, [rows, [Row(b"e", expiry_us=5)]])
    for now_us, kept in ((4, b"abcde"), (5, b"bc"), (10, b"b")):
        work.clock.now_us = now_us
        assert b"".join(row.value for _, row in read_all(partition)) == kept
        assert read(partition, 3, 100).next_offset == 5


# --- what is known of earlier rounds ----------------------------------------------------------------


class ReadCounting(SimulatedDisk):
    """Counts the bytes that are read from segment files."""

    def __init__(self) -> None:
        super().__init__(1)
        self.read_bytes = 0

    def open(self, path: str, *, create: bool = False, write: bool = False) -> SimulatedFile:
        file = super().open(path, create=create, write=write)
        if not path.endswith(".log"):
            return file
        pread = file.pread

        def counted(size: int, position: int) -> bytes:
            data = pread(size, position)
            self.read_bytes += len(data)
            return data

        file.pread = counted  # type: ignore[method-assign]  # this one file is watched
        return file


def rounds(cleanup: str) -> tuple[ReadCounting, Bench, Partition]:
    disk = ReadCounting()
    settings = TopicSettings(cleanup=cleanup, tombstone_ms=1000, retention_ms=0)
    work = Bench(disk, "/data/0", settings)
    rows = [[Row(b"v" * 50, n, b"%d" % n) for n in range(s, s + 10)] for s in range(0, 30, 5)]
    partition = filled(work, rows)
    clean(partition, 1000)
    disk.read_bytes = 0
    return disk, work, partition


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_an_idle_round_reads_nothing_after_a_restart_too(cleanup: str) -> None:
    disk, work, partition = rounds(cleanup)
    for _ in range(3):
        assert clean(partition, 1000) == cleaner.Cleaned()
    assert disk.read_bytes == 0
    partition.close()
    again = work.open()
    disk.read_bytes = 0  # a start walks the active segment
    apply_retention(again, 1000)
    assert clean(again, 1000) == cleaner.Cleaned()
    assert disk.read_bytes == 0


@pytest.mark.parametrize("harm", [b"", b"x" * 32])
def test_a_lost_or_damaged_state_costs_one_look(harm: bytes) -> None:
    disk, work, partition = rounds("delete")
    partition.close()
    file = disk.open("/data/0/cleaned", write=True)
    file.truncate(0)
    file.pwritev([harm], 0)
    again = work.open()
    disk.read_bytes = 0
    clean(again, 1000)
    assert disk.read_bytes > 0
    disk.read_bytes = 0
    clean(again, 1000)
    assert disk.read_bytes == 0


def test_what_is_new_is_merged_and_nothing_else_is_read() -> None:
    disk, _, partition = rounds("delete")
    for n in range(20):
        append_rows(partition, [[Row(b"new %d" % n, n)]])
    roll(partition, Row(b"active"))
    expected = read_all(partition)
    disk.read_bytes = 0
    assert clean(partition, 1000).segments == 1
    assert disk.read_bytes < 3 * partition.segment_size(partition.segments[-2]) + 40 * 160
    assert read_all(partition) == expected


def test_compaction_waits_until_enough_is_new() -> None:
    _, _, partition = rounds("compact")
    for n in range(4):
        append_rows(partition, [[Row(b"v", n, b"1")]])
    roll(partition, Row(b"v", 5, b"1"))
    clean(partition, 1000)
    assert [row.key for _, row in read_all(partition)].count(b"1") == 6, "a small part of it all"
    for n in range(60):
        append_rows(partition, [[Row(b"w" * 60, n, b"1")]])
    roll(partition, Row(b"active"))
    assert clean(partition, 1000).records_removed >= 60
    assert [row.key for _, row in read_all(partition)].count(b"1") <= 2


def test_an_old_mark_goes_though_nothing_is_new() -> None:
    disk = ReadCounting()
    settings = TopicSettings(cleanup="compact", tombstone_ms=1000, retention_ms=0)
    partition = filled(
        Bench(disk, "/data/0", settings),
        [[Row(b"1", 1, b"a"), Row(b"", 5, b"a", null=True), Row(b"2", 5, b"b")]],
    )
    for now_us in (10, 1_000_005):
        clean(partition, now_us)
        assert [offset for offset, _ in read_all(partition)] == [1, 2, 3]
    clean(partition, 1_000_006)
    assert [offset for offset, _ in read_all(partition)] == [2, 3]
    disk.read_bytes = 0
    clean(partition, 1 << 60)
    assert disk.read_bytes == 0


def test_a_mark_that_has_to_stay_is_not_looked_at_each_round() -> None:
    """The last record of a segment stays, whatever it is."""
    disk = ReadCounting()
    settings = TopicSettings(cleanup="compact", tombstone_ms=1000, retention_ms=0)
    partition = filled(
        Bench(disk, "/data/0", settings), [[Row(b"1", 1, b"a"), Row(b"", 5, b"a", null=True)]]
    )
    clean(partition, 1 << 60)
    disk.read_bytes = 0
    clean(partition, 1 << 61)
    assert disk.read_bytes == 0
