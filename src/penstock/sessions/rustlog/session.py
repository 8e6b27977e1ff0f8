"""A RustLog session, in both dialects: JSON (the document) and binary (the existing programs).

Requests are answered in order. Several Produce requests may be pending at once, and those of one read are
appended together (produces.py). A limited number of CreateTopic and OffsetCommit requests may be pending
too: they take effect in the order of the requests, and only their answers wait for the disk. Every other
request waits for the answers before it, so that it sees their effect. dialects.py holds what differs
between the dialects.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import DESCRIBED_AT_ONCE, Port
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken, Pending, ReadResult
from penstock.names import MAX_NAME_BYTES
from penstock.sessions.base import BaseSession, Slot
from penstock.sessions.rustlog.dialects import BinaryDialect, Dialect, JsonDialect
from penstock.sessions.rustlog.produces import ProduceRun
from penstock.sessions.stream import FrameSize, SessionLimits, Stream
from penstock.wire.errors import PeerError
from penstock.wire.rustlog import frames as wire

# A Fetch never reads more than fits a reply.
MAX_FETCH_BYTES = wire.MAX_FRAME_BYTES
# The log counts offsets in an i64; the wire has a u64.
MAX_OFFSET = (1 << 63) - 1
# Pending metadata changes of one peer. Enough to share a commit; one read may bring them all, 0.1 ms of the
# event loop each.
MAX_CHANGES: Final = 32


class RustLogSession(BaseSession[wire.Frame]):
    protocol = "rustlog"

    def __init__(
        self,
        port: Port,
        stream: Stream,
        limits: SessionLimits,
        frame_size: FrameSize,
        principal: Principal,
        *,
        auto_create: bool = False,
    ) -> None:
        """`principal`: the one that the peer acts as, since RustLog has no login."""
        super().__init__(stream, limits, port.counters["rustlog"], frame_size)
        self._port = port
        self._principal = principal
        self._auto_create = auto_create
        self._dialects: tuple[Dialect, Dialect] = (JsonDialect(), BinaryDialect())
        self._last_dialect = wire.UNTOLD
        # The decoded request that has to wait.
        self._decoded: wire.Request | None = None
        # Number of CreateTopic and OffsetCommit answers that wait for the disk.
        self._changes = 0
        # Whether a thread makes an answer that must not show what the requests behind it change.
        self._looking = False
        # The records of this read to append; empty whenever the session waits for input.
        self._run: ProduceRun | None = None
        stream.logged_in()  # RustLog has no login: its peers count as logged in

    def split(self, buffer: bytes, start: int) -> tuple[list[wire.Frame], int, PeerError | None]:
        # A principal without any right gets no more memory than a peer that has not logged in yet.
        known = self._port.has_rights(self._principal)
        most = wire.MAX_FRAME_BYTES if known else self.limits.prelogin_frame_bytes
        frames, position, broken = wire.split_frames(
            buffer, start, len(buffer), self._last_dialect, most
        )
        if frames:
            self._last_dialect = frames[-1].dialect
        return frames, position, broken

    def last_words(self, error: PeerError) -> bytes:
        assert isinstance(error, wire.RustLogProtocolError)
        return self._dialects[error.dialect].error(error.code or wire.FRAME_ERROR, error.what)

    def perform(self, frame: wire.Frame) -> bool:
        """False: the request waits for the answers before it."""
        dialect = self._dialects[frame.dialect]
        try:
            request = self._decoded or dialect.decode(self.inbox.buffer, frame.start, frame.end)
        except wire.RustLogProtocolError as error:
            self._count_answer("decode")
            self.answer(dialect.error(error.code or wire.DECODE_ERROR, error.what))
            return True
        if self.answers_are_open() and not self._goes_along(request):
            self._decoded = request
            return False
        self._decoded = None
        self._count_answer("")
        slot = self.hold(frame.end - frame.start)
        try:
            self._carry_out(dialect, request, slot)
        except PenstockError as refused:
            # Not `error` again: compiled, a name has one type in a function.
            self.counters.errors[type(request).__name__] += 1
            slot.reply = dialect.refusal(request, refused)
        return True

    def _goes_along(self, request: wire.Request) -> bool:
        """Whether it may be carried out while answers before it are not known yet."""
        if self._looking:
            return False
        if isinstance(request, wire.Produce):
            return True
        return REQUESTS[type(request)].changes and self._changes < MAX_CHANGES

    def gathered(self) -> bool:
        if self._run is None:
            return False
        self._append_run()
        return True

    def _count_answer(self, error: str) -> None:
        self.counters.frames_in += 1
        self.counters.frames_out += 1
        if error:
            self.counters.errors[error] += 1

    # --- requests --------------------------------------------------------------------------------

    def _carry_out(self, dialect: Dialect, request: wire.Request, slot: Slot) -> None:
        run = self._run
        if (
            run is not None
            and isinstance(request, wire.Produce)
            and run.takes(dialect, request, slot)
        ):
            # The right and the topic were checked for the first request of the run, in the same loop turn.
            self._add_to_run(run, request, slot)
            return
        row = REQUESTS[type(request)]
        # Before the topic is looked up: without the right, a peer does not learn if it exists.
        self._port.require(self._principal, row.operation, getattr(request, "topic", ""))
        row.handle(self, dialect, request, slot)

    def _fetch_offset(self, dialect: Dialect, request: wire.OffsetFetch, slot: Slot) -> None:
        place = request.group_id, request.topic, request.partition
        slot.reply = dialect.committed(self._committed(dialect, *place))

    def _committed(self, dialect: Dialect, group: str, topic: str, partition: int) -> int | None:
        anywhere = dialect.commits_anywhere
        return self._port.committed_offset(group, topic, partition, anywhere=anywhere)

    # Answers that grow with the number of topics are made in a thread.

    def _list_topics(self, dialect: Dialect, request: wire.ListTopics, slot: Slot) -> None:
        self._answer_aside(request, dialect, slot, lambda: self._topics(dialect))

    def _describe_partition(
        self, dialect: Dialect, request: wire.DescribePartition, slot: Slot
    ) -> None:
        end = self._port.offsets(request.topic, request.partition)[1]
        slot.reply = dialect.partition_description(request.topic, request.partition, end)

    def _metrics(self, dialect: Dialect, request: wire.Metrics, slot: Slot) -> None:
        self._port.render_metrics().on_done(
            self.guarded(lambda done: self.settle(slot, dialect.metrics(done.result())))
        )

    def _ping(self, dialect: Dialect, request: wire.Ping, slot: Slot) -> None:
        slot.reply = dialect.pong()

    def _topics(self, dialect: Dialect) -> bytes:
        return dialect.topics(
            [(info.name, info.partitions) for info in page]
            for page in self._port.topics(self._principal)
        )

    def _describe(self, dialect: Dialect, request: wire.DescribeTopic, slot: Slot) -> None:
        info = self._port.topic(request.topic)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC)
        name, partitions = info.name, info.partitions

        def describe() -> bytes:
            ends = [self._port.offsets(name, number)[1] for number in range(partitions)]
            return dialect.topic_description(name, ends)

        if partitions <= DESCRIBED_AT_ONCE:
            slot.reply = describe()
        else:
            self._answer_aside(request, dialect, slot, describe)

    def _answer_aside(
        self, request: wire.Request, dialect: Dialect, slot: Slot, make: Callable[[], bytes]
    ) -> None:
        """Builds the answer in a thread."""

        self._looking = True

        def made(done: Pending[bytes]) -> None:
            self._looking = False
            if done.error is None:
                self.settle(slot, done.result())
            else:
                self.counters.errors[type(request).__name__] += 1
                self.settle(slot, dialect.refusal(request, done.error))

        self._port.aside(make).on_done(self.guarded(made))

    def _produce(self, dialect: Dialect, request: wire.Produce, slot: Slot) -> None:
        if self._auto_create:
            self._port.ensure_topic(request.topic, self._principal)
        next_offset = self._port.offsets(request.topic, request.partition)[1]
        if not request.records:
            slot.reply = dialect.produced(next_offset, 0)
            return
        self._append_run()
        run = ProduceRun(dialect, request.topic, request.partition, next_offset)
        self._add_to_run(run, request, slot)
        self._run = run

    def _add_to_run(self, run: ProduceRun, request: wire.Produce, slot: Slot) -> None:
        run.dialect.check_produce(request.records, run.next_offset)
        self.counters.messages_in += len(request.records)
        run.add(request, slot)

    def _append_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.append(self._append, self._produced, self.guarded)

    def _append(self, topic: str, partition: int, values: list[bytes], single: bool) -> AppendToken:
        """A request with a record that the schema refuses is refused whole, unless the topic wants such
        records as dead letters. Requests of a run are then appended one by one: each has its answer."""
        records = Records(values)
        try:
            return self._port.publish(self._principal, topic, partition, records)
        except SchemaViolation as violation:
            if not violation.diverts or not single:
                raise
            return self._port.publish_rest(
                self._principal, topic, partition, records, violation, self.protocol
            )

    def _produced(self, failed: int) -> None:
        if failed:
            self.counters.errors["Produce"] += failed
        self.go_on()

    def _fetch(self, dialect: Dialect, request: wire.Fetch, slot: Slot) -> None:
        committed = None
        if request.group_id:
            committed = self._committed(dialect, request.group_id, request.topic, request.partition)
        early = dialect.fetch_without_read(request, committed)
        if early is not None:
            slot.reply = early
            return
        earliest, latest = self._port.offsets(request.topic, request.partition)
        offset = dialect.fetch_start(request, committed)
        if offset >= latest or (request.max_bytes == 0 and not dialect.at_least_one):
            slot.reply = dialect.nothing_to_fetch(offset, latest)
            return
        if offset < earliest and dialect.skips_to_requested:
            slot.reply = dialect.nothing_to_fetch(offset, latest)
            return
        limit = max(min(request.max_bytes, MAX_FETCH_BYTES), 1)
        read = self._port.read(self._principal, request.topic, request.partition, offset, limit)
        read.on_done(self.guarded(lambda done: self._fetched(dialect, request, slot, done)))

    def _fetched(
        self,
        dialect: Dialect,
        request: wire.Fetch,
        slot: Slot,
        read: Pending[ReadResult],
    ) -> None:
        if read.error is not None:
            self.counters.errors["Fetch"] += 1
            self.settle(slot, dialect.refusal(request, read.error))
            return
        result = read.result()
        reply, count = dialect.fetched(request, result.views, result.next_offset)
        self.counters.messages_out += count
        self.settle(slot, reply)

    def _commit(self, dialect: Dialect, request: wire.OffsetCommit, slot: Slot) -> None:
        _check_commit(request)
        info = self._port.topic(request.topic)
        exists = info is not None and request.partition < info.partitions
        if not exists and not dialect.commits_anywhere:
            slot.reply = dialect.commit_without_partition()
            return
        change = self._port.commit_offset(
            self._principal, request.group_id, request.topic, request.partition, request.offset
        )
        if change is None:
            slot.reply = dialect.commit_without_partition()
            return

        self._answer_when_durable(dialect, request, slot, change, dialect.offset_committed())

    def _create_topic(self, dialect: Dialect, request: wire.CreateTopic, slot: Slot) -> None:
        dialect.check_partition_count(request.partition_count)
        count = request.partition_count
        change = self._port.create_topic(self._principal, request.topic, count)
        if change is None:
            slot.reply = dialect.topic_created()
            return

        self._answer_when_durable(dialect, request, slot, change, dialect.topic_created())

    def _answer_when_durable(
        self,
        dialect: Dialect,
        request: wire.Request,
        slot: Slot,
        change: Pending[object],
        reply: bytes,
    ) -> None:
        self._changes += 1

        def written(done: Pending[object]) -> None:
            self._changes -= 1
            if done.error is None:
                self.settle(slot, reply)
            else:
                self.settle(slot, dialect.refusal(request, done.error))

        change.on_done(self.guarded(written))


class Row(NamedTuple):
    """What a request is in the table of rights, and how it is carried out. `changes`: the metadata. Such a
    request takes effect in its order without waiting, and only its answer waits for the disk."""

    operation: Operation
    handle: Callable[[RustLogSession, Dialect, Any, Slot], None]
    changes: bool = False


REQUESTS: Final[dict[type, Row]] = {
    wire.Produce: Row(Operation.PUBLISH, RustLogSession._produce),
    wire.Fetch: Row(Operation.READ_RECORDS, RustLogSession._fetch),
    wire.OffsetCommit: Row(Operation.COMMIT_OFFSETS, RustLogSession._commit, changes=True),
    wire.OffsetFetch: Row(Operation.READ_OFFSETS, RustLogSession._fetch_offset),
    wire.CreateTopic: Row(Operation.CREATE_TOPIC, RustLogSession._create_topic, changes=True),
    wire.ListTopics: Row(Operation.LIST_TOPICS, RustLogSession._list_topics),
    wire.DescribeTopic: Row(Operation.DESCRIBE_TOPIC, RustLogSession._describe),
    wire.DescribePartition: Row(Operation.DESCRIBE_TOPIC, RustLogSession._describe_partition),
    wire.Metrics: Row(Operation.READ_METRICS, RustLogSession._metrics),
    wire.Ping: Row(Operation.CHECK_HEALTH, RustLogSession._ping),
}


def _check_commit(request: wire.OffsetCommit) -> None:
    """Refuses values that the log cannot store."""
    for what, name in (("group", request.group_id), ("topic", request.topic)):
        size = len(name.encode())
        if size > MAX_NAME_BYTES:
            detail = f"{what} name of {size} bytes, the most is {MAX_NAME_BYTES}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
    if request.offset > MAX_OFFSET:
        detail = f"offset {request.offset} is above the largest, {MAX_OFFSET}"
        raise BrokerError(Code.INVALID_REQUEST, detail)
