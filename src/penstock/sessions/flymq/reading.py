"""CONSUME and FETCH: single records by offset, and batches of them with or without a filter.

A FETCH reads in steps and skips what is expired, removed or does not match, so that it is empty only at the
end of the log or at the bound of one scan.
"""

from typing import Final

from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.view import BatchView
from penstock.log.engine import Pending, ReadResult
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.sessions.flymq.filters import RecordFilter, check_filter
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.fetch import FetchReplyWriter
from penstock.wire.flymq.frames import SDK
from penstock.wire.flymq.opcodes import FETCH_BINARY

# Of a FETCH that names no number, or one below 1.
DEFAULT_MESSAGES: Final = 10
# A larger answer saves little, and the event loop waits while it is encoded: 3 ms for small records. One
# record is sent whatever its size is.
FETCH_REPLY_BYTES: Final = 1024 * 1024
# The first read is for the common FETCH of a thousand small records, the others for scans.
FIRST_STEP_BYTES: Final = 256 * 1024
STEP_BYTES: Final = 1024 * 1024
# What one FETCH looks at, at most: seconds of a thread with a filter that matches nothing. The answer then
# says where to go on.
MAX_STEPS: Final = 64


def consume(session: Conversation, call: Call, request: m.Consume) -> None:
    """The record of exactly this offset."""
    session.check_partition(request.topic, request.partition)
    earliest, latest = session.port.offsets(request.topic, request.partition)
    if not earliest <= request.offset < latest:
        raise _out_of_range(request.offset, earliest, latest)
    read = session.port.read(session.principal, request.topic, request.partition, request.offset, 1)

    def found(done: Pending[ReadResult]) -> None:
        if done.error is not None:
            session.refuse_later(call, done.error)
            return
        views = done.result().views
        if not views or views[0].first_offset() != request.offset:  # expired or compacted
            session.refuse_later(call, _out_of_range(request.offset, earliest, latest))
            return
        session.counters.messages_out += 1
        row = views[0].first_row
        record = m.Consumed(views[0].key(row) or b"", views[0].value(row))
        session.reply_later(call, record)

    read.on_done(session.guarded(found))


def _out_of_range(offset: int, earliest: int, latest: int) -> BrokerError:
    if earliest <= offset < latest:
        reason = "its record is expired or was removed"
    elif latest > earliest:
        reason = f"the records are {earliest} to {latest - 1}"
    else:
        reason = f"there are no records, the next one is {latest}"
    return BrokerError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} out of range: {reason}")


def fetch(session: Conversation, call: Call, request: m.Fetch) -> None:
    session.check_partition(request.topic, request.partition)
    if request.filter:
        check_filter(request.filter)
    earliest, latest = session.port.offsets(request.topic, request.partition)
    start = max(request.offset, earliest)
    scan = Scan(session, call, request, start, latest)
    if start >= latest:
        scan.finish()
    else:
        scan.go_on()


class Scan:
    """The reads of one FETCH, one after another, until its answer is full."""

    def __init__(
        self, session: Conversation, call: Call, request: m.Fetch, start: int, end: int
    ) -> None:
        """`end`: where the log ended when the FETCH came; what is written meanwhile is for the next one."""
        self._session = session
        self._call = call
        self._request = request
        self._principal = session.principal
        self._offset = start
        self._end = end
        self._steps = 0
        most = request.max_messages if request.max_messages > 0 else DEFAULT_MESSAGES
        number = call.opcode.number
        dialect = SDK if number == FETCH_BINARY else session.dialect
        self._most = most
        self._writer = FetchReplyWriter(number, dialect, most, FETCH_REPLY_BYTES)
        self._filter: RecordFilter | None = None

    def go_on(self) -> None:
        """Reads until it has to wait for the disk or a thread, or is done."""
        while True:
            request = self._request
            size = STEP_BYTES if self._steps else FIRST_STEP_BYTES
            self._steps += 1
            try:
                read = self._session.port.read(
                    self._principal, request.topic, request.partition, self._offset, size
                )
            except BrokerError as error:  # the key may be revoked by now
                self._fail(error)
                return
            if not read.done:
                read.on_done(self._session.guarded(self._read_late))
                return
            if not self._took(read):
                return

    def _read_late(self, read: Pending[ReadResult]) -> None:
        if self._took(read):
            self.go_on()

    def _took(self, read: Pending[ReadResult]) -> bool:
        """Whether to read on."""
        if read.error is not None:
            self._fail(read.error)
            return False
        result = read.result()
        if self._request.filter:
            self._match_aside(result)
            return False
        for view in result.views:
            taken = self._add(view, view.first_row, len(view))
            if taken < len(view):
                self._offset = view.offset_of(view.first_row + taken)
                return self._is_open(view)
        self._offset = result.next_offset
        return self._is_open(None)

    def _match_aside(self, result: ReadResult) -> None:
        session = self._session
        most = self._most - self._writer.count

        def match() -> list[list[int]]:
            if self._filter is None:
                self._filter = RecordFilter(self._request.filter or "")
            return [self._filter.rows(view, most) for view in result.views]

        def matched(done: Pending[list[list[int]]]) -> None:
            if done.error is not None:
                self._fail(done.error)
            elif self._add_matches(result, done.result()):
                self.go_on()

        session.port.aside(match).on_done(session.guarded(matched))

    def _add_matches(self, result: ReadResult, rows: list[list[int]]) -> bool:
        for view, matching in zip(result.views, rows, strict=True):
            for row in matching:
                taken = self._add(view, row, 1)
                self._offset = view.offset_of(row) + taken
                if not taken or self._writer.full:
                    return self._is_open(view if not taken else None)
        self._offset = result.next_offset
        return self._is_open(None)

    def _add(self, view: BatchView, first_row: int, count: int) -> int:
        return self._writer.add_rows(
            view.buffer,
            view.value_offsets_at,
            view.values_at,
            view.key_offsets_at,
            view.keys_at,
            view.offsets_at,
            view.base_offset,
            first_row,
            count,
        )

    def _is_open(self, stopped_in: BatchView | None) -> bool:
        """Answers when the answer is full, when the log ends or when this was enough for one FETCH."""
        if stopped_in is not None and not self._writer.count:
            size = len(stopped_in.value(stopped_in.row_at(self._offset)))
            detail = (
                f"the record at offset {self._offset} has {size} bytes, more than an answer can hold; "
                f"fetch from {self._offset + 1}"
            )
            self._fail(BrokerError(Code.RECORD_TOO_LARGE, detail))
            return False
        if not self._writer.full and self._offset < self._end and self._steps < MAX_STEPS:
            return True
        self.finish()
        self._session.go_on()
        return False

    def finish(self) -> None:
        self._session.counters.messages_out += self._writer.count
        self._call.slot.reply = self._writer.finish(self._offset)

    def _fail(self, error: BaseException) -> None:
        """What was found before it is an answer of its own: the next FETCH begins at the error."""
        if self._writer.count:
            self.finish()
            self._session.go_on()
        else:
            self._session.refuse_later(self._call, error)
