"""Which partitions of a topic this process may hand out to the readers of a group.

Where one process serves the log, it is all of them, at once and for good (`WHOLE_TOPIC`). Where several
do, the engine shares them out: a partition comes, stays for a while, and goes to another process. Whoever
asks for a share is told of it by two callbacks, on the event loop:

    giving_away    some may go to another process in a moment. Hand out nothing more until `changed`, and
                   say what has still to be committed: the engine waits for that, not for long
    changed        what is held is known again. What is held no longer is the business of others now
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.log.pending import Pending

Changed = Callable[[], None]
GivingAway = Callable[[], Sequence[Pending[object]]]


class Share(Protocol):
    """Of one group on one topic, until `leave`."""

    @property
    def is_whole(self) -> bool:
        """No other process reads for the group: always all partitions, and no callback comes."""
        ...

    @property
    def ready(self) -> Pending[object] | None:
        """Done when it is known for the first time what is held; None when it is."""
        ...

    @property
    def had_others(self) -> bool:
        """Whether others were reading for the group when this process began to."""
        ...

    def held(self, partitions: int) -> Sequence[int]:
        """Of so many partitions those that this process may hand out, in order."""
        ...

    def committed(self, partition: int) -> int | None:
        """Of a partition that is held and not of a whole topic: what the group had committed when it came
        here, as of that moment, whoever did it."""
        ...

    def leave(self) -> None:
        """Nobody here reads for it any more. The last share of a group takes the process out of it."""
        ...


class _WholeTopic:
    is_whole: Final = True
    ready: Final = None
    had_others: Final = False

    def held(self, partitions: int) -> Sequence[int]:
        return range(partitions)

    def committed(self, partition: int) -> int | None:
        raise AssertionError(f"ask the engine for the committed offset of partition {partition}")

    def leave(self) -> None:
        """There is nothing to leave."""


WHOLE_TOPIC: Final[Share] = _WholeTopic()
