"""Power goes at every single point: a fixed workload, and recovery after each prefix of its operations.

The workloads append (plain, keyed, from idempotent producers), roll, seal, trim, merge and compact, with
encryption and without, encrypt anew what lies under an older key or under none, and make staged files
segments. A staged file is in the log as a whole or not at all; where it is not, it can become a part of it.
At each point: every acknowledged record is there, dense and in order, nothing else is; repeats of what is
there are recognised; recovering twice equals recovering once; and power may go again while recovery runs.
Nothing is random but the way in which sectors tear, and that comes from seeds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from faults.log_kit import OpenLog, fresh_disk, from_producer, numbered, overwrite
from kit.records import Row, build
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES, CrashMode
from msgspec import structs

from penstock.log.batch.encryption import Keyring
from penstock.log.batch.format import Batch
from penstock.log.batch.view import view_appended
from penstock.log.metadata.transaction_rows import StagedBatch
from penstock.log.partitions import cleaner
from penstock.log.partitions.adopting import StagedFile
from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.producers import TRANSACTION_BIT
from penstock.log.partitions.recovery import recover
from penstock.log.partitions.reencryption import Pace, reencrypt
from penstock.log.settings import TopicSettings
from penstock.log.transactions.staging import Staging

pytestmark = pytest.mark.usefixtures("writes")

SETTINGS = TopicSettings(segment_bytes=900, retention_ms=0, tombstone_ms=0)
COMPACTED = TopicSettings(segment_bytes=900, cleanup="compact", tombstone_ms=0)
# Where files are staged.
STAGING = "/data"
# What every process after the crash is given.
KEYS = Keyring({1: b"1" * 32, 2: b"2" * 32}, 2)


@dataclass
class History:
    """What was sent where, and how many operations the disk had done when it was promised."""

    rows: dict[int, Row] = field(default_factory=dict)
    # (operations, end of the acknowledged records)
    acknowledged: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    # (operations before the call, start that it asked for)
    trims: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    # (operations before the first call that may remove, offsets that it may remove)
    removals: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    # (base offset, batch) of idempotent producers
    produced: list[tuple[int, Batch]] = field(default_factory=list)
    # (operations when it was staged, base offset, places of its batches)
    files: list[tuple[int, int, list[StagedBatch]]] = field(default_factory=list)

    def acknowledged_end(self, operation: int) -> int:
        return max(end for done, end in self.acknowledged if done <= operation)

    def starts(self, operation: int) -> set[int]:
        begun = [start for before, start in self.trims if before <= operation]
        return set(begun[-2:])

    def removable(self, operation: int) -> set[int]:
        return {o for before, offsets in self.removals if before <= operation for o in offsets}


class Writer:
    """Runs the workload and keeps its history."""

    def __init__(self, settings: TopicSettings, keys: Keyring = KEYS) -> None:
        self.disk = fresh_disk()
        self.log = OpenLog(self.disk, settings, cache_bytes=0, keys=keys)
        self.history = History()
        self._values = numbered()

    def append(self, *batches: list[Row] | tuple[int, int]) -> None:
        """One group: rows, or (producer, sequence) for an idempotent batch of two records."""
        sent = []
        for what in batches:
            if isinstance(what, tuple):
                rows = [Row(next(self._values)), Row(next(self._values))]
                batch = from_producer(rows, what[0], 0, what[1])
            else:
                rows, batch = what, build(what)
            sent.append((rows, batch, self.log.queue(batch)))
        self.log.run()
        for rows, batch, token in sent:
            base = token.result()
            self.history.rows.update({base + n: row for n, row in enumerate(rows)})
            if batch.producer_id:
                self.history.produced.append((base, batch))
        end = self.log.partition.visible_offset
        self.history.acknowledged.append((len(self.disk.operations), end))

    def adopt(self, file: int, batches: int, *, lost_bytes: int = 0) -> None:
        """Stages some batches of two records each, and makes their file a segment. `lost_bytes`: of a
        write behind them that came to nothing."""
        some = [[Row(next(self._values)), Row(next(self._values))] for _ in range(batches)]
        made = [build(rows) for rows in some]
        entries, position = [], 0
        for number, batch in enumerate(made):
            head, size = batch.stamp(number, 0), batch.size()
            entries.append(StagedBatch(1, number, "t", 0, position, size, 1, file, head))
            position += size
        staging = Staging(STAGING, self.disk)
        staging.write(file, entries, made)
        if lost_bytes:
            overwrite(self.disk, staging.path(file, entries[0]), position, b"\7" * lost_bytes)
        base = self.log.partition.next_offset
        self.history.files.append((len(self.disk.operations), base, entries))
        self.history.rows.update(
            {base + number: row for number, row in enumerate(row for rows in some for row in rows)}
        )
        outcome = Outcome()
        assert self.log.partition.adopt(staged_file(staging, entries), outcome)
        deliver(outcome)
        self.log.run()
        end = self.log.partition.visible_offset
        assert end == base + 2 * batches
        self.history.acknowledged.append((len(self.disk.operations), end))
        for number, batch in enumerate(made):
            sent = batch.from_producer(TRANSACTION_BIT | file, 0, number)
            self.history.produced.append((base + 2 * number, sent))

    def plain(self, count: int = 1) -> list[Row]:
        return [Row(next(self._values)) for _ in range(count)]

    def keyed(self, *keys: bytes) -> list[Row]:
        return [Row(next(self._values), key=key) for key in keys]

    def trim(self, offset: int) -> None:
        self.history.trims.append((len(self.disk.operations), offset))
        self.log.partition.trim(offset)

    def compact(self) -> cleaner.Cleaned:
        newest = {row.key: offset for offset, row in self.history.rows.items()}
        old = {
            offset
            for offset, row in self.history.rows.items()
            if row.key is not None and (newest[row.key] > offset or not row.value)
        }
        self.history.removals.append((len(self.disk.operations), frozenset(old)))
        return cleaner.compact(self.log.partition, 1)[0]


def staged_file(staging: Staging, entries: list[StagedBatch]) -> StagedFile:
    file = entries[0].file
    path = staging.path(file, entries[0])
    return StagedFile(path, [entry.head for entry in entries], TRANSACTION_BIT | file, 0)


def merging_workload(settings: TopicSettings = SETTINGS) -> Writer:
    writer = Writer(settings)
    writer.append((7, 0))
    writer.append(writer.plain(2), (7, 1), writer.plain(3), (8, 0))
    writer.append((7, 2), (7, 3), writer.plain(), writer.plain(2), (8, 1))
    writer.append(writer.plain(12))
    assert cleaner.merge_small_batches(writer.log.partition).segments >= 2
    writer.append(writer.plain(), (8, 2))
    writer.trim(9)
    writer.append(writer.plain(2), writer.plain(5))
    writer.log.close()
    return writer


def compacting_workload(settings: TopicSettings = COMPACTED) -> Writer:
    writer = Writer(settings)
    writer.append(writer.keyed(b"a", b"b", b"a"), (7, 0))
    writer.append(writer.keyed(b"c", b"a"), writer.keyed(b"b"), (7, 1))
    writer.append([Row(b"", key=b"c", null=True)], writer.keyed(b"d", b"d"), writer.plain())
    writer.append(writer.keyed(b"e", b"d", b"a", b"e"), writer.plain(4))
    assert writer.compact().records_removed >= 4
    writer.append(writer.keyed(b"d", b"a"), (7, 2), writer.keyed(b"f", b"b", b"f"))
    writer.trim(3)
    assert writer.compact().records_removed >= 1
    writer.append(writer.plain())
    writer.log.die()
    return writer


def encrypted_compacting() -> Writer:
    # With room for as many records as without encryption.
    return compacting_workload(structs.replace(COMPACTED, encryption=True, segment_bytes=1200))


def rotating_workload() -> Writer:
    """Plain at first, then under one key, then under the next, with sealed segments of each."""
    keys = Keyring({1: b"1" * 32, 2: b"2" * 32}, 1)
    writer = Writer(SETTINGS, keys)
    partition = writer.log.partition
    writer.append((7, 0), writer.plain(7))
    writer.append(writer.plain(4), (7, 1))
    partition.settings = structs.replace(SETTINGS, encryption=True)
    writer.append(writer.plain(3), (8, 0))
    assert reencrypt(partition, Pace(lambda _: False)).segments >= 2
    writer.append(writer.plain(6), (8, 1))
    keys.replace({1: b"1" * 32, 2: b"2" * 32}, 2)
    writer.append(writer.plain(2), (7, 2))
    writer.trim(3)
    assert reencrypt(partition, Pace(lambda _: False)).segments >= 3
    assert partition.key_ids() == {2}
    writer.append(writer.plain())
    writer.log.die()
    return writer


def adopting_workload() -> Writer:
    """Into an empty log, behind a segment that is sealed then, in the place of an empty one, behind what
    was not flushed."""
    writer = Writer(SETTINGS)
    writer.adopt(1, 2)
    writer.append(writer.plain(2), (7, 0))
    writer.adopt(2, 3, lost_bytes=600)
    writer.append((7, 1), writer.plain())
    writer.log.partition.roll(1 << 62)
    writer.adopt(3, 1)
    deliver(writer.log.partition.finish_rolls())
    writer.append(writer.plain(7), (7, 2))
    writer.adopt(4, 1)
    writer.trim(5)
    writer.append(writer.plain(2))
    writer.log.close()
    return writer


def check_files(disk: SimulatedDisk, writer: Writer, operation: int, log: OpenLog) -> None:
    """Those that are staged and not in the log are whole, and become a part of it when asked again."""
    staging = Staging(STAGING, disk)
    end = log.partition.next_offset
    for staged, base, entries in writer.history.files:
        count = 2 * len(entries)
        assert not base < end < base + count, "a part of a file"
        if operation < staged or base < end:
            continue
        rows = [writer.history.rows[base + number] for number in range(count)]
        read = [view_appended(one, 0).values() for one in staging.read(entries[0].file, entries)]
        assert [value for few in read for value in few] == [row.value for row in rows]
        at = log.partition.next_offset
        assert log.partition.adopt(staged_file(staging, entries), Outcome())
        assert list(log.records(at).values()) == rows


def check_found(disk: SimulatedDisk, writer: Writer, operation: int, acknowledged: int) -> None:
    """Opens the log like a new process does, and looks at everything."""
    history = writer.history
    log = OpenLog(disk, writer.log.partition.settings, cache_bytes=0, keys=KEYS)
    partition = log.partition
    assert partition.recovered.damages == []
    assert partition.start_offset in history.starts(operation)
    assert acknowledged <= partition.next_offset
    found = log.records()
    expected = {
        offset: history.rows[offset]
        for offset in range(partition.start_offset, partition.next_offset)
    }
    missing = set(expected) - set(found)
    assert missing <= history.removable(operation), "acknowledged records are gone"
    assert found == {offset: row for offset, row in expected.items() if offset not in missing}
    end = partition.next_offset
    check_files(disk, writer, operation, log)
    here = {entries[0].file for staged, _, entries in history.files if staged <= operation}
    for base, batch in history.produced:
        if batch.producer_id & TRANSACTION_BIT:
            if batch.producer_id & ~TRANSACTION_BIT in here:
                assert log.send(batch).repeated
            continue
        token = log.send(batch)
        if base < end:
            assert token.repeated and token.result() in (base, -1)
        else:
            assert token.result() == partition.next_offset - 2, "sent again after it was lost"
    log.die()


def workload_points(
    make: Callable[[], Writer], seeds: range
) -> Iterator[tuple[Writer, int, CrashMode, SimulatedDisk]]:
    writer = make()
    for point in writer.disk.crash_points(PURE_MODES, seeds):
        yield writer, point.operation, point.mode, point.disk


WORKLOADS = pytest.mark.parametrize(
    "make",
    [merging_workload, compacting_workload, rotating_workload, adopting_workload],
    ids=["merging", "compacting", "rotating", "adopting"],
)


@WORKLOADS
def test_power_loss_at_every_point(make: Callable[[], Writer]) -> None:
    for writer, operation, _, disk in workload_points(make, range(3)):
        acknowledged = writer.history.acknowledged_end(operation)
        check_found(disk, writer, operation, acknowledged)


def test_power_loss_at_every_point_of_an_encrypted_compaction() -> None:
    test_power_loss_at_every_point(encrypted_compacting)


@WORKLOADS
def test_recovering_twice_equals_recovering_once(make: Callable[[], Writer]) -> None:
    for writer, _, _, disk in workload_points(make, range(2)):
        settings = writer.log.partition.settings
        recover(disk, "/log")
        once = disk.contents()
        second = recover(disk, "/log")
        assert disk.contents() == once
        assert second.cut_bytes == 0
        OpenLog(disk, settings, keys=KEYS).die()
        sealed = disk.contents()
        OpenLog(disk, settings, keys=KEYS).die()
        assert disk.contents() == sealed


@WORKLOADS
def test_power_loss_during_recovery(make: Callable[[], Writer]) -> None:
    """Every point of the recovery, after the points of the workload where it has most to do."""
    tried = 0
    for writer, operation, mode, disk in workload_points(make, range(1)):
        if mode != "tear512":
            continue
        acknowledged = writer.history.acknowledged_end(operation)
        OpenLog(disk, writer.log.partition.settings, keys=KEYS).die()
        for again in disk.crash_points(("drop", "tear512")):
            check_found(again.disk, writer, operation, acknowledged)
            tried += 1
    assert tried > 300
