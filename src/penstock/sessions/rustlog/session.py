"""A RustLog conversation, in both dialects: JSON (the document) and binary (the existing programs).

Requests are answered in order. Produces may be under way together, and those of one read are appended
together (rustlog_produces.py); every other request waits for the answers before it, so that it sees their
effect. Each dialect keeps its own meaning where they differ
(rustlog_dialects.py holds the words and codes).
"""

from collections import deque
from typing import Final

from penstock.broker.access.rights import Operation
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.errors import PenstockError
from penstock.log.engine import MAX_TOPIC_NAME_BYTES, AppendToken, Pending, ReadResult, ReadToken
from penstock.sessions.base import Inbox, Outlet, PendingBytes, SessionLimits
from penstock.sessions.rustlog.dialects import BinaryDialect, Dialect, JsonDialect
from penstock.sessions.rustlog.produces import ProduceRun, Slot
from penstock.wire.rustlog import frames as wire

# A Fetch never reads more than fits a reply.
MAX_FETCH_BYTES = wire.MAX_FRAME_BYTES
# Groups are kept in memory and on disk for good, so their names have the limit that topics have.
MAX_NAME_BYTES = MAX_TOPIC_NAME_BYTES
# The log counts offsets in an i64; the wire has a u64.
MAX_OFFSET = (1 << 63) - 1

# What each request is in the broker's table of rights.
OPERATIONS: Final[dict[type, Operation]] = {
    wire.Produce: Operation.PUBLISH,
    wire.Fetch: Operation.READ_RECORDS,
    wire.OffsetCommit: Operation.COMMIT_OFFSETS,
    wire.OffsetFetch: Operation.READ_OFFSETS,
    wire.CreateTopic: Operation.CREATE_TOPIC,
    wire.ListTopics: Operation.LIST_TOPICS,
    wire.DescribeTopic: Operation.DESCRIBE_TOPIC,
    wire.DescribePartition: Operation.DESCRIBE_TOPIC,
    wire.Metrics: Operation.READ_METRICS,
    wire.Ping: Operation.CHECK_HEALTH,
}
WITHOUT_TOPIC: Final = (wire.ListTopics, wire.Metrics, wire.Ping)


