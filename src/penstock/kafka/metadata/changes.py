"""A change on its way: queued, in a transaction, done. Values without threads of their own."""

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from penstock.log.callbacks import Callback, Callbacks
from penstock.log.pending import Pending
from penstock.log.records import Delete, DeleteAll, Edit, Put, Require

T = TypeVar("T")

# What an edit takes beside its value: objects, name, place in the queue.
_EDIT_BYTES = 256


class Later(Pending[T]):
    """Done when it is durable or has failed. Its callbacks run where those of all changes run."""

    __slots__ = ("_later", "deadline_s")

    def __init__(self, later: Callbacks, deadline_s: float) -> None:
        super().__init__()
        self._later = later
        self.deadline_s = deadline_s

    def _call_late(self, callback: "Callable[[Pending[T]], object]") -> None:
        # Behind the callbacks that are due already.
        self._later.add([partial(callback, self)])

    def due(self, value: T | None, error: BaseException | None) -> list[Callback]:
        """Settles it, and gives what is to be called."""
        return [partial(callback, self) for callback in self.mark_done(value, error)]


class Change(Later[int]):
    """`deadline_s`: when it fails if Kafka is still away."""

    __slots__ = ("edits", "size_bytes")

    def __init__(self, edits: Sequence[Edit], later: Callbacks, deadline_s: float) -> None:
        super().__init__(later, deadline_s)
        self.edits = edits
        self.size_bytes = sum(map(_size, edits))


def _size(edit: Put | Delete | DeleteAll | Require) -> int:
    return _EDIT_BYTES + (len(edit.value) if isinstance(edit, Put) else 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change will have come to when its transaction is committed: a version, or an error."""

    change: Change
    version: int | None
    error: BaseException | None


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """Changes that are written together. `id` is in its mark; `applied`: it is durable, all changes of it
    that were not given up are settled."""

    outcomes: Sequence[Outcome]
    id: bytes = field(default_factory=lambda: uuid.uuid4().bytes)
    applied: threading.Event = field(default_factory=threading.Event)
