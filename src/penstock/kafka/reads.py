"""One read of a partition: from memory where it can, else by a fetch, and then from memory.

Where a read begins behind what is known here, or at an end that was not told lately, Kafka is asked
first. Used by the event loop alone.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from penstock.kafka.blocks import Blocks
from penstock.kafka.cluster import Cluster, Place
from penstock.kafka.ends import Ends
from penstock.kafka.reading import Fetched, RangeReaders
from penstock.log.batch.collector import Collector
from penstock.log.engine import Pending, ReadResult
from penstock.log.errors import LogError, OffsetOutOfRange

# Fetches of one read that bring nothing it can use: then it answers with nothing, and the caller asks
# again.
MAX_FETCHES: Final = 3

T = TypeVar("T")
# First offsets and ends.
BothEnds = tuple[dict[Place, int], dict[Place, int]]


class Ask(Protocol):
    """Asks in a thread; the answer comes in that of the loop."""

    def __call__(
        self,
        question: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[BaseException], object],
    ) -> None: ...


class Reads:
    """`run_us`: the clock that records expire by."""

    def __init__(
        self,
        cluster: Cluster,
        ends: Ends,
        blocks: Blocks,
        readers: RangeReaders,
        ask: Ask,
        run_us: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._ends = ends
        self._blocks = blocks
        self._readers = readers
        self._ask = ask
        self._run_us = run_us

    def keep(self, found: Fetched) -> None:
        self._blocks.put(found.place, found.start, found.end, found.view)
        self._ends.reached(found.place, found.end)

    def ask_ends(
        self,
        places: Sequence[Place],
        told: Callable[[BothEnds], None],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Of partitions as they are now; noted before `told` is called."""

        def noted(ends: BothEnds) -> None:
            self._ends.swept(*ends)
            told(ends)

        self._ask(
            lambda: (self._cluster.earliest(places), self._cluster.latest(places)), noted, failed
        )

    def read(
        self,
        token: Pending[ReadResult],
        place: Place,
        offset: int,
        max_bytes: int,
        fetches: int = MAX_FETCHES,
    ) -> None:
        """Settles the token, at once where the records are in memory."""
        known = self._ends.of(place)
        if offset < known.earliest:
            token.settle(None, OffsetOutOfRange(offset, known.earliest, known.latest))
            return
        at_end = offset == known.latest
        unsure = known.latest < known.stored or not self._ends.is_fresh(place)
        if offset > known.latest or (at_end and unsure):
            self._ask_again(token, place, offset, max_bytes)
            return
        collector = self._collect(place, offset, max_bytes, known.latest)
        if collector.views or collector.offset >= known.latest or not fetches:
            end = max(known.latest, collector.offset)
            token.settle(ReadResult(collector.views, collector.offset, end), None)
            return

        def fetched(found: Fetched | None, error: LogError | None) -> None:
            if isinstance(error, OffsetOutOfRange):
                self._ask_again(token, place, offset, max_bytes)
            elif error is not None:
                token.settle(None, error)
            else:
                if found is not None:
                    self.keep(found)
                self.read(token, place, offset, max_bytes, fetches - 1)

        try:
            self._readers.fetch(place, collector.offset, fetched)
        except LogError as error:
            token.settle(None, error)

    def _collect(self, place: Place, offset: int, max_bytes: int, end: int) -> Collector:
        """What is in memory from there on, without a hole."""
        collector = Collector(offset, max_bytes, self._run_us())
        while collector.offset < end and not collector.full:
            block = self._blocks.find(place, collector.offset)
            if block is None:
                break
            if block.view is not None:
                collector.take(block.view)
            if not collector.full:
                collector.offset = max(collector.offset, block.end)
        return collector

    def _ask_again(
        self, token: Pending[ReadResult], place: Place, offset: int, max_bytes: int
    ) -> None:
        """Beyond what is known here, or not: Kafka tells where the partition begins and ends."""

        def told(_: object) -> None:
            known = self._ends.of(place)
            known.stored = min(known.stored, known.latest)
            if known.earliest <= offset <= known.latest:
                self.read(token, place, offset, max_bytes)
            else:
                token.settle(None, OffsetOutOfRange(offset, known.earliest, known.latest))

        self.ask_ends([place], told, lambda error: token.settle(None, error))