class RustLogSession:
    protocol = "rustlog"

    def __init__(self, broker: Broker, outlet: Outlet, limits: SessionLimits) -> None:
        self._broker = broker
        self._outlet = outlet
        self._principal = broker.access.without_login(self.protocol)
        self._counters = broker.counters[self.protocol]
        self._dialects: tuple[Dialect, Dialect] = (JsonDialect(), BinaryDialect())
        self._last_dialect = wire.UNTOLD
        self._inbox = Inbox()
        self._frames: deque[wire.Frame] = deque()
        # The first of the frames, when it was read and has to wait.
        self._decoded: wire.Request | None = None
        self._broken: wire.RustLogProtocolError | None = None
        self._slots: deque[Slot] = deque()
        # What this read has to append; never left when it waits for the next one.
        self._run: ProduceRun | None = None
        self._working = False
        self._paused = False
        self._ended = False
        self._gone = False
        self._pending = PendingBytes(outlet, limits.pending_bytes)
        outlet.logged_in()  # RustLog has no login: who speaks it is in

    # --- the server's side -----------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self._gone or self._broken is not None:
            return
        self._inbox.add(data)
        self._work()

    def end_of_input(self) -> None:
        self._ended = True
        self._close_when_done()

    def writable(self) -> None:
        self._work()

    def closed(self) -> None:
        self._gone = True

    def drain(self) -> None:
        self._work()

    def busy(self) -> bool:
        return not self._gone and bool(self._slots)

    def held_bytes(self) -> int:
        """What was received and is not answered; the server has a limit for all together."""
        waiting = self._inbox.position if self._frames else 0
        return len(self._inbox) + waiting

    # --- frames ----------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._working:
            return
        self._working = True
        self._perform_all()
        while self._run is not None:
            self._append_run()
            self._perform_all()  # it may be answered by now, and who waited for it can go on
        self._working = False
        self._pause_if_behind()
        self._send()
        if self._broken is not None and not self._frames and not self._slots and not self._gone:
            self._give_up(self._broken)
        self._close_when_done()

    def _perform_all(self) -> None:
        """Whatever need not wait for an answer or for the peer."""
        while not self._gone and not self._outlet.congested:
            if self._frames:
                self._send()  # what is answered already keeps nobody waiting
                if not self._perform(self._frames[0]):
                    break
                self._frames.popleft()
            elif self._broken is not None or not self._split_more():
                break

    def _split_more(self) -> bool:
        """Finds the next complete frames. False when there are none."""
        inbox = self._inbox
        while inbox.buffer or inbox.load():
            frames, inbox.position, self._broken = wire.split_frames(
                inbox.buffer, inbox.position, len(inbox.buffer), self._last_dialect
            )
            if frames:
                self._last_dialect = frames[-1].dialect
            self._frames.extend(frames)
            if frames or self._broken is not None:
                return True
            if not inbox.load():
                break
        return False

    def _pause_if_behind(self) -> None:
        """Stops reading while requests wait: for the answers before them, or for the peer."""
        waiting = self._frames or self._inbox.buffer or self._outlet.congested
        behind = bool(waiting) and not self._gone
        if behind != self._paused:
            self._paused = behind
            (self._outlet.pause if behind else self._outlet.resume)("answer")

    def _give_up(self, error: wire.RustLogProtocolError) -> None:
        """The stream cannot be followed any more: say why and close."""
        self._counters.errors["framing"] += 1
        dialect = self._dialects[error.dialect]
        self._outlet.write(dialect.error(error.code or wire.FRAME_ERROR, error.what))
        self._gone = True
        self._outlet.close()

    def _close_when_done(self) -> None:
        if self._ended and not self._slots and not self._paused:
            self._outlet.close()

    def _send(self) -> None:
        """Sends the answers that are ready, in order."""
        ready = []
        while self._slots and self._slots[0].reply is not None:
            reply = self._slots.popleft().reply
            assert reply is not None
            ready.append(reply)
        if ready and not self._gone:
            self._counters.frames_out += len(ready)
            self._outlet.write(b"".join(ready))

    def _settle(self, slot: Slot, reply: bytes) -> None:
        slot.reply = reply
        self._go_on()

    def _go_on(self) -> None:
        """After an answer."""
        if self._gone or self._working:
            return
        self._send()
        self._work()

    # --- requests --------------------------------------------------------------------------------

    def _perform(self, frame: wire.Frame) -> bool:
        """False when the request has to wait for the answers before it."""
        dialect = self._dialects[frame.dialect]
        try:
            request = self._decoded or dialect.decode(self._inbox.buffer, frame.start, frame.end)
        except wire.RustLogProtocolError as error:
            self._counters.frames_in += 1
            self._counters.errors["decode"] += 1
            self._answer(dialect.error(error.code or wire.DECODE_ERROR, error.what))
            return True
        if self._slots and not isinstance(request, wire.Produce):
            self._decoded = request
            return False
        self._decoded = None
        self._counters.frames_in += 1
        slot = Slot()
        self._slots.append(slot)
        try:
            self._carry_out(dialect, request, slot, frame.end - frame.start)
        except PenstockError as refused:
            # Not `error` again: compiled, a name has one type in a function.
            self._counters.errors[type(request).__name__] += 1
            slot.reply = dialect.refusal(request, refused)
        return True

    def _answer(self, reply: bytes) -> None:
        slot = Slot()
        slot.reply = reply
        self._slots.append(slot)

    def _check_right(self, request: wire.Request) -> None:
        """Comes before every look at the topic: who may not use it does not learn whether it exists."""
        topic = "" if isinstance(request, WITHOUT_TOPIC) else request.topic
        self._broker.require(self._principal, OPERATIONS[type(request)], topic)

    def _carry_out(self, dialect: Dialect, request: wire.Request, slot: Slot, size: int) -> None:
        run = self._run
        if (
            run is not None
            and isinstance(request, wire.Produce)
            and run.takes(dialect, request, size)
        ):
            # The right and the topic were looked at for its first request, in this same turn.
            self._add_to_run(run, request, slot, size)
            return
        self._check_right(request)
        if isinstance(request, wire.Produce):
            self._produce(dialect, request, slot, size)
        elif isinstance(request, wire.Fetch):
            self._fetch(dialect, request, slot)
        elif isinstance(request, wire.OffsetCommit):
            self._commit(dialect, request, slot)
        elif isinstance(request, wire.OffsetFetch):
            place = request.group_id, request.topic, request.partition
            slot.reply = dialect.committed(self._committed(dialect, *place))
        elif isinstance(request, wire.CreateTopic):
            self._create_topic(dialect, request, slot)
        else:
            slot.reply = self._look_up(dialect, request)

    def _committed(self, dialect: Dialect, group: str, topic: str, partition: int) -> int | None:
        offset = self._broker.committed_offset(group, topic, partition)
        if offset is None and dialect.commits_anywhere:
            offset = self._broker.loose_offset(group, topic, partition)
        return offset

    def _look_up(self, dialect: Dialect, request: wire.Request) -> bytes:
        """Requests that only look."""
        engine = self._broker.engine
        if isinstance(request, wire.ListTopics):
            shows = self._broker.access.shows
            found = [info for info in engine.topics() if shows(self._principal, info.name)]
            return dialect.topics([(info.name, info.partitions) for info in found])
        if isinstance(request, wire.DescribeTopic):
            info = engine.topic(request.topic)
            if info is None:
                raise BrokerError(Code.UNKNOWN_TOPIC)
            ends = [engine.offsets(info.name, number)[1] for number in range(info.partitions)]
            return dialect.topic_description(info.name, ends)
        if isinstance(request, wire.DescribePartition):
            end = engine.offsets(request.topic, request.partition)[1]
            return dialect.partition_description(request.topic, request.partition, end)
        if isinstance(request, wire.Metrics):
            return dialect.metrics(self._broker.render_metrics())
        return dialect.pong()

    def _produce(self, dialect: Dialect, request: wire.Produce, slot: Slot, size: int) -> None:
        if self._broker.options.rustlog_auto_create:
            self._broker.ensure_topic(request.topic)
        next_offset = self._broker.engine.offsets(request.topic, request.partition)[1]
        if not request.records:
            slot.reply = dialect.produced(next_offset, 0)
            return
        self._append_run()
        run = ProduceRun(dialect, request.topic, request.partition, next_offset)
        self._add_to_run(run, request, slot, size)
        self._run = run

    def _add_to_run(self, run: ProduceRun, request: wire.Produce, slot: Slot, size: int) -> None:
        run.dialect.check_produce(request.records, run.next_offset)
        self._counters.messages_in += len(request.records)
        self._pending.add(size)
        run.add(request, slot, size)

    def _append_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.append(self._append, self._produced)

    def _append(self, topic: str, partition: int, values: list[bytes]) -> AppendToken:
        return self._broker.append(self._principal, topic, partition, values)

    def _produced(self, size: int, failed: int) -> None:
        self._pending.done(size)
        if failed:
            self._counters.errors["Produce"] += failed
        self._go_on()

    def _fetch(self, dialect: Dialect, request: wire.Fetch, slot: Slot) -> None:
        committed = None
        if request.group_id:
            committed = self._committed(dialect, request.group_id, request.topic, request.partition)
        early = dialect.fetch_without_read(request, committed)
        if early is not None:
            slot.reply = early
            return
        earliest, latest = self._broker.engine.offsets(request.topic, request.partition)
        offset = dialect.fetch_start(request, committed)
        if offset >= latest or (request.max_bytes == 0 and not dialect.at_least_one):
            slot.reply = dialect.nothing_to_fetch(offset, latest)
            return
        if offset < earliest and dialect.skips_to_requested:
            slot.reply = dialect.nothing_to_fetch(offset, latest)
            return
        limit = max(min(request.max_bytes, MAX_FETCH_BYTES), 1)
        read = self._broker.read(self._principal, request.topic, request.partition, offset, limit)
        read.on_done(lambda done: self._fetched(dialect, request, slot, done))

    def _fetched(
        self,
        dialect: Dialect,
        request: wire.Fetch,
        slot: Slot,
        read: ReadToken[ReadResult],
    ) -> None:
        if read.error is not None:
            self._counters.errors["Fetch"] += 1
            self._settle(slot, dialect.refusal(request, read.error))
            return
        result = read.result()
        reply, count = dialect.fetched(request, result.views, result.next_offset)
        self._counters.messages_out += count
        self._settle(slot, reply)

    def _commit(self, dialect: Dialect, request: wire.OffsetCommit, slot: Slot) -> None:
        _check_commit(request)
        info = self._broker.engine.topic(request.topic)
        exists = info is not None and request.partition < info.partitions
        if not exists and not dialect.commits_anywhere:
            slot.reply = dialect.commit_without_partition()
            return
        change = self._broker.commit_offset(
            self._principal, request.group_id, request.topic, request.partition, request.offset
        )
        if change is None:
            slot.reply = dialect.commit_without_partition()
            return

        def written(done: Pending[object]) -> None:
            if done.error is None:
                self._settle(slot, dialect.offset_committed())
            else:
                self._settle(slot, dialect.refusal(request, done.error))

        change.add_done_callback(written)

    def _create_topic(self, dialect: Dialect, request: wire.CreateTopic, slot: Slot) -> None:
        dialect.check_partition_count(request.partition_count)
        self._broker.create_topic(self._principal, request.topic, request.partition_count)
        change = self._broker.engine.topic_durable(request.topic)
        if change is None:
            slot.reply = dialect.topic_created()
            return

        def written(done: Pending[int]) -> None:
            if done.error is None:
                self._settle(slot, dialect.topic_created())
            else:
                self._settle(slot, dialect.refusal(request, done.error))

        change.add_done_callback(written)


def _check_commit(request: wire.OffsetCommit) -> None:
    """Refuses what the log could not keep."""
    for what, name in (("group", request.group_id), ("topic", request.topic)):
        size = len(name.encode())
        if size > MAX_NAME_BYTES:
            detail = f"{what} name of {size} bytes, the most is {MAX_NAME_BYTES}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
    if request.offset > MAX_OFFSET:
        detail = f"offset {request.offset} is above the largest, {MAX_OFFSET}"
        raise BrokerError(Code.INVALID_REQUEST, detail)
