"""Groups that only show progress, and are forgotten when they have not moved for long.

A streaming query of Spark shows its lag as that of a group with a name that nobody chose, and every new
checkpoint makes another one. Where it goes on is in the checkpoint: nothing is lost with the group. Groups
of consumers are never forgotten by themselves.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.log.engine import Engine
from penstock.log.pending import Pending
from penstock.log.records import Delete, Put

SPACE: Final = "shown_groups"
EXPIRE_EVERY_S: Final = 3600.0
SECOND_US: Final = 1_000_000


class ShownRecord(msgspec.Struct, frozen=True):
    """Named as the group."""

    keep_s: int


class ShownGroups:
    """Lives on the event loop; `expire` runs in a thread."""

    def __init__(self, engine: Engine, clock_us: Callable[[], int]) -> None:
        self._engine = engine
        self._clock_us = clock_us
        # Those that were noted by this process.
        self._noted: dict[str, int] = {}

    def note(self, group: str, keep_s: int) -> Pending[int] | None:
        """The group is forgotten this long after its last commit. None: that was known."""
        if self._noted.get(group) == keep_s:
            return None
        self._noted[group] = keep_s
        value = msgspec.json.encode(ShownRecord(keep_s))
        return self._engine.metadata.change([Put(SPACE, group, value)])

    def expire(self) -> list[str]:
        """Forgets those whose time is over; gives their names."""
        now_us = self._clock_us()
        metadata = self._engine.metadata
        gone: list[str] = []
        for record in metadata.list(SPACE):
            keep_s = msgspec.json.decode(record.value, type=ShownRecord).keep_s
            updated_us = self._engine.group_updated_us(record.name)
            if updated_us is not None and now_us - updated_us < keep_s * SECOND_US:
                continue
            if updated_us is not None:
                self._engine.delete_group(record.name).result()
                gone.append(record.name)
            metadata.change([Delete(SPACE, record.name, record.version)]).result()
            self._noted.pop(record.name, None)
        return gone
