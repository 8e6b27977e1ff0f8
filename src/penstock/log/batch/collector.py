"""Takes rows of stored batches for one read: from an offset on, within a limit of bytes, without expired
ones.

Hot: compiled by mypyc, runs uncompiled too. Does no I/O: whoever has batches hands them in, in their order.
"""

from penstock.log.batch.view import BatchView


class Collector:
    """Takes views until the byte limit is reached; at least one record."""

    def __init__(self, offset: int, max_bytes: int, now_us: int) -> None:
        self.views: list[BatchView] = []
        self.offset = offset
        self.full = False
        self._budget = max_bytes
        self._now_us = now_us

    def take(self, batch: BatchView) -> None:
        first = batch.row_at(self.offset)
        if first < batch.count:
            rows = batch if first == 0 else batch.rows(first, batch.count)
            for run in rows.live(self._now_us):
                self._take_run(run)
                if self.full:
                    return
        self.offset = max(self.offset, batch.next_offset())

    def _take_run(self, run: BatchView) -> None:
        size = run.payload_bytes(run.first_row, run.last_row)
        if size <= self._budget:
            self.views.append(run)
            self._budget -= size
            return
        self.full = True
        rows = run.rows_within(self._budget)
        if rows == 0 and not self.views:
            rows = 1
        if rows:
            run = run.rows(run.first_row, run.first_row + rows)
            self.views.append(run)
            self.offset = run.next_offset()
        else:
            self.offset = run.first_offset()
