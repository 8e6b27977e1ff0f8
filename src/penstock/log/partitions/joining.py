"""Small appends that wait for the same write become one batch.

64 connections that publish one record each would else write 64 batches with a header, a checksum, an entry
of the index and one of the cache each. Each append keeps its own token, and gets its own offset. Batches of
idempotent producers stay as they are: repeats are recognised by batch. Does no I/O and assigns no offsets.

Hot: compiled by mypyc, runs uncompiled too.
"""

from typing import Final

from penstock.log.batch.format import (
    FLAG_AT_MOST_ONCE,
    ORIGIN_MASK,
    Batch,
    encode_timed_values,
    encode_values,
)
from penstock.log.partitions.tokens import AppendToken

# Of one joined batch. Readers hold a batch whole, and beyond this its header costs next to nothing.
MAX_JOINED_BYTES: Final = 64 * 1024

Queued = tuple[Batch, AppendToken]


class JoinedToken(AppendToken):
    """The token of a joined batch: its outcome is that of the appends which it holds."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[AppendToken], count: int) -> None:
        super().__init__(count)
        self._parts = parts

    def complete(self) -> None:
        offset = self.base_offset
        for part in self._parts:
            if self.error is None:
                part.base_offset = offset
                offset += part.count
            else:
                part.error = self.error
        super().complete()
        for part in self._parts:
            part.complete()


def joined(queue: list[Queued], limit: int) -> list[Queued]:
    """The same records in the same order, in fewer batches of at most `limit` bytes."""
    most = min(limit, MAX_JOINED_BYTES)
    found: list[Queued] = []
    some: list[Queued] = []
    size = 0
    for queued in queue:
        batch = queued[0]
        fits = batch.values is not None and not batch.flags & ~(FLAG_AT_MOST_ONCE | ORIGIN_MASK)
        if some and not (fits and batch.flags == some[0][0].flags and size + batch.size() <= most):
            found.append(_join(some))
            some, size = [], 0
        if fits:
            some.append(queued)
            size += batch.size()
        else:
            found.append(queued)
    if some:
        found.append(_join(some))
    return found


def _join(queue: list[Queued]) -> Queued:
    """Batches of plain values with the same flags."""
    if len(queue) == 1:
        return queue[0]
    values: list[bytes] = []
    times_us: list[int] = []
    tokens: list[AppendToken] = []
    for batch, token in queue:
        assert batch.values is not None
        values += batch.values
        times_us += [batch.first_time_us] * batch.count
        tokens.append(token)
    if min(times_us) == max(times_us):
        whole = encode_values(values, times_us[0])
    else:
        whole = encode_timed_values(values, times_us)
    whole.flags |= queue[0][0].flags
    return whole, JoinedToken(tokens, len(values))
