"""The reader of a Fujin stream: messages pushed or fetched, ACK and NACK.

FETCH commands are answered in their order. An ACK is answered when the cursor of its group is durable; it
overtakes a FETCH that still waits for a message. Empty records cannot be sent: they are counted and
settled. Does not write.
"""

from collections import deque
from typing import Final

from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.cursor_reader import Reader as CursorReader
from penstock.broker.delivery.lane import SECOND_US
from penstock.errors import PenstockError
from penstock.log.batch.view import BatchView
from penstock.log.engine import Pending
from penstock.sessions.fujin.conversation import Conversation, text_of
from penstock.sessions.fujin.options import Route
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.reading import (
    Fetch,
    MessageWriter,
    Settle,
    encode_settled,
    offset_of,
    partition_of,
)

# Of one step: large enough to be fast, small enough that a slow peer takes little memory.
STEP_BYTES: Final = 256 * 1024
STEP_MESSAGES: Final = 1_024
# Of one FETCH, whatever it asks for: the event loop waits while the reply is encoded.
FETCH_BYTES: Final = 1024 * 1024
FETCH_MESSAGES: Final = 10_000
# FETCH commands that wait for messages; a peer has no use for more.
MAX_FETCHES: Final = 1_000

AUTO_COMMIT_IS_ON: Final = "auto commit is on, there is nothing to settle"
TOO_MANY_FETCHES: Final = "too many FETCH commands wait already"


