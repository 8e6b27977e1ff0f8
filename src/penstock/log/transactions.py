"""Transactions by name: staged by many tasks, across topics and partitions, visible at once or never.

A task stages batches; they are durable beside the log (staging.py) and in nobody's sight. The commit
names the tasks that count. Its point of no return is one row in the metadata. What follows can be
repeated at will: the batches are appended as those of an idempotent producer, and the partitions
concerned show nothing new until all of it is durable. A crash in between is finished at the next start,
before anybody reads. Names of committed transactions are remembered, so a repeated commit changes
nothing.

    open --commit--> committing --all appended--> committed
    open --abort, or its time is over--> gone

Every change of a state looks at the state again, on the one thread that writes the metadata: whoever
comes first there wins, and the other hears it. The calls touch the disk and wait for it: run them in a
thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.log import staging as kept
from penstock.log.batch import HEADER_SIZE, MAX_BATCH_BYTES, Batch
from penstock.log.catalogue import Catalogue
from penstock.log.commit import GroupCommit
from penstock.log.errors import (
    CorruptLog,
    LogClosed,
    LogError,
    Overloaded,
    PartitionStopped,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata import MetadataStore
from penstock.log.metadata_errors import MetadataError
from penstock.log.outcome import Outcome, deliver
from penstock.log.partition import Partition
from penstock.log.record_limit import check_record_sizes
from penstock.log.staging import StagedBatch, Staging
from penstock.log.tokens import AppendToken

# Producer ids of transactions have the highest bit: no client is given such a one.
PRODUCER_BIT = 1 << 63
# Unwritten appends of one commit: a few flushes of a partition (GROUP_BYTES), so that the disk is never
# idle, and far below what a partition may queue, so that others are not refused.
APPEND_WINDOW_BYTES = 16 * 1024 * 1024
APPEND_TIMEOUT_S = 60.0
# A committed name is remembered this long: far longer than any client repeats a commit.
REMEMBERED_US = 7 * 24 * 3600 * 1_000_000

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], object]
# Topic, partition, and what shall go there.
Target = tuple[str, int, Batch]


@dataclass(frozen=True, slots=True)
class _Sent:
    """An append on its way."""

    entry: StagedBatch
    partition: Partition
    token: AppendToken


class Transactions:
    """Thread-safe. One commit is applied at a time."""

    def __init__(
        self,
        staging: Staging,
        metadata: MetadataStore,
        catalogue: Catalogue,
        commit: GroupCommit,
        clock_us: Callable[[], int],
        post: Post,
    ) -> None:
        self._staging = staging
        self._metadata = metadata
        self._catalogue = catalogue
        self._commit = commit
        self._clock_us = clock_us
        self._post = post
        self._applying = threading.Lock()
        self._lock = threading.Lock()
        # Where the next batch of a task goes: its number and its place in the file.
        self._tasks: dict[tuple[int, int], tuple[int, int]] = {}
        self._held: dict[int, set[Partition]] = {}
        # Producers of committed transactions that their partitions can forget at the next commit.
        self._over: dict[Partition, list[int]] = {}
        # At start nobody serves the partitions yet: appends are written in this thread.
        self._inline = False

    def recover(self) -> None:
        """At start: finishes commits, removes what no open transaction owns."""
        self._inline = True
        for transaction_id in kept.in_state(self._metadata, "committing"):
            self._apply(transaction_id)
        self._inline = False
        owners = set(kept.in_state(self._metadata, "open"))
        for transaction_id in self._staging.present():
            if transaction_id not in owners:
                self._drop_staging(transaction_id)

    def begin(self, name: str, timeout_us: int) -> str:
        """Opens it, or gives an open one more time. Gives its state: open or committed."""
        now_us = self._clock_us()
        transaction_id, state = self._metadata.submit(
            lambda db: kept.begin_row(db, name, now_us, now_us + timeout_us)
        ).result()
        if state == "committing":
            self._apply(transaction_id)
            return "committed"
        return state

    def check(self, topic: str, partition: int, batch: Batch) -> None:
        """Whether the log will take it. Raises UnknownTopic, UnknownPartition, TooLarge."""
        self._catalogue.partition(topic, partition)
        size = batch.size()
        if size > MAX_BATCH_BYTES + HEADER_SIZE:
            raise TooLarge("batch", size, MAX_BATCH_BYTES)
        check_record_sizes(batch, self._catalogue.get(topic).info.settings.record_bytes)

    def stage(self, name: str, task: int, topic: str, partition: int, batch: Batch) -> None:
        """Durable on return. Raises what `check` raises, and TransactionNotOpen."""
        self.stage_all(name, task, [(topic, partition, batch)])

    def stage_all(self, name: str, task: int, batches: Sequence[Target]) -> None:
        """Several batches of a task, in this order, with one flush. All of them or none.

        Counts as a sign of life: the time of the transaction begins again.
        """
        for topic, partition, batch in batches:
            self.check(topic, partition, batch)
        transaction_id = self._open_id(name)
        entries = self._place(transaction_id, task, batches)
        now_us = self._clock_us()
        try:
            try:
                self._staging.write(transaction_id, entries, [batch for _, _, batch in batches])
            except OSError:
                self._open_id(name)  # an abort takes the files away: then that is the reason
                raise
            self._metadata.submit(
                lambda db: kept.stage_row(db, name, transaction_id, entries, now_us)
            ).result()
        except TransactionNotOpen as error:
            # Too late: nobody else would take these files away. A commit that goes on needs the
            # others beside them, and removes all in the end.
            if error.state != "committing":
                self._drop_staging(transaction_id)
            raise

    def commit(self, name: str, tasks: Iterable[int]) -> None:
        """Everything that these tasks staged becomes visible at once. Repeating it changes nothing.

        Raises TransactionNotOpen; UnknownTopic, UnknownPartition or CorruptLog when something could
        not become visible: then it is still open. Any other error: decided, and finished later.
        """
        chosen = set(tasks)
        now_us = self._clock_us()
        found = kept.find(self._metadata, name)
        if found is None:
            raise TransactionNotOpen(name, "unknown")
        transaction_id, state = found
        if state == "open":
            self._check_staged(name, transaction_id, chosen)
            state = self._metadata.submit(
                lambda db: kept.decide_row(db, name, transaction_id, chosen, now_us)
            ).result()
        if state != "committed":
            self._apply(transaction_id)

    def abort(self, name: str) -> None:
        """What was staged is gone. Aborting what does not exist is fine; a commit stands."""
        found = kept.find(self._metadata, name)
        if found is None:
            return
        state = self._forget(found[0], None)
        if state in ("committing", "committed"):
            raise TransactionNotOpen(name, state)

    def expire(self) -> int:
        """Ends open transactions whose time is over, finishes commits, forgets old names."""
        now_us = self._clock_us()
        for transaction_id in kept.in_state(self._metadata, "committing"):
            try:
                self._apply(transaction_id)
            except (LogError, MetadataError, OSError):
                continue  # logged; the others have their turn
        late = kept.late_at(self._metadata, now_us)
        ended = [self._forget(transaction_id, now_us) for transaction_id in late]
        old_us = now_us - REMEMBERED_US
        self._metadata.submit(lambda db: kept.forget_old_rows(db, old_us)).result()
        with self._applying:
            self._over = {one: over for one, over in self._over.items() if not one.closed}
        return ended.count("unknown")

    def state(self, name: str) -> str:
        """open, committing, committed or unknown."""
        found = kept.find(self._metadata, name)
        return found[1] if found is not None else "unknown"

    # --- inside ----------------------------------------------------------------------------------

    def _open_id(self, name: str) -> int:
        found = kept.find(self._metadata, name)
        if found is None or found[1] != "open":
            raise TransactionNotOpen(name, found[1] if found is not None else "unknown")
        return found[0]

    def _place(
        self, transaction_id: int, task: int, batches: Sequence[Target]
    ) -> list[StagedBatch]:
        with self._lock:
            known = self._tasks.get((transaction_id, task))
            number, position = known or kept.place_after(self._metadata, transaction_id, task)
            entries = []
            for topic, partition, batch in batches:
                size = batch.size()
                entries.append(StagedBatch(task, number, topic, partition, position, size))
                number += 1
                position += size
            self._tasks[transaction_id, task] = number, position
        return entries

    def _check_staged(self, name: str, transaction_id: int, tasks: set[int]) -> None:
        """Before the point of no return: all of it is readable and has somewhere to go."""
        chosen = [
            entry for entry in kept.staged_by(self._metadata, transaction_id) if entry.task in tasks
        ]
        try:
            for entry in chosen:
                self._catalogue.partition(entry.topic, entry.partition)
            for _ in self._staging.read(transaction_id, chosen):
                continue
        except CorruptLog:
            if kept.find(self._metadata, name) == (transaction_id, "open"):
                raise
            # Committed or aborted at this moment, and the files are gone for that: go on and see.

    def _forget(self, transaction_id: int, late_us: int | None) -> str:
        """Ends an open one, with `late_us` only if its time was over then. Gives its state now."""
        state = self._metadata.submit(
            lambda db: kept.remove_row(db, transaction_id, late_us)
        ).result()
        if state == "unknown":
            self._drop_staging(transaction_id)
        return state

    def _drop_staging(self, transaction_id: int) -> None:
        with self._lock:
            for key in [key for key in self._tasks if key[0] == transaction_id]:
                del self._tasks[key]
        try:
            self._staging.remove(transaction_id)
        except OSError as error:
            logger.warning(
                "staged files of transaction %d stay until restart: %s", transaction_id, error
            )

    # --- after the decision ----------------------------------------------------------------------

    def _apply(self, transaction_id: int) -> None:
        """Appends what was staged and shows it. Raises when the log refuses; then it is tried again
        later, and until then the partitions touched show nothing new, so that nobody sees a part."""
        with self._applying:
            if transaction_id not in kept.in_state(self._metadata, "committing"):
                return  # somebody else has finished it
            held = self._held.setdefault(transaction_id, set())
            try:
                self._append(transaction_id, kept.staged_by(self._metadata, transaction_id), held)
                self._flush(held)
                now_us = self._clock_us()
                self._metadata.submit(
                    lambda db: kept.finish_row(db, transaction_id, now_us)
                ).result()
            except Exception as error:
                logger.error(
                    "transaction %d is decided but not finished: %s; it is tried again, until then"
                    " %d partitions show nothing new",
                    transaction_id,
                    error,
                    len(held),
                )
                raise
            self._release(transaction_id)
        self._drop_staging(transaction_id)

    def _append(self, transaction_id: int, staged: list[StagedBatch], held: set[Partition]) -> None:
        sent: deque[_Sent] = deque()
        firsts: dict[Partition, _Sent] = {}
        sequences: dict[tuple[str, int], int] = {}
        sent_bytes = 0
        batches = self._staging.read(transaction_id, staged)
        for entry, batch in zip(staged, batches, strict=True):
            key = entry.topic, entry.partition
            sequence = sequences.get(key, 0)
            sequences[key] = sequence + 1
            target = self._target(entry)
            if target is None:
                if not sequence:
                    logger.warning("transaction %d: %s/%d is gone by now", transaction_id, *key)
                continue
            if target not in held:
                target.hold(self._over.pop(target, ()))
                held.add(target)
            if sequence and target in firsts:
                # A partition takes any number from a producer it does not know. If the second
                # were stored and not the first, the first would be taken for a repeat ever after.
                self._wait(firsts.pop(target))
            batch.from_producer(PRODUCER_BIT | transaction_id, 0, sequence)
            while sent and sent_bytes + entry.length > APPEND_WINDOW_BYTES:
                sent_bytes -= self._wait(sent.popleft())
            while (token := self._try_append(target, batch, last_try=not sent)) is None:
                sent_bytes -= self._wait(sent.popleft())
            sent.append(_Sent(entry, target, token))
            sent_bytes += entry.length
            if not sequence:
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
        except LogClosed:
            token = AppendToken(batch.count)
            token.error = LogClosed()
            token.complete()
            return token
        if not self._inline:
            self._commit.submit(target)
        return token

    def _wait(self, sent: _Sent) -> int:
        """Until it is written. Gives its length."""
        while self._inline and not sent.token.done:
            deliver(sent.partition.write_pending())
        try:
            sent.token.result(APPEND_TIMEOUT_S)
        except LogClosed:
            if self._target(sent.entry) is sent.partition:
                raise
            # The topic was deleted meanwhile: its records have nowhere to go.
        return sent.entry.length

    def _target(self, entry: StagedBatch) -> Partition | None:
        try:
            return self._catalogue.partition(entry.topic, entry.partition)
        except (UnknownTopic, UnknownPartition):
            return None

    def _flush(self, held: set[Partition]) -> None:
        """Also where the topic itself asks for less. Raises PartitionStopped."""
        for partition in held:
            self._deliver(partition.flush())
            if partition.stopped is not None:
                raise PartitionStopped(partition.directory, partition.stopped)

    def _deliver(self, outcome: Outcome) -> None:
        """Tokens and watchers of others: told where they belong."""
        if outcome.tokens or outcome.wakes:
            self._post(lambda: deliver(outcome))

    def _release(self, transaction_id: int) -> None:
        """In one go on the event loop: a reader there sees all of it or nothing. Watchers are woken
        when all of it can be seen."""
        held = self._held.pop(transaction_id)
        for partition in held:
            self._over.setdefault(partition, []).append(PRODUCER_BIT | transaction_id)

        def release() -> None:
            for outcome in [partition.release() for partition in held]:
                deliver(outcome)

        self._post(release)
