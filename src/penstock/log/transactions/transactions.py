"""Transactions by name: staged by many tasks, across topics and partitions, visible at once or never.

A task stages batches; they are durable beside the log (staging.py) and not visible to readers. The commit
names the tasks that count. A small transaction that its owner has kept in memory is staged and decided by
one change of the metadata (`commit_at_once`). The point of no return is one row there. What follows is in
applying.py. Names of committed transactions are remembered, so a repeated commit changes nothing.

    open --commit--> committing --all appended--> committed
    open --abort, or its time is over--> gone

Every change of a state checks the state again, on the one thread that writes the metadata: the first change
wins, and the other one fails. The calls wait for the disk: run them in a thread.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.log.batch.format import HEADER_SIZE, MAX_BATCH_BYTES, Batch
from penstock.log.batch.record_limit import check_record_sizes
from penstock.log.engine import OpenTransactionInfo, Target, Tasks, TransactionUsage
from penstock.log.errors import (
    CommitUnfinished,
    DecisionUnknown,
    LogError,
    StagingDamaged,
    StagingGap,
    TooLarge,
    TransactionNotOpen,
)
from penstock.log.metadata.catalogue import Catalogue
from penstock.log.metadata.committed_names import FOLDED_AFTER_US
from penstock.log.metadata.transaction_rows import (
    IN_METADATA,
    StagedBatch,
    TransactionTable,
    number_of,
)
from penstock.log.metadata_errors import MetadataError, MetadataWriteFailed
from penstock.log.partitions.commit import GroupCommit
from penstock.log.storage.reserve import Reserve
from penstock.log.transactions.applying import Applier, Post, check_topic
from penstock.log.transactions.places import Places
from penstock.log.transactions.staging import Staging

# A committed name is remembered this long: far longer than any client repeats a commit, and than a stream
# that crashed is left alone.
DEFAULT_MEMORY_US = 30 * 24 * 3600 * 1_000_000

logger = logging.getLogger(__name__)


class Transactions:
    """Thread-safe. Names of committed ones are remembered for `memory_us`; None means for ever."""

    def __init__(
        self,
        staging: Staging,
        rows: TransactionTable,
        catalogue: Catalogue,
        commit: GroupCommit,
        reserve: Reserve,
        clock_us: Callable[[], int],
        post: Post,
        memory_us: int | None = DEFAULT_MEMORY_US,
    ) -> None:
        self._memory_us = memory_us
        self._staging = staging
        self._rows = rows
        self._catalogue = catalogue
        self._reserve = reserve
        self._clock_us = clock_us
        self._places = Places(rows, catalogue, staging)
        self._applier = Applier(
            staging, rows, catalogue, commit, clock_us, post, self._drop_staging
        )

    @property
    def unfinished(self) -> int:
        """Decided ones that wait to be tried again."""
        return len(self._applier.retries)

    @property
    def retries(self) -> int:
        return self._applier.retries.count

    def close(self) -> None:
        """Before the log is closed. What is decided and not finished goes on at the next start."""
        self._applier.close()

    def recover(self) -> None:
        """At start: finishes commits, removes what no transaction owns."""
        self._applier.recover()
        owners = {
            transaction_id
            for state in ("open", "committing")
            for transaction_id in self._rows.in_state(state)
        }
        for transaction_id in self._staging.present():
            if transaction_id not in owners:
                self._drop_staging(transaction_id)

    def begin(self, name: str, timeout_us: int) -> str:
        """Opens it, or gives an open one more time. Gives its state: open or committed."""
        while True:
            transaction_id, state = self._begun(name, timeout_us)
            if state != "committing":
                return state
            self._finish(transaction_id)

    def _begun(self, name: str, timeout_us: int) -> tuple[int, str]:
        now_us = self._clock_us()
        return self._rows.begin(name, now_us, now_us + timeout_us)

    def check(self, topic: str, partition: int, batch: Batch) -> None:
        """Whether the log will take it. Raises UnknownTopic, UnknownPartition, TooLarge."""
        self._catalogue.partitions(topic, partition)
        size = batch.size()
        if size > MAX_BATCH_BYTES + HEADER_SIZE:
            raise TooLarge("batch", size, MAX_BATCH_BYTES)
        check_record_sizes(batch, self._catalogue.get(topic).info.settings.record_bytes)

    def stage(self, name: str, task: int, topic: str, partition: int, batch: Batch) -> None:
        """Durable on return. Raises what `check` raises, and TransactionNotOpen."""
        self.stage_all(name, task, [(topic, partition, batch)])

    def stage_all(self, name: str, task: int, batches: Sequence[Target]) -> None:
        """Several batches of a task, in this order, with one flush. All of them or none."""
        self.stage_groups(name, task, [[batch] for batch in batches])

    def stage_groups(
        self, name: str, task: int, groups: Sequence[Sequence[Target]], sequence: int | None = None
    ) -> int:
        """The same with groups of batches that the client has numbered, from `sequence` on.

        Groups that are there already are left out; gives how many. Numbers begin at 0 and have no
        gaps: SequenceGap. Without a number they are new ones. Numbered groups of one task must come
        one call after the other. Counts as a sign of life: the time of the transaction begins again.
        """
        for group in groups:
            for topic, partition, batch in group:
                self.check(topic, partition, batch)
        transaction_id = self._open_id(name)
        self._reserve.check(f"transaction {name!r}")
        repeated = 0
        if sequence is not None:
            following = self._rows.sequence_after(transaction_id, task)
            if sequence > following:
                self._open_id(name)  # an end takes the rows away: then that is the reason
                raise StagingGap(name, task, sequence, following)
            repeated = min(following - sequence, len(groups))
            sequence += repeated
        if repeated < len(groups):
            self._stage(name, transaction_id, task, groups[repeated:], sequence)
        return repeated

    def _stage(
        self,
        name: str,
        transaction_id: int,
        task: int,
        groups: Sequence[Sequence[Target]],
        sequence: int | None,
    ) -> None:
        entries = self._places.take(transaction_id, task, groups, sequence)
        batches = [batch for group in groups for _, _, batch in group]
        now_us = self._clock_us()
        try:
            try:
                self._staging.write(transaction_id, entries, batches)
            except OSError:
                self._open_id(name)  # an end takes the files away: then that is the reason
                raise
            self._rows.stage(name, transaction_id, entries, now_us)
        except TransactionNotOpen as error:
            # Too late: nobody else would take these files away. A commit that goes on needs the
            # others beside them, and removes all in the end.
            if error.state != "committing":
                self._drop_staging(transaction_id)
            raise
        except Exception:
            self._places.write_failed(transaction_id, task)
            raise

    def commit(self, name: str, tasks: Iterable[int] | Tasks, rows: int | None = None) -> None:
        """Everything that these tasks staged becomes visible at once. Repeating it changes nothing.

        With the number of groups of each task, TransactionNotOpen also when some of them are not
        there: the transaction was given up and begun anew since. `rows` is remembered with the name.
        Raises TransactionNotOpen; UnknownTopic, UnknownPartition or StagingDamaged when something
        could not become visible: then it is still open, or for damage given up or to be repaired.
        CommitUnfinished when it is decided and is finished later; DecisionUnknown when not even that
        is known.
        """
        chosen = tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
        now_us = self._clock_us()
        found = self._rows.find(name)
        if found is None:
            raise TransactionNotOpen(name, "unknown")
        transaction_id, state = found
        checked = state == "open"
        if checked:
            self._check_staged(name, transaction_id, chosen)
            try:
                state = self._rows.decide(name, transaction_id, chosen, now_us, rows)
            except (MetadataWriteFailed, TimeoutError) as error:
                # Not written as far as this process sees; a crash may bring it to light.
                raise DecisionUnknown(_reason(error)) from error
        if state != "committed" and not self._finish(transaction_id, checked=checked):
            raise TransactionNotOpen(name, "unknown")

    def commit_at_once(self, name: str, batches: Sequence[Target]) -> bool:
        """Begun, staged and decided by one change; all of it visible at once. Repeating it changes nothing.

        The number of flushes depends on the number of partitions alone. Raises what `check` raises, and
        what `commit` raises after the check: before the decision nothing is stored.
        """
        entries: list[StagedBatch] = []
        for place, (topic, partition, batch) in enumerate(batches):
            self.check(topic, partition, batch)
            created_us = self._catalogue.get(topic).info.created_us
            number = number_of(0, place)
            size = self._places.staged_bytes(topic, batch)
            entries.append(StagedBatch(0, number, topic, partition, IN_METADATA, size, created_us))
        if batches:
            self._reserve.check(f"transaction {name!r}")
        given = {entry.number: target[2] for entry, target in zip(entries, batches, strict=True)}
        contents = self._staging.contents(entries, [batch for _, _, batch in batches])
        staged = [(entry, b"".join(parts)) for entry, parts in zip(entries, contents, strict=True)]
        try:
            transaction_id, state, new = self._rows.decide_at_once(name, staged, self._clock_us())
        except (MetadataWriteFailed, TimeoutError) as error:
            raise DecisionUnknown(_reason(error)) from error
        if state == "committed":
            return new
        if not self._finish(transaction_id, batches=given if new else None):
            raise TransactionNotOpen(name, "unknown")
        return new

    def abort(self, name: str) -> None:
        """What was staged is gone. Aborting what does not exist is fine; a commit stands."""
        found = self._rows.find(name)
        if found is None:
            return
        transaction_id, state = found
        if state == "open":
            state = self._forget(transaction_id, None)
        if state in ("committing", "committed"):
            raise TransactionNotOpen(name, state)

    def expire(self) -> int:
        """Ends open transactions whose time is over, finishes commits, forgets old names."""
        now_us = self._clock_us()
        for transaction_id in self._rows.in_state("committing"):
            try:
                self._applier.apply(transaction_id)
            except (LogError, MetadataError, OSError):
                continue  # logged; the others have their turn
        late = self._rows.late_at(now_us)
        ended = [self._forget(transaction_id, now_us) for transaction_id in late]
        self._tidy_names(now_us)
        self._applier.forget_closed()
        return ended.count("unknown")

    def _tidy_names(self, now_us: int) -> None:
        fold_us = now_us - FOLDED_AFTER_US
        while self._rows.fold_names(fold_us):
            continue
        if self._memory_us is not None:
            old_us = now_us - self._memory_us
            self._rows.forget_names(old_us)

    def state(self, name: str) -> str:
        """open, committing, committed or unknown."""
        found = self._rows.find(name)
        return found[1] if found is not None else "unknown"

    def rows_of(self, name: str) -> int | None:
        """How many a committed one has, if its commit has told."""
        return self._rows.rows_of(name)

    def unfinished_ones(self) -> list[OpenTransactionInfo]:
        return [
            OpenTransactionInfo(
                one.name, one.state, one.begun_us, one.updated_us, one.deadline_us, one.staged
            )
            for one in self._rows.open_ones()
        ]

    def oldest_age_us(self) -> int:
        """Of those that are not committed; 0 when there is none."""
        begun_us = self._rows.oldest_us()
        return 0 if begun_us is None else max(0, self._clock_us() - begun_us)

    def stages_for(self, topic: str) -> bool:
        """Whether something is staged for the topic."""
        return self._rows.stages_for(topic)

    def usage(self, prefix: str) -> TransactionUsage:
        return TransactionUsage(*self._rows.usage(prefix))

    # --- inside ----------------------------------------------------------------------------------

    def _finish(
        self,
        transaction_id: int,
        *,
        checked: bool = False,
        batches: Mapping[int, Batch] | None = None,
    ) -> bool:
        """Applies what is decided. Whatever keeps it from that now, the answer says that it is decided:
        "nothing was stored", as the log says of a single append, would make a client write it twice."""
        try:
            return self._applier.apply(transaction_id, checked=checked, batches=batches)
        except (CommitUnfinished, StagingDamaged):
            raise  # damaged: an operator decides
        except Exception as error:
            raise CommitUnfinished(_reason(error)) from error

    def _open_id(self, name: str) -> int:
        found = self._rows.find(name)
        if found is None or found[1] != "open":
            raise TransactionNotOpen(name, found[1] if found is not None else "unknown")
        return found[0]

    def _check_staged(self, name: str, transaction_id: int, tasks: Tasks) -> None:
        """Before the point of no return: all of it is readable and has somewhere to go."""
        chosen = [entry for entry in self._rows.staged_by(transaction_id) if entry.task in tasks]
        try:
            for entry in chosen:
                check_topic(self._catalogue, entry)
                self._catalogue.partitions(entry.topic, entry.partition)
            for _ in self._staging.read(transaction_id, chosen):
                continue
        except StagingDamaged:
            if self._rows.find(name) == (transaction_id, "open"):
                raise
            # Committed or aborted at this moment, and the files are gone for that: go on and see.

    def _forget(self, transaction_id: int, late_us: int | None) -> str:
        """Ends an open one, with `late_us` only if its time was over then. Gives its state now."""
        state = self._rows.remove(transaction_id, late_us)
        if state == "unknown":
            self._drop_staging(transaction_id)
        return state

    def _drop_staging(self, transaction_id: int) -> None:
        self._places.forget(transaction_id)
        try:
            self._staging.remove(transaction_id)
        except OSError as error:
            logger.warning(
                "staged files of transaction %d stay until restart: %s", transaction_id, error
            )


def _reason(error: Exception) -> str:
    """Why, without what the error says of its own case: that nothing was stored, for an append."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason) if reason else str(error) or type(error).__name__
