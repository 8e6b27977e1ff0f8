"""Members of a group share the partitions of a topic: who reads which, and what if one goes silent.

A member is an id that the server gives. It says that it is alive; one that is silent for its time is out,
which is noticed when another member asks. Every change makes a new generation, and members learn their
partitions with the next heartbeat. Between the two a partition may have two readers: both begin at the
committed offset, so records may come twice, and none is skipped. In memory only: after a restart members
join again.

What is divided are the partitions that the engine lets this server hand out (penstock.log.shares): all of
them, or those that the members on other servers do not have. Where there are others, members that went
silent are looked for (`expire`), because what nobody reads here is kept from them.

Knows no rights and no connections. Belongs to the event loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import Pending, Share
from penstock.log.shares import WHOLE_TOPIC, Changed

MILLISECOND_US: Final = 1_000
# Of a member that names none; between two heartbeats a client may wait for a third of it.
DEFAULT_TIMEOUT_MS: Final = 30_000
# Shorter, and a busy machine would throw out members that are alive; longer, and nobody reads theirs.
LEAST_TIMEOUT_MS: Final = 1_000
MOST_TIMEOUT_MS: Final = 300_000
# Of one group on one topic, and of all: two hundred bytes each.
MAX_MEMBERS: Final = 1_000
MAX_MEMBERS_TOTAL: Final = 100_000
MAX_SHARED_GROUPS: Final = 10_000
MEMBER_ID_BYTES: Final = 8


class Assignment(NamedTuple):
    """What a member reads as long as the generation is the same."""

    member: str
    generation: int
    partitions: list[int]


class SharedMember(NamedTuple):
    """A member as it is shown."""

    topic: str
    member: str
    owner: str
    generation: int
    partitions: list[int]
    silent_us: int
    timeout_us: int


class _Member:
    __slots__ = ("expires_us", "owner", "timeout_us")

    def __init__(self, owner: str, timeout_us: int) -> None:
        self.owner = owner
        self.timeout_us = timeout_us
        self.expires_us = 0


class _Shared:
    """One group on one topic. Members in the order in which they came."""

    __slots__ = ("count", "expires_us", "generation", "members", "partitions", "share")

    def __init__(self, share: Share, count: int) -> None:
        self.members: dict[str, _Member] = {}
        self.generation = 0
        self.share = share
        # Of the topic, and those of them that are divided here.
        self.count = count
        self.partitions: Sequence[int] = share.held(count)
        # No member is silent for too long before that.
        self.expires_us = 0

    def look(self, now_us: int, count: int) -> None:
        """Drops members that were silent for too long, and takes over what there is to divide. As long as
        that is not known, members wait for their answer and cannot say anything."""
        silent = (
            [name for name, member in self.members.items() if member.expires_us <= now_us]
            if self.share.ready is None
            else []
        )
        for name in silent:
            del self.members[name]
        self.count = count
        partitions = self.share.held(count)
        if silent or partitions != self.partitions:
            self.partitions = partitions
            self.generation += 1

    def look_when_due(self, now_us: int) -> None:
        """The same, at the cost of nothing while everybody is alive."""
        if now_us >= self.expires_us:
            self.look(now_us, self.count)
            times = [member.expires_us for member in self.members.values()]
            self.expires_us = min(times, default=now_us)

    def assigned(self, name: str) -> Assignment:
        """Runs of partitions as even as can be, to the members in their order."""
        position = list(self.members).index(name)
        count, total = len(self.members), len(self.partitions)
        first, end = position * total // count, (position + 1) * total // count
        return Assignment(name, self.generation, list(self.partitions[first:end]))


# Of a group on a topic; the callback tells that it has changed what is held.
OpenShare = Callable[[str, str, Changed], Share]


def _whole(_group: str, _topic: str, _changed: Changed) -> Share:
    return WHOLE_TOPIC


class Sharing:
    """All groups whose members share partitions, by group and topic."""

    def __init__(
        self,
        clock_us: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        open_share: OpenShare = _whole,
    ) -> None:
        self._clock_us = clock_us
        self._random_bytes = random_bytes
        self._open_share = open_share
        self._shared: dict[tuple[str, str], _Shared] = {}
        # Those of them that members on other servers share.
        self._beside_others: dict[tuple[str, str], _Shared] = {}

    def join(
        self, group: str, topic: str, partitions: int, owner: str, member: str, timeout_ms: int
    ) -> Assignment:
        """A new member, or one that joins again. `owner`: the principal, whom its id belongs to."""
        timeout_ms = timeout_ms or DEFAULT_TIMEOUT_MS
        if not LEAST_TIMEOUT_MS <= timeout_ms <= MOST_TIMEOUT_MS:
            detail = f"a timeout has {LEAST_TIMEOUT_MS} to {MOST_TIMEOUT_MS} ms, not {timeout_ms}"
            raise BrokerError(Code.INVALID_REQUEST, detail)
        shared = self._find(group, topic, partitions)
        known = shared.members.get(member)
        if known is None or known.owner != owner:
            self._check_room(group, topic, shared)
            member = self._random_bytes(MEMBER_ID_BYTES).hex()
            known = shared.members[member] = _Member(owner, 0)
            shared.generation += 1
        known.timeout_us = timeout_ms * MILLISECOND_US
        known.expires_us = self._clock_us() + known.timeout_us
        shared.expires_us = min(shared.expires_us, known.expires_us)
        return shared.assigned(member)

    def ready(self, group: str, topic: str) -> Pending[object] | None:
        """What a new member has to wait for until it is known what there is to divide; None: nothing. Then
        it joins again."""
        shared = self._shared.get((group, topic))
        return None if shared is None else shared.share.ready

    def heartbeat(
        self, group: str, topic: str, partitions: int, owner: str, member: str
    ) -> Assignment:
        """The member is alive; what it reads from now on."""
        shared = self._of(group, topic, owner, member, partitions)
        known = shared.members[member]
        known.expires_us = self._clock_us() + known.timeout_us
        return shared.assigned(member)

    def leave(self, group: str, topic: str, partitions: int, owner: str, member: str) -> None:
        shared = self._of(group, topic, owner, member, partitions)
        del shared.members[member]
        shared.generation += 1
        if not shared.members:
            self._drop((group, topic))

    def _drop(self, place: tuple[str, str]) -> None:
        shared = self._shared.pop(place, None)
        self._beside_others.pop(place, None)
        if shared is not None:
            shared.share.leave()

    def expire(self) -> None:
        """Drops members that are silent, and groups that have no others, where other servers wait for
        their partitions. To be called every now and then."""
        now_us = self._clock_us()
        for place, shared in list(self._beside_others.items()):
            shared.look_when_due(now_us)
            if not shared.members:
                self._drop(place)

    def _changed(self, group: str, topic: str) -> None:
        """What is held here is another part: a new generation, also where it is the old part soon again."""
        shared = self._shared.get((group, topic))
        if shared is not None:
            shared.look(self._clock_us(), shared.count)

    def forget(self, group: str, topics: Iterable[str]) -> None:
        """The group is deleted; its members have to join again."""
        for topic in topics:
            self._drop((group, topic))

    def groups(self) -> set[str]:
        return {group for group, _ in self._shared}

    def counts(self) -> dict[tuple[str, str], int]:
        """Members by group and topic; those too that are silent and not missed yet."""
        return {place: len(shared.members) for place, shared in self._shared.items()}

    def held(self, group: str) -> dict[str, list[int]]:
        """By topic: the partitions that members here divide."""
        return {
            topic: list(shared.partitions)
            for (one, topic), shared in self._shared.items()
            if one == group
        }

    def describe(self, group: str) -> list[SharedMember]:
        """The members of a group that are not silent, by topic, with what they read as of their last
        change."""
        now_us = self._clock_us()
        found = []
        for topic in sorted(topic for one, topic in self._shared if one == group):
            shared = self._shared[group, topic]
            shared.look(now_us, shared.count)
            for name, member in shared.members.items():
                told = shared.assigned(name)
                silent_us = max(now_us - (member.expires_us - member.timeout_us), 0)
                found.append(
                    SharedMember(
                        topic,
                        name,
                        member.owner,
                        told.generation,
                        told.partitions,
                        silent_us,
                        member.timeout_us,
                    )
                )
        return found

    def forget_topic(self, topic: str) -> None:
        for place in [place for place in self._shared if place[1] == topic]:
            self._drop(place)

    def _find(self, group: str, topic: str, partitions: int) -> _Shared:
        now_us = self._clock_us()
        shared = self._shared.get((group, topic))
        if shared is None:
            if len(self._shared) >= MAX_SHARED_GROUPS:
                self._make_room(now_us)
            share = self._open_share(group, topic, lambda: self._changed(group, topic))
            shared = self._shared[group, topic] = _Shared(share, partitions)
            if not share.is_whole:
                self._beside_others[group, topic] = shared
        shared.look(now_us, partitions)
        return shared

    def _check_room(self, group: str, topic: str, shared: _Shared) -> None:
        """Whether there may be one more member."""
        if len(shared.members) >= MAX_MEMBERS:
            detail = f"group {group!r} has {MAX_MEMBERS} members here, the most there can be"
            raise BrokerError(Code.LIMIT_REACHED, detail)
        if len(self._shared) * MAX_MEMBERS <= MAX_MEMBERS_TOTAL or not self._is_full():
            return
        self._drop_silent(self._clock_us(), but=shared)
        if self._is_full():
            if not shared.members:
                self._drop((group, topic))
            detail = f"groups have {MAX_MEMBERS_TOTAL} members, the most there can be"
            raise BrokerError(Code.LIMIT_REACHED, detail)

    def _is_full(self) -> bool:
        return sum(len(one.members) for one in self._shared.values()) >= MAX_MEMBERS_TOTAL

    def _drop_silent(self, now_us: int, but: _Shared | None = None) -> None:
        """Groups whose members have all gone silent: nobody asks for them any more. `but`: one that is
        new, and so has nobody who is not silent."""
        for place, shared in list(self._shared.items()):
            members = shared.members.values()
            if shared is not but and all(member.expires_us <= now_us for member in members):
                self._drop(place)

    def _make_room(self, now_us: int) -> None:
        self._drop_silent(now_us)
        if len(self._shared) >= MAX_SHARED_GROUPS:
            detail = f"{MAX_SHARED_GROUPS} groups share partitions, the most there can be"
            raise BrokerError(Code.LIMIT_REACHED, detail)

    def _of(self, group: str, topic: str, owner: str, member: str, partitions: int) -> _Shared:
        """The group of a member that is in it; raises for others, who have to join again."""
        shared = self._shared.get((group, topic))
        if shared is not None:
            shared.look(self._clock_us(), partitions)
            known = shared.members.get(member)
            if known is not None and known.owner == owner:
                return shared
        detail = f"{member!r} is no member of group {group!r} on this topic any more: join again"
        raise BrokerError(Code.INVALID_REQUEST, detail)
