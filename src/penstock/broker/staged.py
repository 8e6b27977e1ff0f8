"""Records that a transaction holds in memory, and what they cost. Values only."""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.broker.records import TURN_BYTES
from penstock.log.batch.view import Headers

# What a record takes in memory besides its bytes: so many empty ones count, too.
RECORD_COST_BYTES: Final = 64


class Staged:
    """Records of one topic, in the order of their arrival. `headers`: None where no record has one."""

    __slots__ = ("headers", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.headers: list[Headers] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def add(self, values: Sequence[bytes], headers: Sequence[Headers] | None) -> None:
        if headers is not None and self.headers is None:
            self.headers = [[] for _ in self.values]
        self.values.extend(values)
        if self.headers is not None:
            self.headers.extend([[] for _ in values] if headers is None else headers)

    def drop_last(self, count: int) -> None:
        del self.values[-count:]
        if self.headers is not None:
            del self.headers[-count:]

    def runs(self) -> "Iterator[Staged]":
        """Parts of what a partition takes in its turn."""
        first = 0
        for end in _run_ends(self.values):
            run = Staged()
            run.add(
                self.values[first:end], None if self.headers is None else self.headers[first:end]
            )
            yield run
            first = end


def _run_ends(values: list[bytes]) -> Iterator[int]:
    size = 0
    for row, value in enumerate(values):
        size += len(value)
        if size >= TURN_BYTES or row == len(values) - 1:
            yield row + 1
            size = 0


def cost_of(headers: Sequence[Headers] | None) -> int:
    if headers is None:
        return 0
    return sum(
        RECORD_COST_BYTES + len(name) + len(content) for one in headers for name, content in one
    )
