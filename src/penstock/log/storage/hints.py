"""Where sequential readers of a partition stopped: saves them the walk from the last index entry."""

from penstock.log.storage.segment import Segment


class ReadHints:
    """Only a help: without a hint the index finds the place."""

    # Readers of one partition that go on in turns; more only walk up to one index stride each.
    MAX_READERS = 64

    def __init__(self) -> None:
        # By segment object, not by name: a segment that was rewritten is another object.
        self._positions: dict[tuple[Segment, int], int] = {}

    def put(self, segment: Segment, offset: int, position: int) -> None:
        if len(self._positions) >= self.MAX_READERS:
            self._positions = {}
        self._positions[segment, offset] = position

    def take(self, segment: Segment, offset: int) -> int | None:
        return self._positions.get((segment, offset))
