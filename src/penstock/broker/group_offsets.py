"""Groups: committed offsets, who reads as a member, and what is shown of them. Hot: compiled by mypyc."""

import os
from collections.abc import Callable
from typing import Final

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.delivery.feed import Schedule
from penstock.broker.errors import BrokerError, Code
from penstock.broker.groups import GroupRow, Members, all_rows, first_row
from penstock.broker.options import BrokerOptions
from penstock.broker.sharing import Sharing
from penstock.broker.topics import TopicSide
from penstock.log.engine import Engine, Pending
from penstock.log.errors import InvalidGroupName
from penstock.names import flaw

# Offsets committed for partitions that do not exist: RustLog's binary dialect accepts them. In memory
# only; all are dropped when a client exceeds this number.
MAX_LOOSE_OFFSETS: Final = 10_000


def _nothing_to_commit() -> list[Pending[object]]:
    """Members of these groups commit themselves."""
    return []


class GroupSide(TopicSide):
    def __init__(
        self,
        engine: Engine,
        access: Access,
        options: BrokerOptions,
        clock_us: Callable[[], int],
        schedule: Schedule,
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        super().__init__(engine, access, options, clock_us, schedule, run)
        self.members = Members()
        # By the clock of the run: a wall clock that jumps throws nobody out.
        self.sharing = Sharing(
            engine.run_us,
            os.urandom,
            lambda group, topic, changed: engine.share(group, topic, changed, _nothing_to_commit),
        )
        self._loose_offsets: dict[tuple[str, str, int], int] = {}

    def commit_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object] | None:
        """None when there is no such partition; the offset is remembered all the same."""
        self.require(principal, Operation.COMMIT_OFFSETS, topic)
        info = self.engine.topic(topic)
        if info is not None and 0 <= partition < info.partitions:
            return self._move_offset(group, topic, partition, offset)
        if len(self._loose_offsets) >= MAX_LOOSE_OFFSETS:
            self._loose_offsets.clear()
        self._loose_offsets[group, topic, partition] = offset
        return None

    def reset_offset(
        self, principal: Principal, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object]:
        """Sets the committed offset of any group (admin). The partition must exist."""
        self.require(principal, Operation.RESET_GROUP, topic)
        change = self._move_offset(group, topic, partition, offset)
        details = {"topic": topic, "partition": partition, "offset": offset}
        return self.audit.when_done(change, principal, events.GROUP_RESET, group, details)

    def _move_offset(self, group: str, topic: str, partition: int, offset: int) -> Pending[object]:
        if not self.engine.group(group):
            self.check_room_for(groups=1)
        return self.engine.commit_offset(group, topic, partition, offset)

    def delete_group(
        self, principal: Principal, group: str, topic: str | None = None
    ) -> Pending[object]:
        """Forgets its committed offsets, on one topic or on all; needs the right on each of them."""
        found = {name for name, _ in self.engine.group(group)} | self.members.topics(group)
        topics = sorted(found) if topic is None else [topic]
        self.require(principal, Operation.DELETE_GROUP, group, topics)
        if not found.intersection(topics):
            raise BrokerError(Code.UNKNOWN_GROUP, f"no group named {group!r}")
        self.members.forget(group, topics)
        self.sharing.forget(group, topics)
        change = self.engine.delete_group(group, topic)
        details = {"topics": ", ".join(topics)}
        return self.audit.when_done(change, principal, events.GROUP_DELETED, group, details)

    def groups(self, principal: Principal) -> list[GroupRow]:
        """Every group on every topic that the principal may read, in order. Takes long: for `aside`."""
        return all_rows(self.engine, self.members, self.access, principal)

    def group(self, principal: Principal, group: str, topic: str | None = None) -> GroupRow:
        """On one topic, or on the first one that the principal may read."""
        found = first_row(self.engine, self.members, self.access, principal, group, topic)
        if found is None:
            raise BrokerError(Code.UNKNOWN_GROUP, f"no group named {group!r}")
        return found

    def join_group(self, user: object, group: str, topic: str) -> None:
        """The stream of this user reads the topic as a member of the group, until it leaves. Raises
        InvalidGroupName for a group that could never have an offset."""
        reason = flaw(group)
        if reason is not None and not self.engine.group(group):
            raise InvalidGroupName(group, reason)
        self.members.join(user, group, topic)

    def leave_group(self, user: object, group: str, topic: str) -> None:
        """The user goes on without being a member."""
        self.members.leave_one(user, group, topic)

    def committed_offset(
        self, group: str, topic: str, partition: int, *, anywhere: bool = False
    ) -> int | None:
        """`anywhere`: also what was committed for a partition that does not exist."""
        offset = self.engine.committed_offset(group, topic, partition)
        if offset is None and anywhere:
            return self._loose_offsets.get((group, topic, partition))
        return offset
