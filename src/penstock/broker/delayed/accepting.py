"""Delayed messages on their way into an hour: gathered for one append, and the runs that wait for it.

Runs come from one request or from many; the messages of a run may go to several hours, and an append may
hold messages of several runs. No object is made for a message. Hot: compiled by mypyc.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from penstock.broker.delayed.hour import message_id
from penstock.log.batch.builder import BatchBuilder

MILLISECOND_US: Final = 1_000

_by_row: Final = attrgetter("first_row")


class Part:
    """Messages of a run that follow each other and went into one append: their ids follow each other too,
    or there is the reason why they are not stored."""

    __slots__ = ("count", "error", "first_id", "first_row")

    def __init__(self, first_row: int) -> None:
        self.first_row = first_row
        self.count = 0
        self.first_id = 0
        self.error: BaseException | None = None


class Accepted:
    """A run of messages until all of them are durable or refused."""

    __slots__ = ("_callback", "_left", "_parts")

    def __init__(self, count: int) -> None:
        self._left = count
        self._parts: list[Part] = []
        self._callback: Callable[[Accepted], None] | None = None

    @property
    def done(self) -> bool:
        return self._left == 0

    def on_done(self, callback: "Callable[[Accepted], None]") -> None:
        """Calls back once; at once when it is done already."""
        if self.done:
            callback(self)
        else:
            self._callback = callback

    def in_order(self) -> list[Part]:
        """All messages, by their rows. Once it is done."""
        return sorted(self._parts, key=_by_row)

    def settle(self, part: Part) -> None:
        self._parts.append(part)
        self._left -= part.count
        if self._left == 0:
            callback, self._callback = self._callback, None
            if callback is not None:
                callback(self)


class Gathered:
    """Messages for one append to an hour. It knows the runs, their parts do not: a cycle would wait for the
    garbage collector, with the messages of its run."""

    __slots__ = ("_runs", "builder", "dues_ms", "first_ms", "number", "parts")

    def __init__(self, number: int, first_ms: int) -> None:
        """`number`: of the hour."""
        self.number = number
        self.builder = BatchBuilder()
        self.dues_ms: list[int] = []
        self.parts: list[Part] = []
        # The run of each part.
        self._runs: list[Accepted] = []
        # The earliest due time.
        self.first_ms = first_ms

    def add(self, run: Accepted, row: int, topic: bytes, value: bytes, due_ms: int) -> None:
        part = self.parts[-1] if self.parts else None
        if part is None or self._runs[-1] is not run or part.first_row + part.count != row:
            part = Part(row)
            self.parts.append(part)
            self._runs.append(run)
        part.count += 1
        self.builder.add(value, due_ms * MILLISECOND_US, topic)
        self.dues_ms.append(due_ms)
        self.first_ms = min(self.first_ms, due_ms)

    def settle(
        self, first_offset: int, error: BaseException | None, offsets: list[int] | None = None
    ) -> None:
        """Tells the runs. `offsets`: of each message, where they do not follow each other."""
        if offsets is not None and error is None:
            self._settle_apart(offsets)
            return
        offset = first_offset
        for run, part in zip(self._runs, self.parts, strict=True):
            part.first_id = message_id(self.number, offset)
            part.error = error
            offset += part.count
            run.settle(part)

    def _settle_apart(self, offsets: list[int]) -> None:
        """Another process wrote between them: a part of its own wherever that is."""
        at = 0
        for run, whole in zip(self._runs, self.parts, strict=True):
            part = Part(whole.first_row)
            for row in range(whole.first_row, whole.first_row + whole.count):
                if part.count and offsets[at] != offsets[at - 1] + 1:
                    run.settle(part)
                    part = Part(row)
                if not part.count:
                    part.first_id = message_id(self.number, offsets[at])
                part.count += 1
                at += 1
            run.settle(part)
