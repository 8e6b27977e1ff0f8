"""Readers that share a topic message by message: the cursor of a group, or of one reader alone.

    fresh --take--> in flight --acknowledge--> settled
                    in flight --refuse, its time is over, its reader is gone--> waits --take--> in flight
                    in flight --delivered too often--> a dead letter, and settled

A cursor holds no messages and reads nothing ahead: a reader that takes some moves it on, so a slow group
falls behind in the log and costs nothing there. What is settled without a gap is the committed offset of
the group, the same that other protocols commit and see. What is settled above it is known while the server
runs.

A group has a lane for each partition that the engine lets this server hand out (penstock.log.shares). One
that goes to another server is closed: what was in flight of it is forgotten here and delivered there, from
the committed offset on.

Knows no wire format. Lives on the event loop.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delivery.collection import Delivery, dense_parts
from penstock.broker.delivery.cursor_reader import Reader, taken, unknown
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.delivery.feed import readable
from penstock.broker.delivery.inflight import Run, RunTable
from penstock.broker.delivery.lane import SECOND_US, CursorTerms, Lane
from penstock.broker.errors import BrokerError, Code
from penstock.errors import PenstockError
from penstock.log.batch.view import BatchView
from penstock.log.engine import Pending, ReadResult, Share
from penstock.log.errors import LogError
from penstock.log.shares import WHOLE_TOPIC

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# After a read error of the disk: it is not worth asking again sooner.
RETRY_READ_US: Final = SECOND_US
# How often a group whose readers commit by themselves notes where it is: a crash delivers so much again.
AUTO_COMMIT_S: Final = 0.2


class SharedCursor:
    """One topic, as a group reads it."""

    def __init__(self, broker: "Broker", topic: str, terms: CursorTerms, protocol: str) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.protocol = protocol
        self.terms = terms
        self.readers: dict[Reader, None] = {}
        self.redelivered = 0
        self._broker = broker
        self._share: Share = WHOLE_TOPIC
        # Nothing is handed out: some lanes may go in a moment.
        self._paused = False
        # Where partitions begin that have nothing committed: their ends when the first reader came.
        self._begins: dict[int, int] = {}
        self._opened = False
        self._lanes: dict[int, Lane] = {}
        self._in_turn: list[Lane] = []
        self._turn = 0
        # Readers that found nothing.
        self._idle: dict[Reader, None] = {}
        # When messages may be delivered again: time, number, partition, first and end offset.
        self._due: list[tuple[int, int, int, int, int]] = []
        # Until when messages may be settled: time, number, reader, partition, first and end offset.
        self._deadlines: list[tuple[int, int, Reader, int, int, int]] = []
        self._numbers = itertools.count()
        self._exhausted: list[Run] = []
        self._planned_us: int | None = None
        self._commit_planned = False
        self._forgotten = False

    @property
    def ready(self) -> Pending[object] | None:
        return self._share.ready

    @property
    def partitions(self) -> list[int]:
        """Those that are handed out here."""
        return [lane.partition for lane in self._in_turn]

    # --- partitions ------------------------------------------------------------------------------

    def open(self, principal: Principal) -> None:
        """Raises what refuses it."""
        engine, group = self._broker.engine, self.terms.group
        if group is not None:
            if engine.shared:  # before anybody else has to share with it
                self._broker.require(principal, Operation.COMMIT_OFFSETS, self.topic)
            self._share = engine.share(group, self.topic, self._held_changed, self._giving_away)
        try:
            self.follow(principal)
        except BaseException:
            self._share.leave()
            raise

    def follow(self, principal: Principal) -> None:
        """Begins with the partitions that are new: all of them at first."""
        info = self._broker.engine.topic(self.topic)
        if info is None:
            return
        first = not self._begins
        for partition in range(info.partitions):
            if partition not in self._begins:
                self._begins[partition] = self._begin(partition) if first else 0
        opened = self._open_lanes(info.partitions)
        if first and opened and self.terms.group is not None:
            # From now on nothing that is published gets past the group, whether it is read now or later.
            self.commit(principal, at_once=True)

    def _begin(self, partition: int) -> int:
        """Where a group begins that has nothing committed."""
        earliest, latest = self._broker.engine.offsets(self.topic, partition)
        return earliest if self.terms.start == "earliest" else latest

    def _open_lanes(self, partitions: int) -> bool:
        """Of all that may be handed out here; whether there are new ones."""
        new = [one for one in self._share.held(partitions) if one not in self._lanes]
        for partition in new:
            committed = self._committed(partition)
            self._lanes[partition] = Lane(partition, self._start(partition, committed), committed)
        if new:
            self._opened = True
            self._in_turn = [lane for _, lane in sorted(self._lanes.items())]
        return bool(new)

    def _committed(self, partition: int) -> int | None:
        if self.terms.group is None:
            return None
        if not self._share.is_whole:
            return self._share.committed(partition)
        return self._broker.engine.committed_offset(self.terms.group, self.topic, partition)

    def _start(self, partition: int, committed: int | None) -> int:
        earliest = self._broker.engine.offsets(self.topic, partition)[0]
        # Where others read for the group, or did, it is not this reader who begins.
        anew = self.terms.start == "latest" and not self._opened and not self._share.had_others
        if committed is not None and not anew:
            return max(committed, earliest)
        return max(self._begins.get(partition, 0), earliest)

    def _giving_away(self) -> list[Pending[object]]:
        self._paused = True
        return self.commit(ITSELF)

    def _held_changed(self) -> None:
        """Lanes that stay go on as they were, with what is in flight, unless somebody else has read there
        meanwhile."""
        info = self._broker.engine.topic(self.topic)
        if info is None or self._forgotten:
            return
        self._paused = False
        held = set(self._share.held(info.partitions))
        for lane in list(self._lanes.values()):
            stays = lane.partition in held
            if not stays or not lane.agrees(self._share.committed(lane.partition)):
                self._close(lane)
        if self._open_lanes(info.partitions):
            self.commit(ITSELF)
        # Not at once: it may be called while a reader is in the middle of something.
        self._broker.later(0.0, self._wake_idle)

    def _close(self, lane: Lane) -> None:
        lane.closed = True
        partition = lane.partition
        del self._lanes[partition]
        self._in_turn.remove(lane)
        if lane.wake is not None:
            self._broker.engine.unwatch(self.topic, partition, lane.wake)
            lane.wake = None
        for reader in self.readers:
            reader.in_flight.pop(partition, None)
        self._due = [entry for entry in self._due if entry[2] != partition]
        heapq.heapify(self._due)
        self._exhausted = [run for run in self._exhausted if run.partition != partition]

    def _end(self, lane: Lane) -> int:
        return self._broker.engine.offsets(self.topic, lane.partition)[1]

    # --- taking ----------------------------------------------------------------------------------

    def take(
        self, reader: Reader, most: int, max_bytes: int, done: Callable[[Delivery], None]
    ) -> bool:
        self._broker.require(reader.principal, Operation.POLL, self.topic)
        if self._forgotten or reader.gone:
            return False
        most = min(most, self.terms.max_in_flight - reader.messages)
        now_us = self._broker.engine.run_us()
        self._expire(now_us)
        if most > 0 and not self._paused:
            runs = self._take_due(now_us, most, max_bytes)
            if runs:
                self._hand_out(reader, runs, now_us)
                self._broker.collect(self.topic, runs, done)
                return True
            lane = self._fresh_lane(now_us)
            if lane is not None:
                self._read(reader, lane, self._some_of(lane, most), max_bytes, done)
                return True
            self._watch()
        # With as much in flight as it may have, it is woken when some of that is taken back.
        self._idle[reader] = None
        return False

    def _some_of(self, lane: Lane, most: int) -> int:
        """Of several readers each gets some of what is there."""
        there = self._end(lane) - lane.next_offset
        return min(most, max(1, -(-there // max(len(self.readers), 1))))

    def _fresh_lane(self, now_us: int) -> Lane | None:
        """The next partition in turn that has something new."""
        lanes = self._in_turn
        for number in range(len(lanes)):
            at = (self._turn + number) % len(lanes)
            lane = lanes[at]
            if (
                not lane.reading
                and lane.blocked_until_us <= now_us
                and lane.next_offset < self._end(lane)
            ):
                self._turn = at + 1
                return lane
        return None

    def _read(
        self,
        reader: Reader,
        lane: Lane,
        most: int,
        max_bytes: int,
        done: Callable[[Delivery], None],
    ) -> None:
        lane.reading = True
        try:
            read = self._broker.engine.read(self.topic, lane.partition, lane.next_offset, max_bytes)
        except LogError:  # the topic was deleted
            lane.reading = False
            done([])
            return
        read.on_done(lambda finished: self._took(reader, lane, most, finished, done))

    def _took(
        self,
        reader: Reader,
        lane: Lane,
        most: int,
        read: Pending[ReadResult],
        done: Callable[[Delivery], None],
    ) -> None:
        lane.reading = False
        result = readable(read, lane.next_offset)
        if self._forgotten:
            return
        if result is None:
            lane.blocked_until_us = self._broker.engine.run_us() + RETRY_READ_US
            self._plan(lane.blocked_until_us)
        given_up = reader.gone or lane.closed or self._paused
        delivery = [] if result is None or given_up else self._cut(lane, result.views, most, result)
        self._hand_out(reader, [run for run, _ in delivery], self._broker.engine.run_us())
        # Before `done`, which may take again at once: the others had to wait for this read.
        self._wake_idle()
        if not reader.gone:
            done(delivery)

    def _cut(self, lane: Lane, views: list[BatchView], most: int, result: ReadResult) -> Delivery:
        """The first `most` records; moves the cursor behind them, and settles what no record has."""
        delivery: Delivery = []
        now_us = self._broker.engine.run_us()
        for view in views:
            if most <= 0:
                break
            for part in dense_parts(view, min(view.last_row, view.first_row + most)):
                first, count = part.first_offset(), len(part)
                lane.settled.add(lane.next_offset, first)
                size = part.payload_bytes(part.first_row, part.last_row)
                run = Run(first, count, lane.partition, first, size, now_us, False)
                delivery.append((run, [part]))
                lane.next_offset = first + count
                most -= count
        if most > 0:
            lane.settled.add(lane.next_offset, result.next_offset)
            lane.next_offset = max(lane.next_offset, result.next_offset)
        return delivery

    def _hand_out(self, reader: Reader, runs: list[Run], now_us: int) -> None:
        for run in runs:
            if reader.auto_commit:
                self._settle(run)
                continue
            run.deliveries += 1
            self.redelivered += run.count if run.deliveries > 1 else 0
            reader.in_flight.setdefault(run.partition, RunTable()).add(run)
            if self.terms.ack_time_us is not None:
                run.deadline_us = now_us + self.terms.ack_time_us
                entry = (run.partition, run.first_tag, run.end_tag)
                heapq.heappush(
                    self._deadlines, (run.deadline_us, next(self._numbers), reader, *entry)
                )
                self._plan(run.deadline_us)
        if reader.auto_commit and runs:
            self._commit_soon(reader.principal)

    def _take_due(self, now_us: int, most: int, max_bytes: int) -> list[Run]:
        """Messages that wait to be delivered again and may be by now."""
        runs: list[Run] = []
        while self._due and self._due[0][0] <= now_us and most > 0 and max_bytes > 0:
            _, _, partition, first, end = self._due[0]
            waiting = self._lanes[partition].waiting  # those of a closed lane are removed with it
            found = waiting.find(first, end)
            if found is None:  # settled or taken since
                heapq.heappop(self._due)
                continue
            first = max(first, found.first_tag)
            each = max(found.size_bytes // found.count, 1)
            fitting = max(max_bytes // each, 0 if runs else 1)
            for run in waiting.take(first, min(end, found.end_tag, first + min(most, fitting))):
                runs.append(run)
                most -= run.count
                max_bytes -= run.size_bytes
            if not fitting:
                break
        return runs

    # --- settling --------------------------------------------------------------------------------

    def acknowledge(
        self, reader: Reader, partition: int, first: int, end: int
    ) -> list[tuple[int, int]]:
        self._broker.require(reader.principal, Operation.ACKNOWLEDGE, self.topic)
        lane = self._lanes.get(partition)
        if lane is None:
            return [(first, end)]
        known = taken(reader, partition, first, end)
        if sum(run.count for run in known) < end - first:
            # Late: it was given to another reader meanwhile, or waits to be delivered again.
            for other in self.readers:
                known += taken(other, partition, first, end)
            known += lane.waiting.take(first, end)
        for run in known:
            self._settle(run)
        return unknown(known, first, end)

    def refuse(self, reader: Reader, partition: int, first: int, end: int) -> list[tuple[int, int]]:
        self._broker.require(reader.principal, Operation.ACKNOWLEDGE, self.topic)
        known = taken(reader, partition, first, end)
        now_us = self._broker.engine.run_us()
        for run in known:
            self._failed(run, now_us)
        self._bury()
        return unknown(known, first, end)

    def _settle(self, run: Run) -> None:
        lane = self._lanes.get(run.partition)
        if lane is not None:  # it was closed since
            lane.settled.add(run.first_offset, run.first_offset + run.count)

    def _failed(self, run: Run, now_us: int) -> None:
        """A delivery that came to nothing."""
        if run.deliveries >= self.terms.max_deliveries:
            self._exhausted.append(run)
        else:
            delay_us = self.terms.retry_backoff_us * (1 << max(run.deliveries - 1, 0))
            self._wait(run, now_us + delay_us)

    def _wait(self, run: Run, due_us: int) -> None:
        lane = self._lanes.get(run.partition)
        if lane is None or run.first_offset >= lane.next_offset:
            return  # it was closed since: who has the partition now delivers it
        lane.waiting.add(run)
        entry = (due_us, next(self._numbers), run.partition, run.first_tag, run.end_tag)
        heapq.heappush(self._due, entry)
        self._plan(due_us)

    def leave(self, reader: Reader) -> None:
        """What it has in flight goes to the others at once. That it is gone is no fault of the messages."""
        reader.gone = True
        self.readers.pop(reader, None)
        self._idle.pop(reader, None)
        if reader.auto_commit:
            self.commit(reader.principal)
        now_us = self._broker.engine.run_us()
        for table in reader.in_flight.values():
            for run in table.take(0, 1 << 62):
                run.deliveries -= 1
                self._wait(run, now_us)
        reader.in_flight = {}
        if not self.readers and not self._share.is_whole:
            self.commit(ITSELF)  # the last chance: then its partitions are for others
        self._broker.cursors.left(self)

    @property
    def disposable(self) -> bool:
        """Whether a new cursor would begin with the same state. Where other servers wait for the partitions
        it is enough that nothing is being committed: nobody reads them here."""
        if self.readers:
            return False
        if self.terms.group is None:
            return True
        kept = self._share.is_whole
        return not any(
            lane.commit is not None or (kept and (lane.settled.has_gaps or lane.waiting.messages))
            for lane in self._lanes.values()
        )

    # --- the committed offset --------------------------------------------------------------------

    def commit(self, principal: Principal, *, at_once: bool = False) -> list[Pending[object]]:
        """`at_once`: raises what refuses it, and commits also what is committed already."""
        if self.terms.group is None or self._broker.engine.topic(self.topic) is None:
            return []  # a topic that is deleted, perhaps at another server, has no offsets
        pending: list[Pending[object]] = []
        for lane in self._lanes.values():
            known = self._broker.engine.committed_offset(
                self.terms.group, self.topic, lane.partition
            )
            if lane.commit is not None:
                lane.next_commit = lane.next_commit or Pending()
                pending.append(lane.next_commit)
            elif known is None or lane.settled.floor > known:
                pending.append(self._commit(lane, principal, None, at_once))
        return pending

    def _commit_soon(self, principal: Principal) -> None:
        """Without an acknowledgement nobody waits for it: one commit for the deliveries of a while."""
        if self._commit_planned or self.terms.group is None:
            return
        self._commit_planned = True

        def commit() -> None:
            self._commit_planned = False
            if not self._forgotten:
                self.commit(principal)

        self._broker.later(AUTO_COMMIT_S, commit)

    def _commit(
        self,
        lane: Lane,
        principal: Principal,
        promised: Pending[object] | None,
        at_once: bool = False,
    ) -> Pending[object]:
        result: Pending[object] = promised or Pending()
        assert self.terms.group is not None
        try:
            change = self._broker.commit_offset(
                principal, self.terms.group, self.topic, lane.partition, lane.settled.floor
            )
        except PenstockError as error:
            if at_once:
                raise
            result.settle(None, error)
            return result
        if change is None:
            result.settle(None, BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {self.topic!r}"))
            return result
        lane.commit = result
        lane.committing = lane.settled.floor

        def committed(done: Pending[object]) -> None:
            if done.error is None:
                lane.committed = lane.committing
            lane.commit = lane.committing = None
            following, lane.next_commit = lane.next_commit, None
            over = self._forgotten or lane.closed
            if following is not None and not over:
                self._commit(lane, principal, following)
            result.settle(None, done.error)
            if following is not None and over:
                following.settle(None, done.error)
            self._broker.cursors.left(self)

        change.on_done(committed)
        return result

    # --- dead letters (penstock.broker.delivery.dead_letters) -------------------------------------

    def take_exhausted(self) -> list[Run]:
        exhausted, self._exhausted = self._exhausted, []
        return exhausted

    def put_back(self, run: Run) -> None:
        if not self._forgotten:
            self._wait(run, self._broker.engine.run_us() + self.terms.retry_backoff_us)

    def buried(self, run: Run) -> None:
        if not self._forgotten:
            self._settle(run)
            self.commit(ITSELF)

    def _bury(self) -> None:
        if self._exhausted:
            self._broker.dead_letters.bury(self)

    # --- waking and time -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Asks the log to say when there is something new, in each partition that has nothing."""
        for lane in self._lanes.values():
            nothing = lane.next_offset >= self._end(lane)
            if nothing and lane.wake is None and not lane.reading:
                lane.wake = self._waker(lane)
                try:
                    self._broker.engine.watch(
                        self.topic, lane.partition, lane.next_offset, lane.wake
                    )
                except LogError:  # deleted: the broker tells
                    lane.wake = None

    def _waker(self, lane: Lane) -> Callable[[], None]:
        def wake() -> None:
            lane.wake = None
            # Not at once: `watch` may call back while a reader is in the middle of `take`.
            self._broker.later(0.0, self._wake_idle)

        return wake

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, {}
        for reader in idle:
            if not reader.gone:
                reader.wake()

    def _plan(self, due_us: int) -> None:
        if self._planned_us is None or due_us < self._planned_us:
            self._planned_us = due_us
            delay_us = max(due_us - self._broker.engine.run_us(), 0)
            self._broker.later(delay_us / SECOND_US, lambda: self._look(due_us))

    def _look(self, planned_us: int) -> None:
        if self._planned_us != planned_us or self._forgotten:
            return  # an earlier look has planned anew
        self._planned_us = None
        now_us = self._broker.engine.run_us()
        self._expire(now_us)
        times = [entry[0] for entry in self._due[:1]] + [entry[0] for entry in self._deadlines[:1]]
        later = [time for time in times if time > now_us]
        if later:
            self._plan(min(later))
        self._wake_idle()

    def _expire(self, now_us: int) -> None:
        """Takes back what was not settled in time."""
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, _, reader, partition, first, end = heapq.heappop(self._deadlines)
            for run in taken(reader, partition, first, end):
                if run.deadline_us <= now_us:
                    self._failed(run, now_us)
                else:  # delivered again meanwhile, with a later deadline
                    reader.in_flight[partition].add(run)
        self._bury()

    def forget(self) -> None:
        """The topic was deleted, or nobody needs it any more."""
        self._forgotten = True
        self._share.leave()
        for lane in self._lanes.values():
            if lane.wake is not None:
                self._broker.engine.unwatch(self.topic, lane.partition, lane.wake)
        for reader in list(self.readers):
            reader.gone = True
            reader.ended()
        self.readers.clear()
