"""Consumer groups as peers list them: their committed offsets by topic, and who reads as their member.

Offsets are the engine's and durable. Members are connections that have said so; they are in memory only and
go with their connection. Assigns no partitions.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import Engine, walk_groups

# Groups and topics that one connection may be a member of: some hundred bytes each.
MAX_MEMBERSHIPS: Final = 1_000


class GroupRow(NamedTuple):
    """One group on one topic: how many members it has, and (partition, offset), in order."""

    topic: str
    group: str
    members: int
    offsets: list[tuple[int, int]]


class Members:
    """Who reads which topic as a member of which group."""

    def __init__(self) -> None:
        self._joined: dict[object, set[tuple[str, str]]] = {}
        # By group, then topic.
        self._members: dict[str, dict[str, set[object]]] = {}

    def join(self, user: object, group: str, topic: str) -> None:
        """Raises BrokerError LIMIT_REACHED."""
        joined = self._joined.setdefault(user, set())
        if len(joined) >= MAX_MEMBERSHIPS and (group, topic) not in joined:
            detail = f"a connection may be a member of {MAX_MEMBERSHIPS} groups; use another one"
            raise BrokerError(Code.LIMIT_REACHED, detail)
        joined.add((group, topic))
        self._members.setdefault(group, {}).setdefault(topic, set()).add(user)

    def leave(self, user: object) -> None:
        for group, topic in self._joined.pop(user, ()):
            self._leave(user, group, topic)

    def leave_one(self, user: object, group: str, topic: str) -> None:
        joined = self._joined.get(user, set())
        if (group, topic) in joined:
            joined.discard((group, topic))
            self._leave(user, group, topic)

    def _leave(self, user: object, group: str, topic: str) -> None:
        users = self._members[group][topic]
        users.discard(user)
        if not users:
            self._drop(group, topic)

    def forget(self, group: str, topics: Iterable[str]) -> None:
        """The group is deleted; a connection becomes a member again when it subscribes again."""
        for topic in self.topics(group).intersection(topics):
            for user in self._members[group][topic]:
                self._joined[user].discard((group, topic))
            self._drop(group, topic)

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted."""
        for group in [group for group, topics in self._members.items() if topic in topics]:
            self.forget(group, [topic])

    def _drop(self, group: str, topic: str) -> None:
        del self._members[group][topic]
        if not self._members[group]:
            del self._members[group]

    def count(self, group: str, topic: str) -> int:
        return len(self._members.get(group, {}).get(topic, ()))

    def topics(self, group: str) -> set[str]:
        return set(self._members.get(group, ()))

    def groups(self) -> list[str]:
        return list(self._members)


def rows_of(
    group: str, offsets: Mapping[tuple[str, int], int], members: Members
) -> Iterable[GroupRow]:
    """Its rows, by topic."""
    by_topic: dict[str, list[tuple[int, int]]] = {name: [] for name in members.topics(group)}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append((partition, offset))
    for topic in sorted(by_topic):
        yield GroupRow(topic, group, members.count(group, topic), by_topic[topic])


def all_rows(
    engine: Engine, members: Members, access: Access, principal: Principal
) -> list[GroupRow]:
    """Every group on every topic that the principal may read, in order."""
    names = {name for page in walk_groups(engine) for name in page}
    rows = [
        row
        for name in names.union(members.groups())
        for row in rows_of(name, dict(engine.group(name)), members)
        if access.permits(principal, Operation.READ_OFFSETS, row.topic)
    ]
    return sorted(rows, key=lambda row: (row.topic, row.group))


def first_row(
    engine: Engine,
    members: Members,
    access: Access,
    principal: Principal,
    group: str,
    topic: str | None,
) -> GroupRow | None:
    """On one topic, or on the first one that the principal may read."""
    for row in rows_of(group, engine.group(group), members):
        if topic in (None, row.topic) and access.permits(
            principal, Operation.READ_OFFSETS, row.topic
        ):
            return row
    return None
