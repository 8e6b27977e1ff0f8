"""Reads the records of a delivery: from runs of offsets to views on stored batches.

Goes on at once where memory has them, and waits where the disk is asked. Decides nothing about retries.
"""

import logging
from collections.abc import Callable

from penstock.broker.counters import SubscriptionCounters
from penstock.broker.delivery.inflight import Run
from penstock.log.batch.view import BatchView
from penstock.log.engine import Engine, Pending, ReadResult
from penstock.log.errors import LogError, OffsetOutOfRange

logger = logging.getLogger(__name__)

Delivery = list[tuple[Run, list[BatchView]]]


class Collection:
    """One delivery being read: goes from run to run, and waits where the disk is asked."""

    def __init__(
        self,
        engine: Engine,
        counters: SubscriptionCounters,
        topic: str,
        runs: list[Run],
        done: Callable[[Delivery], None],
    ) -> None:
        self._engine = engine
        self._counters = counters
        self._topic = topic
        self._runs = runs
        self._done = done
        self._delivery: Delivery = []
        self._views: list[BatchView] = []
        self._offset = runs[0].first_offset if runs else 0

    def go_on(self) -> None:
        while len(self._delivery) < len(self._runs):
            run = self._runs[len(self._delivery)]
            end = run.first_offset + run.count
            if self._offset >= end:
                self._finish_run(run)
                continue
            size = max(run.size_bytes, 1)
            try:
                read = self._engine.read(
                    self._topic, run.partition, self._offset, size, early=run.at_most_once
                )
            except LogError:
                self._give_up(run)
                continue
            if not read.done:
                read.on_done(self._read)
                return
            self._take(read)
        self._done(self._delivery)

    def _read(self, read: Pending[ReadResult]) -> None:
        self._take(read)
        self.go_on()

    def _take(self, read: Pending[ReadResult]) -> None:
        run = self._runs[len(self._delivery)]
        end = run.first_offset + run.count
        if isinstance(read.error, OffsetOutOfRange) and self._offset < read.error.earliest < end:
            self._offset = read.error.earliest  # the log keeps the rest of the run
            return
        if read.error is not None:
            logger.warning("delivery of %s: %s", self._topic, read.error)
            self._give_up(run)
            return
        result = read.result()
        for view in result.views:
            last = min(view.row_at(end), view.last_row)
            if view.first_row < last:
                self._views += dense_parts(view, last)
        self._offset = max(result.next_offset, self._offset + 1)

    def _give_up(self, run: Run) -> None:
        """What cannot be read cannot be delivered; it is counted, and tried again by the retries."""
        found = sum(len(view) for view in self._views)
        self._counters.unreadable += run.count - found
        self._finish_run(run)

    def _finish_run(self, run: Run) -> None:
        self._delivery.append((run, self._views))
        self._views = []
        if len(self._delivery) < len(self._runs):
            self._offset = self._runs[len(self._delivery)].first_offset


def dense_parts(view: BatchView, last_row: int) -> list[BatchView]:
    """The rows as views without gaps: compaction may have taken records out of a queued run."""
    if not view.offsets_at:
        return [view.rows(view.first_row, last_row)]
    parts = []
    first = row = view.first_row
    while row < last_row:
        row += 1
        if row == last_row or view.offset_of(row) != view.offset_of(row - 1) + 1:
            parts.append(view.rows(first, row))
            first = row
    return parts
