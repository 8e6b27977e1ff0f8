"""The thread that writes changes: all that wait go into one transaction of Kafka.

    take the place          unless it is held; then read to the end, so that the records here are current
    draft                   check what the changes expect, give versions
    write                   one transaction, with a mark that names it
    wait                    until the follower has read it back, and has settled the changes

A conflict is an outcome too, and waits for the commit: only the commit proves that it was seen in current
records. Whatever goes wrong leaves the outcome open; the place is taken again, which ends the transaction
for good, and after reading to the end it has happened, or it has not and is drafted anew. It is never
written twice. Two gateways that change things at once shut each other out; each pauses for a random time.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from penstock.kafka.metadata.changes import Change, Later, Outcome, Transaction
from penstock.kafka.metadata.draft import Draft
from penstock.kafka.metadata.layout import Mark
from penstock.kafka.metadata.place import Place, is_shut_out

# A change is drafted in about 10 us and produced in 5: a full group delays its first change by the time of
# a few transactions.
MAX_CHANGES_PER_COMMIT: Final = 4_096
# Of the values in one transaction, so that it fits well into the buffers of librdkafka. One more is added
# to what is below it.
MAX_BYTES_PER_COMMIT: Final = 32 * 1024 * 1024

# After the place was lost the other one has this time, about, for a transaction. Doubled with every loss
# in a row, up to the second number: many contenders need more room.
SHUT_OUT_PAUSE_S: Final = 0.02
MOST_PAUSE_S: Final = 0.5
# After other troubles; librdkafka has pauses of its own.
TROUBLE_PAUSE_S: Final = 0.1
# A question that has no answer after this time is asked again.
ASK_S: Final = 1.0

logger = logging.getLogger(__name__)


class Records(Protocol):
    """What the writer needs of the store; may be called from its thread."""

    def draft(self) -> Draft:
        """An empty one on top of the records as they are."""
        ...

    def end_offset(self, wait_s: float) -> int:
        """The end of what is committed. Raises KafkaException."""
        ...

    def wait_applied(self, offset: int, wait_s: float) -> bool:
        """False when the follower has not come there in time."""
        ...

    def expect(self, transaction: Transaction) -> None:
        """The follower will see it, if it happens, and then settle its changes."""
        ...

    def forget(self, transaction: Transaction) -> None: ...

    def taken(self, changes: Sequence[Change]) -> None:
        """They are not in the queue any more."""
        ...

    def fail(self, changes: Sequence[Change], reason: str) -> None:
        """Settles those that are not settled yet."""
        ...

    def when_applied(self, offset: int, waiting: Sequence[Later[None]]) -> None:
        """Settles them when the follower comes there."""
        ...

    def fail_refresh(self, waiting: Sequence[Later[None]], reason: str) -> None: ...


class Writer:
    """`queue` and `refreshes` are guarded by `lock`, whose owner also notifies it."""

    def __init__(
        self,
        place: Place,
        records: Records,
        random_s: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.queue: deque[Change] = deque()
        self.refreshes: list[Later[None]] = []
        self.lock = threading.Condition()
        self.closing = False
        # What keeps changes from being written now, in one line; empty when nothing does.
        self.trouble = ""
        self._place = place
        self._records = records
        self._random_s = random_s
        self._losses = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what is queued, or fails it when its time is over."""
        with self.lock:
            self.closing = True
            self.lock.notify()
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._serve_refreshes()
                if group := self._next_group():
                    self._commit_safely(group)
        finally:
            self._place.leave()

    def _wait_for_work(self) -> bool:
        """False when it is closed and all is done."""
        with self.lock:
            self.lock.wait_for(lambda: self.queue or self.refreshes or self.closing)
            return bool(self.queue or self.refreshes)

    def _next_group(self) -> list[Change]:
        group: list[Change] = []
        size_bytes = 0
        with self.lock:
            while self.queue and len(group) < MAX_CHANGES_PER_COMMIT:
                if size_bytes >= MAX_BYTES_PER_COMMIT:
                    break
                change = self.queue.popleft()
                size_bytes += change.size_bytes
                group.append(change)
            self._records.taken(group)
        return group

    def _commit_safely(self, group: list[Change]) -> None:
        """A defect fails one group; nobody waits for ever."""
        try:
            self._commit(group)
        except Exception as error:
            logger.exception("writing metadata failed")
            self._place.leave()
            self._records.fail(group, f"{error}; they may be stored or not")

    def _commit(self, group: list[Change]) -> None:
        """All of them are settled on return."""
        open_one: Transaction | None = None
        while group := self._in_time(group, open_one):
            ends_s = min(change.deadline_s for change in group)
            try:
                if not self._place.held:
                    self._take_place(ends_s)
                    # Whatever was open before is decided now, and read if it happened.
                    if open_one is not None and open_one.applied.is_set():
                        break
                    self._close_case(open_one)
                    open_one = None
                draft, open_one = self._drafted(group)
                self._place.write(draft.messages, Mark(draft.last_version, open_one.id), ends_s)
                if not open_one.applied.wait(max(ends_s - time.monotonic(), 0)):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not read back yet"))
                break
            except KafkaException as error:
                self._lose_place(error.args[0])
        else:
            self._close_case(open_one)
            return
        self._losses = 0
        self.trouble = ""

    def _close_case(self, transaction: Transaction | None) -> None:
        if transaction is not None:
            self._records.forget(transaction)

    def _in_time(self, group: list[Change], open_one: Transaction | None) -> list[Change]:
        """Those that may be tried once more; fails the others."""
        now_s = time.monotonic()
        late = [change for change in group if change.deadline_s <= now_s]
        if late:
            known = "they are not stored" if open_one is None else "they may be stored or not"
            self._records.fail(late, f"{self.trouble or 'no time was left'}; {known}")
        return [change for change in group if not change.done]

    def _take_place(self, ends_s: float) -> None:
        """And reads to the end."""
        self._place.take(ends_s)
        end = self._records.end_offset(max(ends_s - time.monotonic(), 0.05))
        if not self._records.wait_applied(end, max(ends_s - time.monotonic(), 0)):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the topic cannot be read"))

    def _drafted(self, group: list[Change]) -> tuple[Draft, Transaction]:
        draft = self._records.draft()
        outcomes = []
        for change in group:
            try:
                outcomes.append(Outcome(change, draft.add(change.edits), None))
            except Exception as error:
                # Its traceback would keep the draft.
                outcomes.append(Outcome(change, None, error.with_traceback(None)))
        transaction = Transaction(outcomes)
        self._records.expect(transaction)
        return draft, transaction

    def _lose_place(self, error: KafkaError) -> None:
        self._place.leave()
        if is_shut_out(error):
            most_s = min(SHUT_OUT_PAUSE_S * 2 ** min(self._losses, 10), MOST_PAUSE_S)
            self._losses += 1
            self._ended.wait(self._random_s(0, most_s))
            return
        self.trouble = error.str()
        self._ended.wait(self._random_s(0, TROUBLE_PAUSE_S))

    def _serve_refreshes(self) -> None:
        with self.lock:
            waiting, self.refreshes = self.refreshes, []
        if not waiting:
            return
        try:
            end = self._records.end_offset(ASK_S)
        except KafkaException as error:
            self._ask_again(waiting, error.args[0])
            return
        self._records.when_applied(end, waiting)

    def _ask_again(self, waiting: list[Later[None]], error: KafkaError) -> None:
        now_s = time.monotonic()
        late = [one for one in waiting if one.deadline_s <= now_s or self.closing]
        self._records.fail_refresh(late, error.str())
        with self.lock:
            self.refreshes += [one for one in waiting if not one.done]
        self._ended.wait(self._random_s(0, TROUBLE_PAUSE_S))
