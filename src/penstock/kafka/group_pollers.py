"""The few threads in which members of groups are kept alive: librdkafka wants each to be asked for news now
and then, and a thread for each group would be many that do nothing."""

import logging
import threading
from typing import Final

from penstock.kafka.group_member import GroupMember

# One that waits for the last commits of a group keeps those behind it in the same thread waiting.
POLLERS: Final = 4
# Between two looks at each: how much later than Kafka tells it a rebalance is noticed, at most. A look that
# finds nothing takes two microseconds.
LOOK_S: Final = 0.05


logger = logging.getLogger(__name__)


class _Poller:
    def __init__(self, number: int) -> None:
        self.members: list[GroupMember] = []
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closing = False
        name = f"penstock-kafka-members-{number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, member: GroupMember) -> None:
        with self._lock:
            self.members = [*self.members, member]
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    def _run(self) -> None:
        while not self._closing:
            members = self.members
            over = {one for one in members if not _turned(one)}
            if over:
                with self._lock:
                    self.members = [one for one in self.members if one not in over]
            self._news.wait(LOOK_S if self.members else None)
            self._news.clear()  # what was set before this is looked at in the next round
        for member in self.members:
            member.close()

    def end(self) -> None:
        """All members leave their groups."""
        self._closing = True
        self._news.set()

    def join(self) -> None:
        self._thread.join()


def _turned(member: GroupMember) -> bool:
    try:
        return member.turn()
    except Exception:  # a defect in the work for one group must not end that for the others
        logger.exception("group %r: a defect", member.group)
        return True


class Pollers:
    """Started when there is the first member. Used by the event loop."""

    def __init__(self) -> None:
        self._pollers: list[_Poller] = []

    def add(self, member: GroupMember) -> None:
        if len(self._pollers) < POLLERS:
            self._pollers.append(_Poller(len(self._pollers)))
        min(self._pollers, key=lambda one: len(one.members)).add(member)

    def wake(self) -> None:
        """Something was set on a member."""
        for one in self._pollers:
            one.wake()

    def close(self) -> None:
        """All members have left their groups on return."""
        for one in self._pollers:
            one.end()
        for one in self._pollers:
            one.join()
