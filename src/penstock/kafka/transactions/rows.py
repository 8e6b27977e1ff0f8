"""What the metadata knows of transactions that are not committed yet: named records with compare and set.

    space transactions          by name: Head. Changed by begin and by the decision only.
    space transaction-tasks     by id and task: TaskRow. Changed by every call that stages.
    space transaction-batches   by id, task and first sequence: CallRow, where the batches of one call lie

A call that stages requires the head as it was read and puts its task anew; a decision puts the head anew
and requires all its tasks as they were read. So a decision has all that was staged before it, and nothing
can be staged after it, whichever gateways are used. Names of committed ones are not here: see journal.py.
"""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from penstock.log.engine import OpenTransactionInfo
from penstock.log.errors import RecordConflict
from penstock.log.metadata_errors import MetadataError
from penstock.log.records import (
    ABSENT,
    DeleteAll,
    Edit,
    Kept,
    Metadata,
    Require,
    Space,
    join_name,
    prefix_of,
)

HEADS = "transactions"
TASKS = "transaction-tasks"
CALLS = "transaction-batches"

# Digits of a sequence in a name, so that names sort as numbers do.
_DIGITS = 12


class Head(msgspec.Struct, frozen=True):
    """`id` tells it from others of the same name. `updated_us`: its last change; `tasks`: those that the
    commit has chosen. It is given up `timeout_us` after its last sign of life, while it is open."""

    id: str
    state: str
    begun_us: int
    updated_us: int
    timeout_us: int
    rows: int | None = None
    tasks: tuple[int, ...] = ()


class TaskRow(msgspec.Struct, frozen=True):
    """`next`: the sequence that comes next. `staged`: bytes by topic."""

    next: int
    updated_us: int
    staged: dict[str, int]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A staged batch: where it shall go, and where it lies. `topic_id` tells the topic from another one of
    the same name."""

    topic: str
    partition: int
    topic_id: int
    place: int
    offset: int
    length: int


class CallRow(msgspec.Struct, frozen=True):
    """Of all groups of the call, in order."""

    pieces: tuple[Piece, ...]


TaskRows = dict[int, Kept[TaskRow]]


class Rows:
    """Thread-safe. Shows what this gateway has read of the metadata."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.heads = Space(metadata, HEADS, Head)
        self._tasks = Space(metadata, TASKS, TaskRow)
        self._calls = Space(metadata, CALLS, CallRow)

    def head(self, name: str) -> Kept[Head] | None:
        return self.heads.get(name)

    def all_heads(self, prefix: str = "") -> list[Kept[Head]]:
        return [*self.heads.all(prefix)]

    def task(self, id: str, task: int) -> Kept[TaskRow] | None:
        return self._tasks.get(join_name(id, task))

    def tasks(self, id: str) -> TaskRows:
        prefix = prefix_of(id)
        return {int(one.name.removeprefix(prefix)): one for one in self._tasks.all(prefix)}

    def pieces(self, id: str, tasks: "tuple[int, ...]") -> list[Piece]:
        """In the order in which they become visible."""
        return [
            piece
            for task in sorted(set(tasks))
            for call in self._calls.all(prefix_of(id, task))
            for piece in call.value.pieces
        ]

    def lowest_offsets(self) -> dict[int, int]:
        """Of all that is staged, by partition of the topic that it lies in."""
        found: dict[int, int] = {}
        for call in self._calls.all():
            for piece in call.value.pieces:
                found[piece.place] = min(piece.offset, found.get(piece.place, piece.offset))
        return found

    def change(self, edits: Sequence[Edit]) -> int:
        """The version, durable on return. Raises RecordConflict, MetadataError."""
        return self._metadata.change(edits).result()

    def changed(self, edits: Sequence[Edit]) -> bool:
        """False when something was not as expected; then nothing is changed."""
        try:
            self.change(edits)
        except RecordConflict:
            return False
        return True

    def change_soon(self, edits: Sequence[Edit]) -> None:
        """Does not wait; where it fails, somebody does it later."""
        with suppress(MetadataError):
            self._metadata.change(edits)

    def holds(self, edits: Sequence[Require]) -> bool:
        """Whether this is how things are now, over all gateways. What this one has read lags behind by some
        milliseconds; after the answer it does not."""
        return self.changed(edits)

    # --- edits ------------------------------------------------------------------------------------

    def put_task(self, id: str, task: int, row: TaskRow, before: Kept[TaskRow] | None) -> Edit:
        version = ABSENT if before is None else before.version
        return self._tasks.put(join_name(id, task), row, version)

    def put_call(self, id: str, task: int, sequence: int, row: CallRow) -> Edit:
        return self._calls.put(join_name(id, task, f"{sequence:0{_DIGITS}}"), row, ABSENT)

    def require_head(self, name: str, head: Kept[Head] | None) -> Require:
        return self.heads.require(name, ABSENT if head is None else head.version)

    def require_task(self, id: str, task: int, row: Kept[TaskRow] | None) -> Require:
        return self._tasks.require(join_name(id, task), ABSENT if row is None else row.version)

    def remove(self, head: Kept[Head]) -> list[Edit]:
        """The head as it was read, and all that was staged."""
        prefix = prefix_of(head.value.id)
        return [
            self.heads.delete(head.name, head.version),
            DeleteAll(TASKS, prefix),
            DeleteAll(CALLS, prefix),
        ]


def info_of(head: Kept[Head], tasks: TaskRows) -> OpenTransactionInfo:
    staged: dict[str, int] = {}
    for row in tasks.values():
        for topic, size in row.value.staged.items():
            staged[topic] = staged.get(topic, 0) + size
    seen_us = last_sign_us(head, tasks)
    one = head.value
    deadline_us = seen_us + one.timeout_us
    return OpenTransactionInfo(head.name, one.state, one.begun_us, seen_us, deadline_us, staged)


def last_sign_us(head: Kept[Head], tasks: TaskRows) -> int:
    return max([head.value.updated_us, *(row.value.updated_us for row in tasks.values())])
