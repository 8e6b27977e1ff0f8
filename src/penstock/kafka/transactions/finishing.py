"""Commits after their decision: applied by this gateway, or by another one that is at it.

Everything here can be repeated at will, by any gateway: see once.py.
"""

import logging
from typing import Final

from confluent_kafka import KafkaException

from penstock.kafka.transactions.filling import Filling
from penstock.kafka.transactions.journal import Journal
from penstock.kafka.transactions.once import NotApplied, Once
from penstock.kafka.transactions.producers import DeliveryFailed, Lent, Producers
from penstock.kafka.transactions.rows import Head, Rows
from penstock.kafka.transactions.staging import Staging
from penstock.kafka.transactions.targets import Targets
from penstock.log.errors import (
    CommitUnfinished,
    LogError,
    StagingDamaged,
    StoreTrouble,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata_errors import MetadataError
from penstock.log.records import Kept

# A decision that is older and not finished is anybody's to finish.
FINISH_AFTER_US: Final = 5_000_000

logger = logging.getLogger(__name__)


class Finisher:
    """Thread-safe. `reach_s`: how long Kafka may take for one step."""

    def __init__(
        self,
        rows: Rows,
        staging: Staging,
        journal: Journal,
        once: Once,
        producers: Producers,
        targets: Targets,
        with_origin: bool,
        reach_s: float,
    ) -> None:
        self._rows = rows
        self._staging = staging
        self._journal = journal
        self._once = once
        self._producers = producers
        self._targets = targets
        self._with_origin = with_origin
        self._reach_s = reach_s
        # The last complaint about each: the same one is not logged again.
        self._told: dict[str, str] = {}

    def finish(self, head: Kept[Head]) -> None:
        """Applies what is decided. Whatever keeps it from that now, the answer says that it is decided."""
        one = head.value

        def fill(lent: Lent) -> None:
            filling = Filling(lent, self._with_origin, self._reach_s)
            for piece, batch in self._staging.read(one.id, self._rows.pieces(one.id, one.tasks)):
                try:
                    self._targets.check(piece)
                except (UnknownTopic, UnknownPartition):
                    logger.warning(
                        "transaction %r: %s/%d is gone by now",
                        head.name,
                        piece.topic,
                        piece.partition,
                    )
                    continue
                filling.add(piece.topic, piece.partition, batch)

        try:
            self._once.apply(head.name, one.rows, fill, self._producers)
        except StagingDamaged as error:
            # Kafka has dropped all of it, and nobody else is at it.
            self._rows.changed(self._rows.remove(head))
            logger.error("transaction %r is rolled back: %s", head.name, error)
            raise error.after_rollback() from None
        except (NotApplied, DeliveryFailed, StoreTrouble) as error:
            raise CommitUnfinished(str(error)) from error
        self._told.pop(head.name, None)
        self._rows.change_soon(self._rows.remove(head))

    def finish_all(self, now_us: int) -> None:
        """Finishes what was decided some time ago and nobody is at; ends what dead gateways left."""
        for head in self._rows.all_heads():
            if head.value.state == "open":
                continue
            if self._journal.committed(head.name) is not None:
                self._rows.change_soon(self._rows.remove(head))
            elif head.value.updated_us <= now_us - FINISH_AFTER_US and self._once.is_free(
                head.name
            ):
                self._finish_later(head)
        try:
            self._once.end_orphans(self._producers)
        except KafkaException as error:
            logger.debug("Kafka is away: %s", error)

    def _finish_later(self, head: Kept[Head]) -> None:
        try:
            self.finish(head)
        except (LogError, MetadataError) as error:
            text = str(error)
            if self._told.get(head.name) != text:
                self._told[head.name] = text
                logger.error("transaction %r is tried again: %s", head.name, error)
