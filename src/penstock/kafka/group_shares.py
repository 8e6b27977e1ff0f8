"""The groups that this gateway reads for: one client of each is a member of the group in Kafka, and all who
read for the group here share what that member holds (penstock.log.shares says what that means).

    joining --assigned--> holding --releasing--> releasing --released--> joining
                          holding, releasing --lost--> joining, and nothing is held

What is held counts until the next assignment, because nobody else has it before; while it is not known
what that brings, nothing of it is handed out and commits wait. A group whose last share is left has its
client close, and one that is wanted again before that is over gets another client.

Belongs to the event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from penstock.kafka.clients import Clients
from penstock.kafka.cluster import KafkaTrouble, Place
from penstock.kafka.group_member import Assigned, GroupMember
from penstock.kafka.group_pollers import Pollers
from penstock.log.errors import LogError, TooManyGroups
from penstock.log.pending import Pending
from penstock.log.shares import Changed, GivingAway

SETTING: Final = "kafka.group_clients"

Post = Callable[[Callable[[], None]], object]


class State(Enum):
    JOINING = "joining"
    HOLDING = "holding"
    RELEASING = "releasing"


class Offsets(Protocol):
    """Who keeps the committed offsets of groups, and commits that wait."""

    def found(self, group: str, place: Place, offset: int | None) -> None:
        """What Kafka has for a partition that came here."""
        ...

    def last_known(self, group: str, place: Place) -> int | None:
        """What was read of it in Kafka's own topic."""
        ...

    def go_on(self, group: str) -> None:
        """Commits that waited can be sent, or refused."""
        ...

    def give_up(self, group: str, error: LogError) -> None:
        """Commits that wait have waited long enough."""
        ...


class KafkaShare:
    """Of one group on one topic. See penstock.log.shares.Share."""

    is_whole: Final = False

    def __init__(
        self, group: "GroupHere", kafka_name: str, changed: Changed, giving_away: GivingAway
    ) -> None:
        self.kafka_name = kafka_name
        self.changed = changed
        self.giving_away = giving_away
        # Until Kafka has made the topic: a member that asks for it before would not hear of it for long.
        self.exists = False
        self.ready: Pending[object] | None = Pending()
        # False: it came while the group was being shared out, and what was held before is going.
        self.counts = group.state is State.HOLDING
        self._group = group
        self._left = False

    @property
    def had_others(self) -> bool:
        return self._group.had_others

    def held(self, partitions: int) -> Sequence[int]:
        if not self.counts:
            return ()
        numbers = self._group.numbers.get(self.kafka_name, ())
        # Kafka may know of more than this gateway does.
        return (
            numbers
            if not numbers or numbers[-1] < partitions
            else [number for number in numbers if number < partitions]
        )

    def committed(self, partition: int) -> int | None:
        return self._group.committed.get((self.kafka_name, partition))

    def topic_made(self, error: BaseException | None) -> None:
        if error is not None:
            self.told(error)
        elif not self._left:
            self.exists = True
            self._group.subscribe()

    def told(self, error: BaseException | None = None) -> None:
        """It is known what is held, or why not."""
        waiting, self.ready = self.ready, None
        if waiting is not None:
            waiting.settle(None, error)

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._group.left(self)


