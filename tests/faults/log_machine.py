"""The state machine over one partition: everything a log can be asked for, and everything it can meet.

Subclasses say on which files it runs and how these can fail; the test is test_log_machine.py. Expected
answers come from log_model.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from faults.log_kit import DIRECTORY, OpenLog, log_paths
from faults.log_model import Model, Sent
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit.records import Row, build

from penstock.log.batch.format import Batch
from penstock.log.errors import AppendFailed, FencedProducer, SequenceGap
from penstock.log.partitions import cleaner
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage import reader
from penstock.log.storage.cache import DEFAULT_CACHE_BYTES
from penstock.log.storage.files import FileSystem

SETTINGS = st.builds(
    TopicSettings,
    segment_bytes=st.sampled_from([400, 1200, 3000]),
    durability=st.sampled_from(["ack", "ack", "none"]),
    compression=st.sampled_from(["none", "zstd"]),
    retention_ms=st.sampled_from([0, 2]),
    retention_bytes=st.sampled_from([0, 2000]),
    cleanup=st.sampled_from(["delete", "compact"]),
    tombstone_ms=st.just(0),
)
PRODUCERS = st.sampled_from([1, 2, 3])
# (bytes of the value, key, header, lifetime in microseconds, how old it is)
ROW_SHAPES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 40, 200, 700]),
        st.sampled_from([None, None, b"k1", b"k2", b""]),
        st.booleans(),
        st.sampled_from([0, 0, 0, 1500]),
        st.integers(0, 3000),
    ),
    min_size=1,
    max_size=6,
)
CLOCK_START_US = 1_000_000


@dataclass(slots=True)
class Queued:
    token: AppendToken
    batch: Batch
    rows: list[Row]


class LogMachine(RuleBasedStateMachine):
    """On the files that `make_files` gives, without faults."""

    log: OpenLog
    files: FileSystem

    def __init__(self) -> None:
        super().__init__()
        self.now_us = CLOCK_START_US
        self.model = Model()
        # The model, and what was promised to be durable, before the command that ran last.
        self.before = (Model(), 0)
        self.queued: list[Queued] = []
        self.cache_bytes = DEFAULT_CACHE_BYTES
        self.write_idle = False
        self._count = 0

    def make_files(self) -> FileSystem:
        raise NotImplementedError

    def faults_allowed(self) -> bool:
        """Whether an append may fail now."""
        return False

    @initialize(settings=SETTINGS, cached=st.booleans(), write_idle=st.booleans())
    def start(self, settings: TopicSettings, cached: bool, write_idle: bool) -> None:
        self.write_idle = write_idle
        self.files = self.make_files()
        self.settings = settings
        self.cache_bytes = DEFAULT_CACHE_BYTES if cached else 0
        self.open()

    def open(self) -> None:
        self.log = OpenLog(
            self.files,
            self.settings,
            directory=self.directory(),
            cache_bytes=self.cache_bytes,
            clock_us=lambda: self.now_us,
            write_idle=self.write_idle,
        )
        assert self.log.partition.recovered.damages == []

    def directory(self) -> str:
        return DIRECTORY

    def begin(self) -> None:
        """A command begins that power loss may interrupt."""
        self.before = (self.model.copy(), self.durable_end())

    def durable_end(self) -> int:
        if self.settings.durability == "ack":
            return self.log.partition.visible_offset
        return self.log.partition.flushed_offset

    # --- appending ---

    def rows(self, shapes: list[tuple[int, bytes | None, bool, int, int]]) -> list[Row]:
        made = []
        for size, key, header, life_us, age_us in shapes:
            self._count += 1
            value = b"%d" % self._count + b"." * size if size else b""
            headers = ((b"number", b"%d" % self._count),) if header else ()
            expiry_us = self.now_us + life_us if life_us else 0
            null = not size and key is not None
            made.append(Row(value, self.now_us - age_us, key, headers, expiry_us, null))
        return made

    def queue(self, batch: Batch, rows: list[Row]) -> None:
        if self.write_idle:
            self.begin()  # the call itself writes
        self.queued.append(Queued(self.log.queue(batch), batch, rows))
        if self.write_idle:
            self.finish_commit()  # the model knows nothing of what is written and not told

    @rule(shapes=ROW_SHAPES)
    def append(self, shapes: list[tuple[int, bytes | None, bool, int, int]]) -> None:
        rows = self.rows(shapes)
        self.queue(build(rows), rows)

    @rule(shapes=ROW_SHAPES, producer=PRODUCERS, ahead=st.sampled_from([0, 0, 0, 1, 3]))
    def append_numbered(
        self, shapes: list[tuple[int, bytes | None, bool, int, int]], producer: int, ahead: int
    ) -> None:
        """The next number, or one that leaves a gap."""
        rows = self.rows(shapes)
        epoch, sequence = self.model.next_number(producer)
        self.queue(build(rows).from_producer(producer, epoch, sequence + ahead), rows)

    @rule(shapes=ROW_SHAPES, producer=PRODUCERS, up=st.sampled_from([1, 1, -1]))
    def append_in_epoch(
        self, shapes: list[tuple[int, bytes | None, bool, int, int]], producer: int, up: int
    ) -> None:
        epoch, _ = self.model.next_number(producer)
        if epoch + up >= 0:
            rows = self.rows(shapes)
            self.queue(build(rows).from_producer(producer, epoch + up, 0), rows)

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Sends a batch again: one that is stored, or one that is queued."""
        sent = [(s.batch, s.rows) for s in self.model.produced]
        sent += [(q.batch, q.rows) for q in self.queued if q.batch.producer_id]
        if sent:
            self.queue(*data.draw(st.sampled_from(sent[-8:])))

    @rule(batches=st.lists(st.tuples(PRODUCERS, ROW_SHAPES), min_size=1, max_size=8))
    def write_much(
        self, batches: list[tuple[int, list[tuple[int, bytes | None, bool, int, int]]]]
    ) -> None:
        """Several groups one after the other, so that there are segments to work on."""
        for producer, shapes in batches:
            self.append_numbered(shapes, producer, 0)
            self.commit()

    @rule()
    def commit(self) -> None:
        self.begin()
        self.finish_commit()

    def finish_commit(self) -> None:
        self.log.run()
        queued, self.queued = self.queued, []
        for entry in queued:
            assert entry.token.done
            self.settle(entry)
        assert self.log.partition.next_offset == self.model.end, "offsets are not dense"
        assert self.log.partition.visible_offset == self.model.end

    def settle(self, entry: Queued) -> None:
        """Compares the answer to an append with what the model says."""
        token, error = entry.token, entry.token.error
        if isinstance(error, AppendFailed):
            assert self.faults_allowed(), error
            return
        expected = self.expected_answer(entry.batch)
        if expected == "store":
            assert error is None, error
            assert not token.repeated
            assert token.base_offset == self.model.end
            if entry.batch.producer_id:
                self.model.produced.append(Sent(entry.batch, entry.rows, self.model.end))
            self.model.add(entry.rows)
        elif isinstance(expected, int):
            assert token.repeated and token.result() in (expected, -1)
        else:
            assert type(error) is expected

    def expected_answer(self, batch: Batch) -> str | int | type[Exception]:
        """ "store", the offset where it is stored already, or the error."""
        newest = self.model.newest(batch.producer_id)
        if not batch.producer_id:
            return "store"
        if newest is None:
            return SequenceGap if batch.sequence else "store"
        if batch.epoch != newest.batch.epoch:
            fenced = batch.epoch < newest.batch.epoch
            return FencedProducer if fenced else "store"
        if batch.sequence == newest.batch.sequence + 1:
            return "store"
        if batch.sequence > newest.batch.sequence:
            return SequenceGap
        for sent in self.model.produced:
            numbers = (sent.batch.producer_id, sent.batch.epoch, sent.batch.sequence)
            if numbers == (batch.producer_id, batch.epoch, batch.sequence):
                return sent.base_offset
        raise AssertionError("a producer begins with 0, so that every number below is stored")

    # --- ends of the process ---

    def check_repeats(self) -> None:
        """What is stored is stored once, whatever has become of the process in between."""
        for producer in {sent.batch.producer_id for sent in self.model.produced}:
            newest = self.model.newest(producer)
            assert newest is not None
            token = self.log.send(newest.batch)
            assert token.repeated and token.base_offset in (newest.base_offset, -1)

    @rule()
    def close_and_reopen(self) -> None:
        self.commit()
        self.log.close()
        self.open()
        self.check_repeats()

    @rule(cached=st.booleans())
    def kill_and_reopen(self, cached: bool) -> None:
        """The page cache stays: everything that was written is there."""
        self.log.die()
        self.queued = []
        self.cache_bytes = DEFAULT_CACHE_BYTES if cached else 0
        self.open()
        assert self.log.partition.next_offset == self.model.end
        assert self.log.partition.start_offset == self.model.start
        self.check_repeats()

    @rule()
    def lose_the_indexes(self) -> None:
        self.commit()
        self.log.die()
        for path in log_paths(self.files, ".index", self.directory()):
            self.files.remove(path)
        self.open()
        self.check_repeats()

    # --- maintenance ---

    def begin_to_give_up(self) -> None:
        """Flushed first: who gives up what was not flushed may lose it and its numbers as well."""
        self.log.partition.flush()
        self.begin()

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        self.begin_to_give_up()
        self.maintain(lambda: self.log.partition.trim(int(self.model.end * part)))
        wanted = max(self.model.start, int(self.model.end * part))
        assert self.log.partition.start_offset in (self.model.start, wanted)
        self.model.start = self.log.partition.start_offset

    @rule(later_us=st.integers(0, 2500))
    def retain(self, later_us: int) -> None:
        self.now_us += later_us
        self.begin_to_give_up()
        size = self.log.partition.size_bytes()
        self.maintain(lambda: cleaner.apply_retention(self.log.partition, self.now_us))
        start = self.log.partition.start_offset
        given_up = [self.model.rows[offset] for offset in range(self.model.start, start)]
        oldest_us = self.now_us - self.settings.retention_ms * 1000
        if given_up:
            assert self.settings.cleanup == "delete"
            too_old = self.settings.retention_ms and all(r.time_us < oldest_us for r in given_up)
            too_much = self.settings.retention_bytes and size > self.settings.retention_bytes
            assert too_old or too_much
        self.model.start = start

    @precondition(lambda self: self.settings.cleanup == "compact")
    @rule()
    def compact(self) -> None:
        self.begin()
        self.model.note_compaction(self.model.end, self.now_us)
        self.maintain(lambda: cleaner.compact(self.log.partition, self.now_us))

    @rule()
    def merge(self) -> None:
        self.begin()
        self.maintain(lambda: cleaner.merge_small_batches(self.log.partition))

    def maintain(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError:
            assert self.faults_allowed()

    # --- reading ---

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 100, 1000, 1 << 20]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        first = data.draw(st.integers(self.model.start, self.model.end))
        result = reader.read(self.log.partition, first, max_bytes)
        found = {r.offset: r for view in result.views for r in view.records()}
        size = sum(v.payload_bytes(v.first_row, v.last_row) for v in result.views)
        assert size <= max_bytes or len(found) == 1, "more than was asked for"
        assert found or result.next_offset == self.model.end, "at least one record"
        assert result.next_offset > first or first == self.model.end
        rows = self.log.records(first, max_bytes) if first < self.model.end else {}
        self.model.check(rows, first, self.model.end, self.now_us)

    @rule(age_us=st.integers(-1000, 6000))
    def find_time(self, age_us: int) -> None:
        sure, possible = self.model.first_at(self.now_us - age_us)
        found = reader.offset_at_time(self.log.partition, self.now_us - age_us)
        if found is None:
            assert sure is None
        else:
            assert found in possible
            assert sure is None or found <= sure
            skipped = {offset for offset in possible if offset < found}
            assert skipped <= self.model.removable

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.partition.start_offset == self.model.start
        self.model.check(self.log.records(), self.model.start, self.model.end, self.now_us)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.die()
