"""Batches with the number of their producer: each is stored once, whichever gateway gets the repeat.

The last number of a producer is a record of the metadata, and the batch a small transaction whose name
says which one it is: repeated, it changes nothing, also when the gateway died before the number was
written down.
"""

from typing import Final

import msgspec

from penstock.kafka.transactions.transactions import KafkaTransactions
from penstock.log.batch.format import Batch
from penstock.log.engine import AppendToken
from penstock.log.errors import FencedProducer, RecordConflict, SequenceGap
from penstock.log.records import ABSENT, Metadata, Space, join_name

PRODUCERS: Final = "kafka-producers"
# Two gateways that get batches of one producer at once: one of them has to look again.
TRIES: Final = 5


class Last(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    sequence: int


class Idempotence:
    """Calls wait for Kafka: run them in a thread."""

    def __init__(self, metadata: Metadata, transactions: KafkaTransactions) -> None:
        self._metadata = metadata
        self._space = Space(metadata, PRODUCERS, Last)
        self._transactions = transactions

    def append(self, topic: str, partition: int, batch: Batch, token: AppendToken) -> None:
        """Raises FencedProducer, SequenceGap, and what a transaction raises."""
        name = join_name(topic, partition, batch.producer_id)
        for left in reversed(range(TRIES)):
            known = self._space.get(name)
            if known is not None and _is_repeat(batch, known.value):
                token.repeated = True
                return
            _check(batch, None if known is None else known.value)
            unique = join_name(name, batch.epoch, batch.sequence)
            self._transactions.commit_at_once(f"producer/{unique}", [(topic, partition, batch)])
            now = Last(batch.epoch, batch.sequence)
            version = ABSENT if known is None else known.version
            try:
                self._metadata.change([self._space.put(name, now, version)]).result()
            except RecordConflict:
                if not left:
                    raise
                continue
            return


def _is_repeat(batch: Batch, last: Last) -> bool:
    return batch.epoch == last.epoch and batch.sequence <= last.sequence


def _check(batch: Batch, last: Last | None) -> None:
    if last is not None and batch.epoch < last.epoch:
        raise FencedProducer(batch.producer_id, batch.epoch, last.epoch)
    new = last is None or batch.epoch > last.epoch
    expected = 0 if new or last is None else last.sequence + 1
    if batch.sequence != expected:
        raise SequenceGap(batch.producer_id, batch.sequence, expected)