class GroupHere:
    """One group that is read for here. A Listener of its member; what that tells is posted."""

    def __init__(self, shares: "GroupShares", name: str) -> None:
        self.name = name
        self.state = State.JOINING
        self.held: frozenset[Place] = frozenset()
        # The same, by topic and in order.
        self.numbers: dict[str, list[int]] = {}
        self.committed: dict[Place, int | None] = {}
        self.had_others = False
        # Why it has not been known for long what is held.
        self.stuck: KafkaTrouble | None = None
        self.over = False
        self.shares: list[KafkaShare] = []
        self.member = shares.new_member(name, self)
        self._all = shares
        self._assigned_once = False

    def join(self, share: KafkaShare) -> None:
        same = [one for one in self.shares if one.kafka_name == share.kafka_name]
        self.shares.append(share)
        known = self.state is State.HOLDING and any(one.ready is None for one in same)
        if self.stuck is not None or known:
            share.told()

    def noted(self, offsets: Mapping[Place, int]) -> None:
        """Committed through its member: whoever begins here later begins behind that."""
        self.committed.update({place: at for place, at in offsets.items() if place in self.held})

    def subscribe(self) -> None:
        """To what its shares want; another list makes the group share out anew."""
        topics = frozenset(one.kafka_name for one in self.shares if one.exists)
        if topics and topics != self.member.topics:
            self.member.topics = topics
            self._all.wake()

    def left(self, share: KafkaShare) -> None:
        self.shares.remove(share)
        share.told()
        if self.shares:
            self.subscribe()
        else:
            self._all.end(self)

    # --- what its member tells, in its thread -----------------------------------------------------

    def releasing(self, done: Callable[[], None]) -> None:
        self._all.post(lambda: self._release(done))

    def released(self) -> None:
        self._all.post(self._released)

    def lost(self) -> None:
        self._all.post(self._lost)

    def assigned(self, news: Assigned) -> None:
        self._all.post(lambda: self._take(news))

    def unchanged(self, topics: frozenset[str]) -> None:
        self._all.post(lambda: self._kept(topics))

    def tired(self, error: KafkaTrouble, refused: bool) -> None:
        self._all.post(lambda: self._tire(error, refused))

    # --- and on the event loop --------------------------------------------------------------------

    def _release(self, done: Callable[[], None]) -> None:
        self.state = State.RELEASING
        pending = [one for share in list(self.shares) for one in share.giving_away()]
        left = len(pending)
        if not left:
            done()
            return

        def committed(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for one in pending:
            one.on_done(committed)

    def _released(self) -> None:
        self.state = State.JOINING

    def _lost(self) -> None:
        self.state = State.JOINING
        self._hold(frozenset())
        self._tell()

    def _take(self, news: Assigned) -> None:
        if self.over:
            return
        self.state, self.stuck = State.HOLDING, None
        if not self._assigned_once:
            self._assigned_once = True
            self.had_others = not news.alone
        offsets = self._all.offsets
        self._hold(news.held)
        for place, offset in news.committed.items():
            offsets.found(self.name, place, offset)
        self.committed = {
            place: news.committed[place]
            if place in news.committed
            else offsets.last_known(self.name, place)
            for place in news.held
        }
        for share in self.shares:
            share.counts = True
        self._tell()
        self._told(news.topics)
        offsets.go_on(self.name)

    def _kept(self, topics: frozenset[str]) -> None:
        if self.state is State.HOLDING:
            self._told(topics)

    def _told(self, topics: frozenset[str]) -> None:
        for share in list(self.shares):
            if share.kafka_name in topics:
                share.told()

    def _hold(self, held: frozenset[Place]) -> None:
        self.held = held
        self.numbers = {}
        for name, number in sorted(held):
            self.numbers.setdefault(name, []).append(number)

    def _tell(self) -> None:
        for share in list(self.shares):
            share.changed()

    def _tire(self, error: KafkaTrouble, refused: bool) -> None:
        for share in list(self.shares):
            share.told(error if refused else None)
        if self.state is State.JOINING:
            self.stuck = error
            self._all.offsets.give_up(self.name, error)


class GroupShares:
    """All groups that are read for here."""

    def __init__(
        self,
        clients: Clients,
        gateway_id: str,
        limit: int,
        count_members: Callable[[str], int],
        offsets: Offsets,
        post: Post,
    ) -> None:
        self.offsets = offsets
        self.post = post
        self._clients = clients
        self._gateway_id = gateway_id
        self._limit = limit
        self._count_members = count_members
        self._pollers = Pollers()
        self._by_name: dict[str, GroupHere] = {}
        # Of clients that are leaving still.
        self._leaving: dict[str, GroupMember] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, group: str) -> GroupHere | None:
        return self._by_name.get(group)

    def leaving(self, group: str) -> GroupMember | None:
        """Its client that has not left yet, though nobody here reads for the group any more."""
        member = self._leaving.get(group)
        return None if member is None or member.left.is_set() else member

    def join(
        self, group: str, kafka_name: str, changed: Changed, giving_away: GivingAway
    ) -> KafkaShare:
        """`topic_made` of it has to follow. Raises TooManyGroups."""
        here = self._by_name.get(group)
        if here is None:
            self._leaving = {
                name: member for name, member in self._leaving.items() if not member.left.is_set()
            }
            if len(self._by_name) + len(self._leaving.keys() - {group}) >= self._limit:
                raise TooManyGroups(group, self._limit, SETTING)
            here = self._by_name[group] = GroupHere(self, group)
        share = KafkaShare(here, kafka_name, changed, giving_away)
        here.join(share)
        return share

    def new_member(self, group: str, listener: GroupHere) -> GroupMember:
        member = GroupMember(self._clients, group, self._gateway_id, self._count_members, listener)
        self._pollers.add(member)
        return member

    def end(self, here: GroupHere) -> None:
        here.over = True
        del self._by_name[here.name]
        self._leaving[here.name] = here.member
        here.member.leaving = True
        self.wake()
        self.offsets.go_on(here.name)

    def wake(self) -> None:
        self._pollers.wake()

    def close(self) -> None:
        """The partitions of this gateway are free for others on return. Not on the event loop."""
        self._pollers.close()
