"""The decision of a commit: one change of the metadata, after which it will be applied."""

from collections.abc import Callable, Sequence

from penstock.kafka.transactions.rows import Head, Piece, Rows
from penstock.kafka.transactions.targets import Targets
from penstock.log.engine import Tasks
from penstock.log.errors import (
    DecisionUnknown,
    RecordConflict,
    TransactionNotOpen,
)
from penstock.log.metadata_errors import MetadataWriteFailed
from penstock.log.records import Kept


class Decider:
    """Thread-safe."""

    def __init__(self, rows: Rows, targets: Targets, clock_us: Callable[[], int]) -> None:
        self._rows = rows
        self._targets = targets
        self._clock_us = clock_us

    def decide(self, head: Kept[Head], chosen: Tasks, rows: int | None) -> Kept[Head] | None:
        """The point of no return. None when something was changed meanwhile."""
        id = head.value.id
        found = self._rows.tasks(id)
        requires = [self._rows.require_task(id, task, found.get(task)) for task in chosen]
        for task, groups in chosen.items():
            row = found.get(task)
            if groups is None or groups == (0 if row is None else row.value.next):
                continue
            if not self._rows.holds([self._rows.require_head(head.name, head), *requires]):
                return None
            raise TransactionNotOpen(head.name, f"another one than task {task} staged in")
        tasks = tuple(sorted(chosen))
        self._check_targets(self._rows.pieces(id, tasks))
        old = head.value
        now_us = self._clock_us()
        new = Head(id, "committing", old.begun_us, now_us, old.timeout_us, rows, tasks)
        try:
            version = self._rows.change(
                [self._rows.heads.put(head.name, new, head.version), *requires]
            )
        except RecordConflict:
            return None
        except (MetadataWriteFailed, TimeoutError) as error:
            raise DecisionUnknown(_reason(error)) from error
        return Kept(head.name, new, version)

    def _check_targets(self, pieces: Sequence[Piece]) -> None:
        """All of it has somewhere to go."""
        different = {(one.topic, one.partition, one.topic_id): one for one in pieces}
        for one in different.values():
            self._targets.check(one)


def _reason(error: Exception) -> str:
    """Why, without what the error says of its own case."""
    return str(getattr(error, "reason", None) or str(error) or type(error).__name__)
