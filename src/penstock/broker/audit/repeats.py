"""Events that peers can cause without end: logins and refusals. The same one is written once in a while.

In a window of a minute the first of each is written at once. The others are counted, and one event at the
end of the window says how many there were. Of one address, and of all together, there are a limited number
of different ones in a window; what is beyond is only counted, by its type, and the event `trail.omitted`
says how many there were.

Writes nothing itself (trail.py). Belongs to the event loop.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

# Often enough to see that it goes on, seldom enough that a client in a loop does not fill the trail.
WINDOW_S: Final = 60.0
# Different events of one kind in a window: 1 KiB each. An address gets a part of them, so that a peer that
# tries names does not hide what others do.
MAX_DIFFERENT: Final = 1_000
MAX_OF_ADDRESS: Final = 50


@dataclass(frozen=True, slots=True)
class Same:
    """What makes two events the same."""

    type: str
    user: str
    address: str
    door: str
    resource: str
    action: str
    reason: str


class Repeats:
    def __init__(self) -> None:
        # By type: how often each came after the first time.
        self._seen: dict[str, dict[Same, int]] = {}
        self._of_address: Counter[tuple[str, str]] = Counter()
        self._omitted: Counter[str] = Counter()

    def is_new(self, one: Same) -> bool:
        """Whether it has to be written now."""
        seen = self._seen.setdefault(one.type, {})
        if one in seen:
            seen[one] += 1
            return False
        address = one.type, one.address
        if len(seen) >= MAX_DIFFERENT or self._of_address[address] >= MAX_OF_ADDRESS:
            self._omitted[one.type] += 1
            return False
        seen[one] = 0
        self._of_address[address] += 1
        return True

    def omit(self, kind: str) -> None:
        """One that could not be written is counted with those."""
        self._omitted[kind] += 1

    def end(self) -> tuple[list[tuple[Same, int]], dict[str, int]]:
        """Of the window: what was repeated and how often, and how many were left out by type."""
        repeated = [
            (one, more) for seen in self._seen.values() for one, more in seen.items() if more
        ]
        omitted = dict(self._omitted)
        self._seen = {}
        self._of_address.clear()
        self._omitted.clear()
        return repeated, omitted

    def __len__(self) -> int:
        return sum(map(len, self._seen.values()))
