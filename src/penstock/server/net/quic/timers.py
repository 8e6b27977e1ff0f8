"""When connections want to be looked at: a heap of times. Hot: compiled by mypyc.

A time that moves on is not put in anew with every packet: the earliest one stays, and who is looked at too
early is put in again. Knows no clock.
"""

from heapq import heappop, heappush

from penstock.quic.link import Link


class Timers:
    """A link is in it once at most for a time that counts: that of its `timer_at_s`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._links: dict[int, Link] = {}

    def set(self, link: Link, at_s: float) -> None:
        """Not later than this. Does nothing if it is in for an earlier time."""
        known_s = link.timer_at_s
        if known_s is not None and known_s <= at_s:
            return
        link.timer_at_s = at_s
        self._links[link.serial] = link
        heappush(self._heap, (at_s, link.serial))

    def forget(self, link: Link) -> None:
        link.timer_at_s = None
        self._links.pop(link.serial, None)

    def due(self, now_s: float) -> Link | None:
        """One whose time has come; it is not in any more."""
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            at_s, serial = heappop(heap)
            link = self._links.get(serial)
            if link is not None and link.timer_at_s == at_s:
                link.timer_at_s = None
                return link
        return None

    def next_s(self) -> float | None:
        """The earliest time."""
        heap = self._heap
        while heap:
            at_s, serial = heap[0]
            link = self._links.get(serial)
            if link is not None and link.timer_at_s == at_s:
                return at_s
            heappop(heap)
        return None
