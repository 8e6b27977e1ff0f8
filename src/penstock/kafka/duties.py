"""Duties that the gateways divide among themselves, such as delivering delayed messages when they are due.

A duty has a fixed number of shares, and the holder of each is a record of the metadata, changed by compare
and set. Every gateway looks again and again at who has what and who was heard lately (gateways.py):

    a share that nobody has     goes to the gateway with the fewest, which takes it
    a gateway with two shares   hands one of them over, one at a look, so that all that is to be moved does
    more than another one       not come to a stop at once

All gateways come to the same division by themselves, and nothing moves that need not. A gateway that was
paused finds out by the feed of the metadata what others have taken. Between the two both may believe to
have a share for a moment: what a duty does must bear that.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.kafka.gateways import Gateways
from penstock.log.pending import Pending
from penstock.log.records import ABSENT, Metadata, Put, RecordChange, Space

DUTIES: Final = "kafka-duties"

logger = logging.getLogger(__name__)


class Holder(msgspec.Struct, frozen=True, gc=False):
    gateway: str


@dataclass(slots=True)
class _Duty:
    shares: int
    gained: Callable[[int], None]
    lost: Callable[[int], None]
    # Known to the one whose duty it is.
    held: set[int] = field(default_factory=set)
    # The change that takes or hands over, until it is done: while Kafka is away there is one, and not one
    # for each look.
    changing: "Pending[int] | None" = None
    # Whether every share has a holder that is online.
    settled: bool = False


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

    def share(
        self, name: str, shares: int, gained: Callable[[int], None], lost: Callable[[int], None]
    ) -> None:
        self._duties[name] = _Duty(shares, gained, lost)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._duties)

    def look(self) -> None:
        """Takes what this gateway is to have, and hands over what it is not."""
        for name, duty in list(self._duties.items()):
            online = self._gateways.taking(name)
            if self._gateways.id not in online:
                continue  # its own beats do not arrive: others will take what it has
            try:
                self._look(name, duty, online)
            except PenstockError as error:
                logger.debug("duty %s: %s", name, error)

    def _look(self, name: str, duty: _Duty, online: frozenset[str]) -> None:
        self._post(partial(self._note_now, name, duty))
        found = {share: self._space.get(_record_of(name, share)) for share in range(duty.shares)}
        holders = {share: one.value.gateway for share, one in found.items() if one is not None}
        duty.settled = all(holders.get(share) in online for share in found)
        if duty.settled:
            self._note_known()
        edits: list[Put] = []
        for share, gateway in divided(holders, duty.shares, online, self._gateways.id).items():
            kept = found[share]
            version = ABSENT if kept is None else kept.version
            edits.append(self._space.put(_record_of(name, share), Holder(gateway), version))
        if edits and (duty.changing is None or duty.changing.done):
            duty.changing = self._metadata.change(edits)

    def _follow(self, changes: Sequence[RecordChange]) -> None:
        for change in changes:
            name, _, share = change.name.rpartition(".")
            duty = self._duties.get(name)
            if duty is not None and change.value is not None:
                holder = msgspec.json.decode(change.value, type=Holder)
                self._note(duty, {int(share): holder.gateway})

    def _note_now(self, name: str, duty: _Duty) -> None:
        """What the feed has told already, but for the start, before which nothing is told."""
        try:
            found = {at: self._space.get(_record_of(name, at)) for at in range(duty.shares)}
        except PenstockError as error:  # it closes
            logger.debug("duty %s: %s", name, error)
            return
        self._note(duty, {at: one.value.gateway for at, one in found.items() if one is not None})

    def _note(self, duty: _Duty, holders: dict[int, str]) -> None:
        for share, gateway in holders.items():
            if gateway == self._gateways.id and share not in duty.held:
                duty.held.add(share)
                duty.gained(share)
            elif gateway != self._gateways.id and share in duty.held:
                duty.held.discard(share)
                duty.lost(share)

    def _note_known(self) -> None:
        if all(one.settled for one in self._duties.values()):
            self._known.set()

    def wait_until_known(self, timeout_s: float) -> None:
        """Who has which share; not in the thread of the loop. What a gateway that has just died had is
        known only when its silence was long enough."""
        if self._duties:
            self._known.wait(timeout_s)


def divided(
    holders: dict[int, str], shares: int, online: frozenset[str], own: str
) -> dict[int, str]:
    """What `own` changes: shares, and who has each of them then."""
    counts = dict.fromkeys(online, 0)
    for gateway in holders.values():
        if gateway in counts:
            counts[gateway] += 1
    free = [share for share in range(shares) if holders.get(share) not in counts]
    changed: dict[int, str] = {}
    for share in free:
        fewest = min(counts, key=lambda one: (counts[one], one))
        counts[fewest] += 1
        if fewest == own:
            changed[share] = own
    fewest = min(counts, key=lambda one: (counts[one], one))
    if not free and counts[own] > counts[fewest] + 1:
        changed[max(share for share, one in holders.items() if one == own)] = fewest
    return changed


def _record_of(name: str, share: int) -> str:
    return f"{name}.{share}"