class Reader:
    def __init__(
        self, session: Conversation, route: Route, *, push: bool, auto_commit: bool
    ) -> None:
        """Raises what refuses it."""
        self._session = session
        self._push = push
        self._auto_commit = auto_commit
        self._fetches: deque[Fetch] = deque()
        # Tells the time limit of one FETCH from that of the next.
        self._fetch_number = 0
        self._taking = False
        self._pumping = False
        self._started = False
        self._left = False
        # ACK commands whose commit is not durable yet.
        self._settling = 0
        port = session.port
        self._cursor: CursorReader = port.cursors.join(
            session.principal,
            route.topic,
            session.options.terms(route),
            auto_commit,
            self._woken,
            session.end,
            session.protocol,
        )
        if route.group is not None:
            port.join_group(session, route.group, route.topic)

    @property
    def has_open_work(self) -> bool:
        return self._settling > 0

    def start(self) -> None:
        """Messages begin to go out, a while after the reply to CONNECT READER."""
        delay_s = self._session.options.first_message_delay_us / SECOND_US
        self._session.port.later(delay_s, self._start)

    def _start(self) -> None:
        self._started = True
        self.pump()

    def _woken(self) -> None:
        self.pump()

    def leave(self) -> bytes:
        """Nothing is delivered after this. Gives the last answers: of FETCH commands that still wait."""
        if self._left:
            return b""
        self._left = True
        self._cursor.leave()
        last = [MessageWriter(push=False, with_ids=False).fetched(one.cid) for one in self._fetches]
        self._fetches.clear()
        return b"".join(last)

    # --- messages ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what there is, as long as the peer takes it: pushed, or for the FETCH that is next."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._may_send() and self._take() and not self._cursor.is_shared:
                continue
        finally:
            self._pumping = False

    def _may_send(self) -> bool:
        if not self._started or self._taking or self._left:
            return False
        stream = self._session.stream
        wanted = self._push or bool(self._fetches)
        return wanted and not stream.congested and not stream.give_way()

    def _take(self) -> bool:
        most, size = STEP_MESSAGES, STEP_BYTES
        if not self._push:
            most, size = min(self._fetches[0].count, FETCH_MESSAGES), FETCH_BYTES
        self._taking = True
        try:
            found = self._cursor.take(most, size, self._session.guarded(self._took))
        except PenstockError as error:
            self._taking = False
            self._refused(error)
            return False
        if not found:
            self._taking = False
        return found

    def _refused(self, error: PenstockError) -> None:
        """The right to read is gone."""
        if self._fetches:
            cid = self._fetches.popleft().cid
            self._session.write_now(wire.encode_result(wire.FETCH, cid, text_of(error)))
        self._session.end()

    def _took(self, delivery: Delivery) -> None:
        self._taking = False
        session = self._session
        if self._left or session.is_over:
            return
        writer = MessageWriter(self._push, not self._auto_commit)
        for run, views in delivery:
            for view in views:
                self._add(writer, run.partition, view)
        session.counters.messages_out += writer.count
        if writer.count:
            session.counters.frames_out += writer.count if self._push else 1
            if self._push:
                session.write_now(writer.take())
            else:
                session.write_now(writer.fetched(self._fetches.popleft().cid))
                self._fetch_number += 1
                self._plan_fetch()
        if self._cursor.is_shared:
            # The others have their turn first.
            session.port.later(0.0, self.pump)
        else:
            self.pump()

    def _add(self, writer: MessageWriter, partition: int, view: BatchView) -> None:
        skipped = writer.skipped
        first_offset = view.first_offset()
        writer.add_rows(
            view.buffer,
            view.value_offsets_at,
            view.values_at,
            view.first_row,
            len(view),
            partition,
            first_offset,
        )
        if writer.skipped > skipped:
            self._session.counters.refused["empty record"] += writer.skipped - skipped
            if not self._auto_commit:
                for row in range(view.first_row, view.last_row):
                    if not view.value(row):
                        offset = view.offset_of(row)
                        self._cursor.acknowledge(partition, offset, offset + 1)

    # --- FETCH ------------------------------------------------------------------------------------

    def fetch(self, fetch: Fetch) -> None:
        session = self._session
        session.counters.frames_in += 1
        failure = None
        if self._push:
            failure = wire.INVALID_READER_TYPE
        elif fetch.count == 0:
            failure = wire.FETCH_MISSING
        elif len(self._fetches) >= MAX_FETCHES:
            failure = TOO_MANY_FETCHES
        if failure is not None:
            session.answer(wire.encode_result(wire.FETCH, fetch.cid, failure))
            return
        self._started = True
        self._fetches.append(fetch)
        if len(self._fetches) == 1:
            self._plan_fetch()
            self.pump()

    def _plan_fetch(self) -> None:
        """The first FETCH waits from now on, no longer than it may. While it is not known which partitions
        are read here, its time does not begin."""
        wait_us = self._session.options.fetch_max_wait_us
        ready = self._cursor.ready
        if not self._fetches or wait_us is None:
            return
        if ready is not None:
            ready.on_done(self._session.guarded(lambda _: self._plan_fetch()))
        else:
            number = self._fetch_number
            self._session.port.later(wait_us / SECOND_US, lambda: self._fetch_is_over(number))

    def _fetch_is_over(self, number: int) -> None:
        if number != self._fetch_number or not self._fetches or self._left:
            return
        if self._taking:  # a message is on its way, or others are woken
            self._session.port.later(0.0, lambda: self._fetch_is_over(number))
            return
        fetch = self._fetches.popleft()
        self._fetch_number += 1
        self._session.counters.frames_out += 1
        self._session.write_now(MessageWriter(push=False, with_ids=False).fetched(fetch.cid))
        self._plan_fetch()
        self.pump()

    # --- ACK and NACK -----------------------------------------------------------------------------

    @property
    def may_settle(self) -> bool:
        return True

    def settle(self, settle: Settle) -> None:
        session = self._session
        session.counters.frames_in += 1
        if self._auto_commit:
            session.answer(wire.encode_result(settle.opcode, settle.cid, AUTO_COMMIT_IS_ON))
            return
        try:
            failures = self._settle_all(settle)
            commits = self._cursor.commit() if settle.opcode == wire.ACK else []
        except PenstockError as error:
            session.answer(wire.encode_result(settle.opcode, settle.cid, text_of(error)))
            return
        if not commits:
            self._settled(settle, failures, None)
        else:
            self._follow(settle, failures, commits)
        self.pump()  # there may be room for more in flight

    def _settle_all(self, settle: Settle) -> dict[int, str]:
        """By ranges: a client that settles in order costs one step. Gives the ids that failed."""
        failures: dict[int, str] = {}
        places: dict[tuple[int, int], list[int]] = {}
        for number, id in enumerate(settle.ids):
            partition = partition_of(id)
            offset = offset_of(id) if partition >= 0 else -1
            if offset < 0:
                failures[number] = wire.MSG_NOT_FOUND
            else:
                places.setdefault((partition, offset), []).append(number)
        act = self._cursor.acknowledge if settle.opcode == wire.ACK else self._cursor.refuse
        for partition, first, end in _ranges(sorted(places)):
            for lost_first, lost_end in act(partition, first, end):
                for offset in range(lost_first, lost_end):
                    for number in places[partition, offset]:
                        failures[number] = wire.MSG_NOT_FOUND
        return failures

    def _follow(
        self, settle: Settle, failures: dict[int, str], commits: list[Pending[object]]
    ) -> None:
        self._settling += 1
        left = len(commits)

        def committed(_: Pending[object]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._settling -= 1
                errors = [one.error for one in commits if one.error is not None]
                self._settled(settle, failures, errors[0] if errors else None)
                self._session.go_on()

        for commit in commits:
            commit.on_done(self._session.guarded(committed))

    def _settled(
        self, settle: Settle, failures: dict[int, str], error: BaseException | None
    ) -> None:
        session = self._session
        if session.is_over:
            return
        session.counters.frames_out += 1
        if error is not None:
            reply = wire.encode_result(settle.opcode, settle.cid, text_of(error))
        else:
            literal = session.options.literal_outcomes
            reply = encode_settled(settle.opcode, settle.cid, settle.ids, failures, literal)
        session.write_now(reply)


def _ranges(places: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Partition, first and end of consecutive offsets, from sorted places."""
    found: list[tuple[int, int, int]] = []
    for partition, offset in places:
        if found and found[-1][0] == partition and found[-1][2] == offset:
            found[-1] = (partition, found[-1][1], offset + 1)
        else:
            found.append((partition, offset, offset + 1))
    return found
