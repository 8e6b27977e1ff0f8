"""How far readers may read a partition: the watchers of new records, and what transactions hold back.

Not thread-safe: the partition holds its lock. Knows offsets only, not how they got to be durable.
"""

from penstock.log.partitions.outcome import Callback


class Visibility:
    """`offset` is the first record that is not visible. It never goes back, except for a transaction that a
    restart finds partly applied.

    `early` is the same for consumers at most once: written, but maybe not durable yet.
    """

    __slots__ = ("_early_watcher", "_holds", "_watchers", "early", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.early = offset
        # One is enough: what follows a partition for many is the broker's feed.
        self._early_watcher: tuple[int, Callback] | None = None
        self._watchers: list[tuple[int, Callback]] = []
        # By transaction: nothing from this offset on is shown before its release. Several may hold, one
        # behind the other: the end of the first must not wait for that of the last.
        self._holds: dict[int, int] = {}

    def show(self, end_offset: int) -> list[Callback]:
        """Records up to here become visible unless a transaction holds them; returns watchers to wake."""
        if self._holds:
            end_offset = min(end_offset, *self._holds.values())
        self.offset = max(self.offset, end_offset)
        self.early = max(self.early, self.offset)
        if not self._watchers:
            return []
        due = [callback for offset, callback in self._watchers if offset < self.offset]
        if due:
            self._watchers = [entry for entry in self._watchers if entry[0] >= self.offset]
        return due

    def written(self, base_offset: int, end_offset: int) -> None:
        """Messages at most once were written, behind nothing that is not shown yet."""
        if base_offset == self.early and not self._holds:
            self.early = end_offset

    def watch_early(self, offset: int, callback: Callback) -> bool:
        """False when there is something at `offset` already."""
        if offset < self.early:
            return False
        self._early_watcher = (offset, callback)
        return True

    def take_early(self) -> list[Callback]:
        """The watchers of records that were written meanwhile."""
        watcher = self._early_watcher
        if watcher is None or watcher[0] >= self.early:
            return []
        self._early_watcher = None
        return [watcher[1]]

    def hold(self, transaction_id: int, from_offset: int) -> None:
        self._holds[transaction_id] = from_offset
        self.offset = min(self.offset, from_offset)
        self.early = min(self.early, from_offset)

    def release(self, transaction_id: int) -> None:
        del self._holds[transaction_id]

    def is_held_before(self, transaction_id: int, other_id: int) -> bool:
        """Whether the other one keeps back what this one shows."""
        own, other = self._holds.get(transaction_id), self._holds.get(other_id)
        return own is not None and other is not None and other < own

    def watch(self, offset: int, callback: Callback) -> None:
        self._watchers.append((offset, callback))

    def unwatch(self, callback: Callback) -> None:
        self._watchers = [entry for entry in self._watchers if entry[1] != callback]
        if self._early_watcher is not None and self._early_watcher[1] == callback:
            self._early_watcher = None

    def end(self) -> list[Callback]:
        """The end of the partition: returns all watchers."""
        watchers, self._watchers = self._watchers, []
        return [callback for _, callback in watchers]
