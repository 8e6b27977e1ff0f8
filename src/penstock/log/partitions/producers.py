"""Idempotent producers of one partition: the last stored batch of each, and its offset.

A producer numbers its batches 0, 1, 2, ... within an epoch. A repeat is recognised however late it
comes, because numbers are stored without gaps. Its offset is known for the last runs: batches of the same
size that lie one behind the other are one run, so a producer that is alone in its partition and sends
equal batches is remembered from its first one on. State is rebuilt from the batches of the log and from
the snapshot written at each seal.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

from penstock.log.errors import FencedProducer, SequenceGap

# Each run holds a batch at least, and clients keep no more than 16 that are not confirmed: what they repeat
# after a lost connection is remembered, twice over.
REMEMBERED_RUNS = 32
# Producers kept per partition, least recently seen go first: 250 to 900 bytes each, 9 MiB at the most.
# One that comes back after being forgotten must begin a new epoch.
MAX_PRODUCERS = 10_000
# Set in the ids under which transactions write: no client is given such a one. They are counted for
# themselves: one that waits for space must not be forgotten for others, or it would be stored twice.
TRANSACTION_BIT = 1 << 63
_SEQUENCES = 1 << 32

# The snapshot, little-endian: 4s magic, u32 crc32c of the rest, then per producer
#   u64 id, u32 epoch, u32 last sequence, u32 runs, then that many runs:
#   u32 first sequence, u32 batches, u32 records of each batch, i64 base offset of the first batch
# Snapshots of before have the other magic, and single batches in the place of runs:
#   u32 sequence, u32 records, i64 base offset
_PREFIX = Struct("<4sI")
_PRODUCER = Struct("<QIII")
_RUN = Struct("<IIIq")
_MAGIC = b"PSP2"
_BATCH = Struct("<IIq")
_MAGIC_OF_BATCHES = b"PSPR"


class SnapshotDamaged(Exception):
    """The snapshot cannot be used; rebuild the state from the batches."""


@dataclass(frozen=True, slots=True)
class Producer:
    """`runs` are packed as in the snapshot: as objects they would take ten times the memory."""

    epoch: int
    last_sequence: int
    runs: bytes

    def offset_of(self, sequence: int) -> int:
        """Where the batch of this number begins; -1 when that is not remembered."""
        for first, batches, count, base_offset in _runs(self.runs):
            place = (sequence - first) % _SEQUENCES
            if place < batches:
                return base_offset + place * count
        return -1


def _runs(packed: bytes) -> Iterator[tuple[int, int, int, int]]:
    return _RUN.iter_unpack(packed)


def _with_batch(runs: bytes, sequence: int, count: int, base_offset: int) -> bytes:
    """The runs with one batch more at their end, in the last run where it fits."""
    if runs:
        first, batches, records, base = _RUN.unpack(runs[-_RUN.size :])
        follows = (first + batches) % _SEQUENCES == sequence
        if follows and records == count and base + batches * count == base_offset:
            return runs[: -_RUN.size] + _RUN.pack(first, batches + 1, count, base)
    runs += _RUN.pack(sequence, 1, count, base_offset)
    return runs[-REMEMBERED_RUNS * _RUN.size :]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A batch that is stored already. The base offset is -1 when it is too old to be remembered."""

    base_offset: int


class ProducerTable:
    def __init__(self) -> None:
        self._clients: OrderedDict[int, Producer] = OrderedDict()
        self._transactions: OrderedDict[int, Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients) + len(self._transactions)

    def _kind(self, producer_id: int) -> OrderedDict[int, Producer]:
        return self._transactions if producer_id & TRANSACTION_BIT else self._clients

    def copy(self) -> "ProducerTable":
        other = ProducerTable()
        other._clients = self._clients.copy()
        other._transactions = self._transactions.copy()
        return other

    def last_sequence(self, producer_id: int) -> int | None:
        """Of the batch that was stored last; None for a producer that is not known."""
        known = self._kind(producer_id).get(producer_id)
        return None if known is None else known.last_sequence

    def check(self, producer_id: int, epoch: int, sequence: int) -> Repeat | None:
        """None when the batch is the next one; raises FencedProducer or SequenceGap."""
        known = self._kind(producer_id).get(producer_id)
        if known is None:
            # Not any number: the batch before it may just have been refused. Sent again, that one
            # would count as stored.
            if sequence != 0:
                raise SequenceGap(producer_id, sequence, 0)
            return None
        if epoch < known.epoch:
            raise FencedProducer(producer_id, epoch, known.epoch)
        if epoch > known.epoch:
            if sequence != 0:
                raise SequenceGap(producer_id, sequence, 0)
            return None
        expected = (known.last_sequence + 1) % _SEQUENCES
        if sequence == expected:
            return None
        base_offset = known.offset_of(sequence)
        if base_offset >= 0:
            return Repeat(base_offset)
        # Numbers wrap round: what is less than half the circle behind was stored, else it is ahead.
        if (expected - sequence) % _SEQUENCES < _SEQUENCES // 2:
            return Repeat(-1)
        raise SequenceGap(producer_id, sequence, expected)

    def stored(
        self, producer_id: int, epoch: int, sequence: int, base_offset: int, count: int
    ) -> Producer | None:
        """Takes note of a batch that is now in the log. Gives what was known before.

        A batch that is noted already (recovery may walk what a snapshot holds) changes nothing.
        """
        kind = self._kind(producer_id)
        known = kind.pop(producer_id, None)
        runs = b""
        if known is not None and known.epoch == epoch:
            if known.offset_of(sequence) == base_offset:
                kind[producer_id] = known
                return known
            runs = known.runs
        runs = _with_batch(runs, sequence, count, base_offset)
        kind[producer_id] = Producer(epoch, sequence, runs)
        if len(kind) > MAX_PRODUCERS:
            kind.popitem(last=False)
        return known

    def restore(self, producer_id: int, previous: Producer | None) -> None:
        """Takes `stored` back: the write of the batch failed."""
        kind = self._kind(producer_id)
        kind.pop(producer_id, None)
        if previous is not None:
            kind[producer_id] = previous

    def encode(self) -> bytes:
        parts = []
        for producer_id, producer in (*self._clients.items(), *self._transactions.items()):
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_sequence,
                    len(producer.runs) // _RUN.size,
                )
            )
            parts.append(producer.runs)
        body = b"".join(parts)
        return _PREFIX.pack(_MAGIC, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> "ProducerTable":
        """Raises SnapshotDamaged."""
        if len(data) < _PREFIX.size:
            raise SnapshotDamaged("too short")
        magic, checksum = _PREFIX.unpack_from(data)
        if magic not in (_MAGIC, _MAGIC_OF_BATCHES) or crc32c(data[_PREFIX.size :]) != checksum:
            raise SnapshotDamaged("checksum does not match")
        table = cls()
        position = _PREFIX.size
        while position < len(data):
            producer_id, epoch, last, remembered = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            size = remembered * (_RUN.size if magic == _MAGIC else _BATCH.size)
            runs = data[position : position + size]
            position += size
            if magic == _MAGIC_OF_BATCHES:
                runs = b"".join(
                    _RUN.pack(sequence, 1, count, base)
                    for sequence, count, base in _BATCH.iter_unpack(runs)
                )
            table._kind(producer_id)[producer_id] = Producer(epoch, last, runs)
        return table
