"""The records of one publish, and the choice of partitions for records without one.

Values only: knows no principals, and writes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.broker.errors import RecordTooLarge
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import FLAG_AT_MOST_ONCE, Batch, encode_values
from penstock.log.batch.key_partition import partition_of
from penstock.log.batch.origin import origin_flags
from penstock.log.batch.view import Headers

# What a partition takes of keyless records before the next one has its turn: large enough that runs stay
# whole batches, small enough that a few megabytes of one publisher are spread evenly.
TURN_BYTES: Final = 64 * 1024


class Records:
    """Records of one publish, to one topic. Keys, headers and expiries (0: never) stand beside the values,
    where there are any; `batch` is there when the peer sent columns that are encoded and checked already.
    `time_us`: of the records, once they are published. `checked`: they fit the schema of their topic."""

    __slots__ = (
        "at_most_once",
        "batch",
        "checked",
        "expiries",
        "headers",
        "keys",
        "time_us",
        "values",
    )

    def __init__(
        self,
        values: list[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        *,
        expiries: Sequence[int] | None = None,
        at_most_once: bool = False,
        batch: Batch | None = None,
    ) -> None:
        """`expiries`: by the clock of Engine.run_us."""
        self.values = values
        self.keys = keys
        self.headers = headers
        self.expiries = expiries
        self.at_most_once = at_most_once
        self.batch = batch
        self.time_us = 0
        self.checked = False

    def encoded(self, clock_us: Callable[[], int], door: str = "") -> Batch:
        """The batch for the log, with the door that the records came in by. Raises BatchError for what no
        batch can hold."""
        batch = self.batch
        if batch is None:
            batch = self._encoded(clock_us)
        batch.flags |= origin_flags(door)
        return batch

    def _encoded(self, clock_us: Callable[[], int]) -> Batch:
        self.time_us = clock_us()
        if self.keys is None and self.headers is None and self.expiries is None:
            batch = encode_values(self.values, self.time_us)
        else:
            batch = self._built(self.time_us)
        if self.at_most_once:
            batch.flags |= FLAG_AT_MOST_ONCE
        return batch

    def _built(self, now_us: int) -> Batch:
        builder = BatchBuilder()
        for number, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[number]
            headers = None if self.headers is None else self.headers[number]
            expiry_us = 0 if self.expiries is None else self.expiries[number]
            builder.add(value, now_us, key, headers, expiry_us)
        return builder.build()

    def check(self, batch: Batch, limit: int) -> None:
        """Raises RecordTooLarge. A batch within the limit has no record over it: none is looked at."""
        if batch.size() > limit and self.values and max(map(len, self.values)) > limit:
            raise RecordTooLarge(limit)

    def some(self, rows: Sequence[int]) -> "Records":
        """A part of them, by their numbers."""
        found = Records(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            expiries=None if self.expiries is None else [self.expiries[row] for row in rows],
            at_most_once=self.at_most_once,
        )
        found.checked = self.checked
        return found

    def parts(self, partitions: int, turn: Callable[[int], int]) -> "list[Part]":
        """By the partition of their keys; those without a key take the turn of `turn(bytes)`."""
        keys = self.keys
        if partitions == 1:
            return [Part(0, self, None)]
        if keys is None:
            return [Part(turn(sum(map(len, self.values))), self, None)]
        chosen: dict[int, list[int]] = {}
        own_turn = -1
        for row, key in enumerate(keys):
            if key is not None:
                partition = partition_of(key, partitions)
            else:
                if own_turn < 0:
                    own_turn = turn(sum(map(len, self.values)))
                partition = own_turn
            chosen.setdefault(partition, []).append(row)
        if len(chosen) == 1:
            return [Part(next(iter(chosen)), self, None)]
        return [Part(partition, self.some(rows), rows) for partition, rows in chosen.items()]


class Part(NamedTuple):
    """Records for one partition, and their numbers among those that were placed; None: all of them."""

    partition: int
    records: Records
    rows: list[int] | None


class Turns:
    """Chooses the partition of records that name none: each partition in turn, in runs.

    All publishers of a topic share the turns. Within a partition the records of a publisher stay in
    their order.
    """

    def __init__(self) -> None:
        # By topic: whose turn it is, and what it has taken.
        self._turns: dict[str, tuple[int, int]] = {}

    def take(self, topic: str, partitions: int, size: int) -> int:
        """The partition for a batch of `size` bytes."""
        if partitions == 1:
            return 0
        partition, taken = self._turns.get(topic, (0, 0))
        if taken >= TURN_BYTES:
            partition, taken = partition + 1, 0
        partition %= partitions
        self._turns[topic] = (partition, taken + size)
        return partition

    def forget(self, topic: str) -> None:
        self._turns.pop(topic, None)
