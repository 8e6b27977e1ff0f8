"""A transaction after its decision: its batches get into the log, are flushed, and are shown together.

Large files that were staged for one partition become segments of it as they are; the rest is appended
(steps.py). Everything here can be repeated at will, by this process or the next one: the batches are those
of an idempotent producer. Until all of them are durable the partitions that were touched show nothing new;
appends of others to them are stored, and shown with the rest. What fails is tried again, soon at first.

    decided --all appended--> committed
    decided, and nothing of it can be read or was appended --> gone, as if it had never been decided

A commit that was begun and whose staged batches can no longer be read cannot be repaired here: an operator
decides to show a part of it, by creating the file GIVE_UP_FILE.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.log.batch.format import Batch
from penstock.log.errors import (
    CommitWaits,
    LogClosed,
    LogError,
    Overloaded,
    PartitionStopped,
    StagingDamaged,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.catalogue import Catalogue
from penstock.log.metadata.transaction_rows import StagedBatch, TransactionTable
from penstock.log.metadata_errors import MetadataError
from penstock.log.partitions.adopting import StagedFile
from penstock.log.partitions.commit import GroupCommit
from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.producers import TRANSACTION_BIT
from penstock.log.partitions.tokens import AppendToken
from penstock.log.pending import Pending
from penstock.log.transactions.first_batch import first_of_producer
from penstock.log.transactions.retries import Retries
from penstock.log.transactions.staging import GIVE_UP_FILE, Staging
from penstock.log.transactions.steps import Step, plan

# Unwritten appends of one commit: a few flushes of a partition (GROUP_BYTES), so that the disk is never
# idle, and far below what a partition may queue, so that others are not refused.
APPEND_WINDOW_BYTES = 16 * 1024 * 1024
APPEND_TIMEOUT_S = 60.0

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], object]


@dataclass(frozen=True, slots=True)
class _Sent:
    """An append on its way."""

    step: Step
    token: AppendToken


class Applier:
    """Thread-safe. One transaction is applied at a time. `dispose` removes what was staged."""

    def __init__(
        self,
        staging: Staging,
        rows: TransactionTable,
        catalogue: Catalogue,
        commit: GroupCommit,
        clock_us: Callable[[], int],
        post: Post,
        dispose: Callable[[int], None],
    ) -> None:
        self._staging = staging
        self._rows = rows
        self._catalogue = catalogue
        self._commit = commit
        self._clock_us = clock_us
        self._post = post
        self._dispose = dispose
        self.retries = Retries(self.apply)
        self._applying = threading.Lock()
        self._held: dict[int, set[Partition]] = {}
        # The last complaint about each: the same one is not logged again.
        self._told: dict[int, str] = {}
        # Producers of committed transactions that their partitions can forget at the next commit.
        self._over: dict[Partition, list[int]] = {}
        # Transactions that became durably committed since the last one was applied, and their partitions.
        self._finished: deque[tuple[int, set[Partition]]] = deque()
        # At start nobody serves the partitions yet: appends are written in this thread.
        self._inline = False

    def recover(self) -> None:
        """At start, before any read: finishes what was decided. What cannot be finished now is hidden
        from readers and tried again later. Raises when a part cannot be hidden."""
        failed = []
        self._inline = True
        decided = self._rows.in_state("committing")
        for transaction_id in decided:
            self._hide(transaction_id)
        waiting = decided
        while waiting:
            again = []
            for transaction_id in waiting:
                try:
                    self.apply(transaction_id)
                except CommitWaits:
                    again.append(transaction_id)  # they were stored in another order than decided
                except (LogError, MetadataError, OSError):
                    failed.append(transaction_id)  # logged
            if len(again) == len(waiting):
                failed += again  # for one that failed
                break
            waiting = again
        self._inline = False
        for transaction_id in failed:
            if self._rows.state_of(transaction_id) == "committing":
                self.retries.add(transaction_id)

    def close(self) -> None:
        """Before the log: what is tried at the moment needs it."""
        self.retries.close()

    def forget_closed(self) -> None:
        """Of topics that were deleted nothing needs to be known."""
        with self._applying:
            self._note_finished()
            self._over = {one: over for one, over in self._over.items() if not one.closed}

    def apply(
        self,
        transaction_id: int,
        *,
        checked: bool = False,
        batches: Mapping[int, Batch] | None = None,
    ) -> bool:
        """Appends what was staged and shows it. Raises when the log refuses; then it is tried again.

        False when somebody else had to give it up. `checked`: what was staged has just been read.
        `batches`: all that was staged, by number, of a transaction with a single task. Of such a one the
        state "committed" is written without waiting for it: until it is there, a start does what is done
        already once more, and finds nothing to do.
        """
        with self._applying:
            self._note_finished()
            state = self._rows.state_of(transaction_id)
            if state != "committing":
                return state == "committed"
            held = self._held.setdefault(transaction_id, set())
            try:
                steps = self._steps(transaction_id)
                self._check_turn(transaction_id, {step.target for step in steps}, held)
                if batches is not None:
                    given = iter([batches[step.entry.number] for step in steps])
                    self._append_all(transaction_id, steps, given, held)
                else:
                    if not checked:
                        steps = self._readable(transaction_id, steps, held)
                    self._put_all(transaction_id, steps, held)
                self._flush(held)
                self._finish(transaction_id, held, waits=batches is None)
            except Exception as error:
                self._failed(transaction_id, error, held)
                raise
            self._release(transaction_id)
        self._end(transaction_id)
        return True

    def _finish(self, transaction_id: int, held: set[Partition], *, waits: bool) -> None:
        now_us = self._clock_us()
        if waits:
            self._rows.finish(transaction_id, now_us)
            self._finished.append((transaction_id, held))
            return

        def written(done: Pending[None]) -> None:
            """Where it fails, the next `expire` finds it decided and finishes it."""
            if done.error is None:
                self._finished.append((transaction_id, held))

        self._rows.finish_soon(transaction_id, now_us, written)

    def _note_finished(self) -> None:
        while self._finished:
            transaction_id, partitions = self._finished.popleft()
            for partition in partitions:
                self._over.setdefault(partition, []).append(TRANSACTION_BIT | transaction_id)

    def _failed(self, transaction_id: int, error: Exception, held: set[Partition]) -> None:
        if isinstance(error, StagingDamaged) and error.rolled_back:
            logger.error("transaction %d is rolled back: %s", transaction_id, error)
            self._end(transaction_id)
            return
        if self._inline and isinstance(error, CommitWaits):
            return  # its turn comes
        if not self._inline:
            self.retries.add(transaction_id)
        text = str(error)
        if self._told.get(transaction_id) == text:
            return
        self._told[transaction_id] = text
        advice = "it is tried again"
        if isinstance(error, StagingDamaged):
            marker = self._staging.give_up_path(transaction_id)
            advice = f"put the file back from a backup, or create {marker} to go on without it"
        logger.error(
            "transaction %d is decided but not finished: %s; %s; until then %d partitions show"
            " nothing new",
            transaction_id,
            error,
            advice,
            len(held),
        )

    def _end(self, transaction_id: int) -> None:
        """Finished or given up: nothing of it is left to do."""
        self._held.pop(transaction_id, None)
        self.retries.drop(transaction_id)
        if self._told.pop(transaction_id, None) is not None:
            logger.info("transaction %d is settled now", transaction_id)
        self._dispose(transaction_id)

    # --- what is left to do ----------------------------------------------------------------------

    def _target(self, entry: StagedBatch) -> Partition | None:
        """None when the topic is gone, or is another one of the same name."""
        try:
            check_topic(self._catalogue, entry)
            return self._catalogue.partition(entry.topic, entry.partition)
        except (UnknownTopic, UnknownPartition):
            return None

    def _steps(self, transaction_id: int) -> list[Step]:
        """What is not in the log yet. What is there needs no staged file any more."""
        producer_id = TRANSACTION_BIT | transaction_id
        numbers: dict[tuple[str, int], int] = {}
        stored: dict[Partition, int] = {}
        steps = []
        for entry in self._rows.staged_by(transaction_id):
            key = entry.topic, entry.partition
            sequence = numbers.get(key, 0)
            numbers[key] = sequence + 1
            target = self._target(entry)
            if target is None:
                if not sequence:
                    logger.warning("transaction %d: %s/%d is gone by now", transaction_id, *key)
                continue
            if target not in stored:
                last = target.last_sequence(producer_id)
                stored[target] = -1 if last is None else last
            if sequence > stored[target]:
                steps.append(Step(entry, sequence, target))
        return steps

    def _check_turn(
        self, transaction_id: int, appended: set[Partition], held: set[Partition]
    ) -> None:
        """Raises CommitWaits where another one holds a partition and this one is stored behind it, or has
        to be: what lies behind a part of that one is not seen, so this one would be seen in part. Nothing
        of it is stored before its turn. Two never wait for each other: one that takes partitions waits
        for none, and of those that a start finds stored in one partition the first one waits for none."""
        for other_id, partitions in self._held.items():
            if other_id == transaction_id:
                continue
            if not appended.isdisjoint(partitions) or any(
                partition.is_held_before(transaction_id, other_id)
                for partition in held & partitions
            ):
                raise CommitWaits(other_id)

    def _readable(self, transaction_id: int, steps: list[Step], held: set[Partition]) -> list[Step]:
        """All of them, or StagingDamaged; after a give-up those that can be read."""
        damaged = self._staging.damaged(transaction_id, [step.entry for step in steps])
        if not damaged:
            return steps
        error = damaged[0][1]
        if not held:
            # Nothing was appended, by this process or an earlier one, and no client was told that it is
            # committed. A client that asks again gets "unknown", and writes it again.
            self._rows.undecide(transaction_id)
            raise error.after_rollback()
        if not self._staging.given_up(transaction_id):
            raise error
        lost = [entry for entry, _ in damaged]
        self._rows.drop(transaction_id, lost)
        logger.error(
            "transaction %d: %d batches are left out for %s, the first one: %s",
            transaction_id,
            len(lost),
            GIVE_UP_FILE,
            error,
        )
        return self._steps(transaction_id)

    # --- the log ---------------------------------------------------------------------------------

    def _hide(self, transaction_id: int) -> None:
        """An earlier process may have stored a part: it stays hidden, as it was then."""
        producer_id = TRANSACTION_BIT | transaction_id
        held = self._held.setdefault(transaction_id, set())
        for entry in self._rows.staged_by(transaction_id):
            target = self._target(entry)
            if target is None or target in held or target.last_sequence(producer_id) is None:
                continue
            target.hold(transaction_id, at=first_of_producer(target, producer_id))
            held.add(target)

    def _put_all(self, transaction_id: int, steps: Sequence[Step], held: set[Partition]) -> None:
        todo = plan(steps)
        for run in todo.runs:
            if not run.whole or not self._adopt(transaction_id, run.steps, held):
                self._append(transaction_id, run.steps, held)
        self._append(transaction_id, todo.appended, held)

    def _adopt(self, transaction_id: int, steps: Sequence[Step], held: set[Partition]) -> bool:
        """Makes a file with all of these a segment of their partition. False where that cannot be."""
        first = steps[0]
        target = first.target
        path = self._staging.take(transaction_id, first.entry)
        if path is None:
            return False
        self._hold(transaction_id, first, held)
        file = StagedFile(
            path,
            [step.entry.head for step in steps],
            TRANSACTION_BIT | transaction_id,
            first.sequence,
        )
        outcome = Outcome()
        try:
            adopted = target.adopt(file, outcome)
        except (LogClosed, UnknownTopic):
            if self._target(first.entry) is target:
                raise
            return True  # the topic was deleted meanwhile: its records have nowhere to go
        finally:
            self._deliver(outcome)
        if adopted and not self._inline:
            self._commit.submit(target)  # seals the segment before it
        return adopted

    def _hold(self, transaction_id: int, step: Step, held: set[Partition]) -> None:
        target = step.target
        if target in held:
            return
        target.hold(transaction_id, self._over.pop(target, ()))
        held.add(target)
        topic = self._catalogue.find(step.entry.topic)
        if topic is not None:
            self._catalogue.note_records(topic)

    def _append(self, transaction_id: int, steps: Sequence[Step], held: set[Partition]) -> None:
        entries = [step.entry for step in steps]
        # Closed here, and not when the memory is tidied up, by whatever thread.
        with closing(self._staging.read(transaction_id, entries)) as batches:
            self._append_all(transaction_id, steps, batches, held)

    def _append_all(
        self,
        transaction_id: int,
        steps: Sequence[Step],
        batches: Iterator[Batch],
        held: set[Partition],
    ) -> None:
        sent: deque[_Sent] = deque()
        firsts: dict[Partition, _Sent] = {}
        sent_bytes = 0
        for step, batch in zip(steps, batches, strict=True):
            target, length = step.target, step.entry.length
            self._hold(transaction_id, step, held)
            if step.sequence and target in firsts:
                # Behind a first one that is refused no other is taken: nothing is sent in vain.
                self._wait(firsts.pop(target))
            batch.from_producer(TRANSACTION_BIT | transaction_id, 0, step.sequence)
            while sent and sent_bytes + length > APPEND_WINDOW_BYTES:
                sent_bytes -= self._wait(sent.popleft())
            while (token := self._try_append(target, batch, last_try=not sent)) is None:
                sent_bytes -= self._wait(sent.popleft())
            sent.append(_Sent(step, token))
            sent_bytes += length
            if not step.sequence:
                firsts[target] = sent[-1]
        for one in sent:
            self._wait(one)

    def _try_append(self, target: Partition, batch: Batch, *, last_try: bool) -> AppendToken | None:
        """None when the partition has too much to write at the moment."""
        try:
            token = target.append(batch)
        except Overloaded:
            if last_try:
                raise
            return None
        except (LogClosed, UnknownTopic) as error:
            token = AppendToken(batch.count)
            token.error = error
            token.complete()
            return token
        if not self._inline:
            self._commit.submit(target)
        return token

    def _wait(self, sent: _Sent) -> int:
        """Until it is written. Gives its length."""
        step = sent.step
        while self._inline and not sent.token.done:
            deliver(step.target.write_pending())
        try:
            sent.token.result(APPEND_TIMEOUT_S)
        except (LogClosed, UnknownTopic):
            if self._target(step.entry) is step.target:
                raise
            # The topic was deleted meanwhile: its records have nowhere to go.
        return step.entry.length

    def _flush(self, held: set[Partition]) -> None:
        """Also where the topic itself asks for less. Raises PartitionStopped."""
        for partition in held:
            self._deliver(partition.flush())
            # Of a topic that was deleted there is nothing to flush, and nobody to show it to.
            if partition.stopped is not None and self._catalogue.has(partition):
                raise PartitionStopped(partition.directory, partition.stopped)

    def _deliver(self, outcome: Outcome) -> None:
        """Completes tokens and watchers of other callers in the thread that they belong to."""
        if outcome.tokens or outcome.wakes:
            self._post(lambda: deliver(outcome))

    def _release(self, transaction_id: int) -> None:
        """In one go on the event loop: a reader there sees all of it or nothing. Watchers are woken
        when all of it can be seen."""
        held = self._held.pop(transaction_id)

        def release() -> None:
            for outcome in [partition.release(transaction_id) for partition in held]:
                deliver(outcome)

        self._post(release)


def check_topic(catalogue: Catalogue, entry: StagedBatch) -> None:
    """Raises UnknownTopic, also when the topic is another one than at the staging."""
    created_us = catalogue.get(entry.topic).info.created_us
    # What an older version has staged does not tell.
    if entry.created_us and entry.created_us != created_us:
        raise TopicReplaced(entry.topic)
