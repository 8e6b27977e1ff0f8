"""Duties that one gateway has at a time, such as delivering delayed messages when they are due.

The holder of a duty is a record of the metadata. A gateway takes a duty by compare and set, when nobody
has it or when the holder was not heard for a while (gateways.py). One that was paused and comes back
finds out by the feed of the metadata that another has it. Between the two both may believe to have it for
a moment: what a duty does must bear that.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.kafka.gateways import Gateways
from penstock.log.pending import Pending
from penstock.log.records import ABSENT, Metadata, RecordChange, Space

DUTIES: Final = "kafka-duties"

logger = logging.getLogger(__name__)


class Holder(msgspec.Struct, frozen=True, gc=False):
    gateway: str
    address: str


@dataclass(slots=True)
class _Duty:
    gained: Callable[[], None]
    lost: Callable[[str], None]
    # None: not known yet.
    held: bool | None = None
    # The change that takes it, until it is done: while Kafka is away there is one, and not one for each
    # look.
    taking: "Pending[int] | None" = None


class Duties:
    """`look` runs in the thread of the beats, everything else in that of the loop."""

    def __init__(
        self,
        metadata: Metadata,
        gateways: Gateways,
        post: Callable[[Callable[[], None]], object],
    ) -> None:
        self._metadata = metadata
        self._space = Space(metadata, DUTIES, Holder)
        self._gateways = gateways
        self._post = post
        self._duties: dict[str, _Duty] = {}
        self._known = threading.Event()
        gateways.listened = self.look
        metadata.watch(DUTIES, self._follow)

    def take(self, name: str, gained: Callable[[], None], lost: Callable[[str], None]) -> None:
        self._duties[name] = _Duty(gained, lost)

    def look(self, online: frozenset[str]) -> None:
        """Takes what nobody has."""
        own = self._gateways.own_address
        for name, duty in list(self._duties.items()):
            try:
                found = self._space.get(name)
                if found is not None and found.value.gateway == self._gateways.id:
                    self._post(partial(self._hold, duty))
                elif found is not None and found.value.gateway in online:
                    self._post(partial(self._lose, duty, found.value.address))
                elif duty.taking is None or duty.taking.done:
                    version = ABSENT if found is None else found.version
                    holder = Holder(self._gateways.id, own)
                    duty.taking = self._metadata.change([self._space.put(name, holder, version)])
            except PenstockError as error:
                logger.debug("duty %s: %s", name, error)

    def _follow(self, changes: Sequence[RecordChange]) -> None:
        for change in changes:
            duty = self._duties.get(change.name)
            if duty is None or change.value is None:
                continue
            holder = msgspec.json.decode(change.value, type=Holder)
            if holder.gateway == self._gateways.id:
                self._hold(duty)
            else:
                self._lose(duty, holder.address)

    def _hold(self, duty: _Duty) -> None:
        if not duty.held:
            duty.held = True
            duty.gained()
            self._note_known()

    def _lose(self, duty: _Duty, address: str) -> None:
        if duty.held is not False:
            duty.held = False
            duty.lost(address)
            self._note_known()

    def _note_known(self) -> None:
        if all(one.held is not None for one in self._duties.values()):
            self._known.set()

    def wait_until_known(self, timeout_s: float) -> None:
        """Who has which duty; not in the thread of the loop. What a gateway that has just died had is
        known only when its silence was long enough."""
        if self._duties:
            self._known.wait(timeout_s)
