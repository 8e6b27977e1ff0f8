"""What was read of partitions, or appended by this gateway, kept in memory as views, within a limit.

A block covers offsets from `start` up to, not including, `end`. Offsets in it that have no record
(markers of transactions, what compaction removed) are covered too, so that a reader goes on behind them.
Blocks of a partition do not overlap. Which offsets are visible is not known here. Used by the event loop
alone.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from penstock.log.batch.view import BatchView

# Around a block: its objects, and those of its view.
BLOCK_OVERHEAD_BYTES: Final = 1_000

Place = tuple[str, int]


class Block:
    """`view`: None where there is no record."""

    __slots__ = ("end", "place", "size", "start", "view")

    def __init__(self, place: Place, start: int, end: int, view: BatchView | None) -> None:
        self.place = place
        self.start = start
        self.end = end
        self.view = view
        payload = 0 if view is None else view.body_end - view.body_at
        self.size = payload + BLOCK_OVERHEAD_BYTES


class Blocks:
    """Of all partitions; the block that was used longest ago goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._by_place: dict[Place, tuple[list[int], list[Block]]] = {}
        self._used: OrderedDict[int, Block] = OrderedDict()

    def find(self, place: Place, offset: int) -> Block | None:
        """The block that covers the offset."""
        starts_and_blocks = self._by_place.get(place)
        if starts_and_blocks is None:
            return None
        starts, blocks = starts_and_blocks
        at = bisect_right(starts, offset) - 1
        if at < 0 or blocks[at].end <= offset:
            return None
        block = blocks[at]
        self._used.move_to_end(id(block))
        return block

    def put(self, place: Place, start: int, end: int, view: BatchView | None) -> None:
        """Leaves out what is covered already: the same offsets always have the same records."""
        if end <= start or self.find(place, start) is not None:
            return
        block = Block(place, start, end, view)
        if block.size > self.max_bytes:
            return
        starts, blocks = self._by_place.setdefault(place, ([], []))
        at = bisect_right(starts, start)
        while at < len(blocks) and blocks[at].start < end:
            self._remove(blocks[at])
        starts.insert(at, start)
        blocks.insert(at, block)
        self._by_place[place] = (starts, blocks)
        self._used[id(block)] = block
        self.bytes += block.size
        while self.bytes > self.max_bytes:
            self._remove(next(iter(self._used.values())))

    def drop(self, place: Place) -> None:
        """Of a partition whose topic is gone."""
        for block in list(self._by_place.get(place, ((), ()))[1]):
            self._remove(block)

    def _remove(self, block: Block) -> None:
        starts, blocks = self._by_place[block.place]
        at = bisect_right(starts, block.start) - 1
        del starts[at], blocks[at]
        if not blocks:
            del self._by_place[block.place]
        del self._used[id(block)]
        self.bytes -= block.size
