"""Groups: their committed offsets are Kafka's, followed in its topic of offsets and committed by its own
calls.

A thread reads `__consumer_offsets` from the beginning and follows it, so every gateway knows every
commit, whoever made it, Kafka's tools too. Commits of one group that wait are joined into one call. Kafka
refuses a commit from outside while a group has members of its own protocol. Where this gateway has one
(group_shares.py), the commit goes through it if it holds the partition; everything else is one clear error.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.kafka.clients import Clients
from penstock.kafka.cluster import Cluster, KafkaAway, KafkaRefused, KafkaTrouble, Place, trouble_of
from penstock.kafka.echoes import Echoes, Sent
from penstock.kafka.group_member import GroupMember
from penstock.kafka.group_shares import GroupShares, State
from penstock.kafka.names import from_kafka, is_own, to_kafka
from penstock.kafka.offsets_topic import OFFSETS_TOPIC, Committed, decode
from penstock.log.errors import GroupInUse, InvalidGroupName, LogClosed, LogError
from penstock.log.pending import Pending
from penstock.log.sorted_names import SortedNames
from penstock.names import flaw

# One look for new records of the topic.
FOLLOW_S: Final = 0.1
TAKEN_AT_ONCE: Final = 5_000
# How long until the topic of offsets is looked for again: Kafka makes it with the first group.
ABSENT_S: Final = 1.0
# More than are deleted in the moments until their last commits are read.
FORGOTTEN_KEPT: Final = 1_000
# How long a client may take that is leaving its group; then Kafka says what it thinks of that.
LEAVE_S: Final = 5.0
# Of one commit through a member whose group is shared out anew each time.
ATTEMPTS: Final = 3
# How long a broker may take to hear of a new topic.
NEW_TOPIC_S: Final = 3.0
NEW_TOPIC_PAUSE_S: Final = 0.02


class GroupHasMembers(GroupInUse):
    """Kafka takes commits of such a group from its members alone."""

    group: str
    reason: str

    line = (
        "group {group!r} has members that read by Kafka's own protocol ({reason}): let one of them "
        "commit, or stop them first"
    )


class _Waiting:
    """Commits of one group that wait while another call is under way, or until it is known what this
    gateway holds of the group."""

    def __init__(self) -> None:
        self.offsets: dict[Place, int] = {}
        self.pending: list[tuple[Place, Pending[object]]] = []
        self.running = False
        self.attempts = 0

    def refuse(self, error: LogError) -> None:
        pending, self.pending = self.pending, []
        self.offsets = {}
        for _, one in pending:
            one.settle(None, error)


@dataclass(frozen=True, slots=True)
class _Sending:
    """One call. `member`: through whom, None from outside."""

    offsets: dict[Place, int]
    pending: list[tuple[Place, Pending[object]]]
    member: GroupMember | None
    sent: dict[Place, Sent]


class KafkaGroups:
    """Called from the event loop; what the threads find out comes there, through `post`."""

    def __init__(
        self,
        clients: Clients,
        cluster: Cluster,
        executor: Executor,
        post: Callable[[Callable[[], None]], object],
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._clock_us = clock_us
        self._clients = clients
        self._cluster = cluster
        self._executor = executor
        self._post = post
        self._offsets: dict[str, dict[Place, int]] = {}
        self._updated_us: dict[str, int] = {}
        # When topics went that were deleted lately, by their names in Kafka.
        self._forgotten_us: dict[str, int] = {}
        self._echoes = Echoes()
        self._names = SortedNames()
        self._waiting: dict[str, _Waiting] = {}
        # Set by the engine.
        self.shares: GroupShares
        self._closing = threading.Event()
        self._loaded = threading.Event()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-groups", daemon=True)
        self._thread.start()

    def wait_until_loaded(self, timeout_s: float) -> None:
        """All commits that were there at the start are known. Raises KafkaTrouble."""
        if not self._loaded.wait(timeout_s) or self.error is not None:
            reason = self.error or self._clients.trouble.last or "no answer"
            raise KafkaAway(f"read {OFFSETS_TOPIC}", reason, KafkaError._TIMED_OUT)

    # --- what is known ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._offsets)

    def of(self, group: str) -> Mapping[tuple[str, int], int]:
        """By the names of Penstock."""
        found = self._offsets.get(group, {})
        return {(from_kafka(name), number): offset for (name, number), offset in found.items()}

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        found = self._offsets.get(group)
        return None if found is None else found.get((to_kafka(topic), partition))

    def names(self, after: str | None, limit: int) -> list[str]:
        return self._names.page(after, limit)

    def all(self) -> dict[str, dict[tuple[str, int], int]]:
        return {group: dict(self.of(group)) for group in self._offsets}

    def updated_us(self, group: str) -> int | None:
        return self._updated_us.get(group)

    # --- changes ----------------------------------------------------------------------------------

    def check_name(self, group: str) -> None:
        if group not in self._offsets and (reason := flaw(group)) is not None:
            raise InvalidGroupName(group, reason)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> Pending[object]:
        """Raises InvalidGroupName for a new group."""
        self.check_name(group)
        if self._closing.is_set():
            raise LogClosed
        pending: Pending[object] = Pending()
        waiting = self._waiting.setdefault(group, _Waiting())
        place = to_kafka(topic), partition
        waiting.offsets[place] = offset
        waiting.pending.append((place, pending))
        self._send(group, waiting)
        return pending

    def _send(self, group: str, waiting: _Waiting) -> None:
        """What waits, unless a call is under way or it is not known what is held here."""
        here = self.shares.of(group)
        if waiting.running:
            return
        if self._closing.is_set():
            self._waiting.pop(group, None)
            waiting.refuse(LogClosed())
            return
        if here is not None and here.state is State.JOINING:
            if here.stuck is not None:
                self.give_up(group, here.stuck)
            return
        refused = [] if here is None else self._taken_out(waiting, here.held)
        if waiting.pending:
            self._begin_call(group, waiting, None if here is None else here.member)
        else:
            self._waiting.pop(group, None)
        for (name, number), one in refused:
            reason = f"this server does not hold partition {number} of {from_kafka(name)!r} for it"
            one.settle(None, GroupHasMembers(group, reason))

    def _taken_out(
        self, waiting: _Waiting, held: frozenset[Place]
    ) -> list[tuple[Place, Pending[object]]]:
        """Commits of partitions that another member has."""
        refused = [one for one in waiting.pending if one[0] not in held]
        waiting.pending = [one for one in waiting.pending if one[0] in held]
        waiting.offsets = {place: at for place, at in waiting.offsets.items() if place in held}
        return refused

    def _begin_call(self, group: str, waiting: _Waiting, member: GroupMember | None) -> None:
        offsets = waiting.offsets
        sent = {place: self._echoes.send(group, place, at) for place, at in offsets.items()}
        sending = _Sending(offsets, waiting.pending, member, sent)
        waiting.offsets, waiting.pending, waiting.running = {}, [], True
        leaving = self.shares.leaving(group)

        def work() -> None:
            if leaving is not None:
                leaving.left.wait(LEAVE_S)
            error = self._try(lambda: self._commit(group, sending), group)
            self._post(lambda: self._sent(group, waiting, sending, error))

        self._executor.submit(work)

    def go_on(self, group: str) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None:
            self._send(group, waiting)

    def give_up(self, group: str, error: LogError) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None and not waiting.running:
            del self._waiting[group]
            waiting.refuse(error)

    def _commit(self, group: str, sending: _Sending) -> None:
        """A topic that was just made is not known to every broker at once, and a member that is thrown out
        hears of it a moment later."""
        until_s = time.monotonic() + NEW_TOPIC_S
        while True:
            try:
                if sending.member is None:
                    self._cluster.commit(group, sending.offsets)
                else:
                    sending.member.commit(sending.offsets)
                return
            except KafkaRefused as error:
                unknown = error.code == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not unknown or time.monotonic() >= until_s or self._closing.is_set():
                    raise
            self._closing.wait(NEW_TOPIC_PAUSE_S)

    def _sent(
        self, group: str, waiting: _Waiting, sending: _Sending, error: LogError | None
    ) -> None:
        self._answered(group, sending.sent, error)
        here = self.shares.of(group)
        if error is None and here is not None and here.member is sending.member:
            here.noted(sending.offsets)
        if self._is_tried_again(waiting, sending, error):
            waiting.offsets = {**sending.offsets, **waiting.offsets}
            waiting.pending = [*sending.pending, *waiting.pending]
        else:
            waiting.attempts = 0
            for _, one in sending.pending:
                one.settle(None, error)
        if self._closing.is_set():
            waiting.refuse(LogClosed())
        # Not before: whoever is told may commit again, which has to wait for its turn.
        waiting.running = False
        self._send(group, waiting)

    def _answered(self, group: str, sent: dict[Place, Sent], error: LogError | None) -> None:
        """How a call has ended. What has come by already is known, and perhaps a later commit too."""
        for place, one in sent.items():
            if error is not None:
                self._echoes.failed(group, place, one)
            elif not self._echoes.is_newest(one):
                continue
            elif one.offset is None:
                self._take_away(group, place)
            else:
                self._put(group, place, one.offset, self._clock_us())

    def _is_tried_again(self, waiting: _Waiting, sending: _Sending, error: LogError | None) -> bool:
        """The group was shared out anew meanwhile: who holds the partition now is asked then."""
        waiting.attempts += 1
        thrown_out = sending.member is not None and isinstance(error, GroupHasMembers)
        return thrown_out and waiting.attempts < ATTEMPTS

    def _try(self, call: Callable[[], None], group: str) -> LogError | None:
        try:
            call()
        except KafkaTrouble as error:
            if error.code in (
                KafkaError.UNKNOWN_MEMBER_ID,
                KafkaError.NON_EMPTY_GROUP,
                KafkaError.ILLEGAL_GENERATION,
                KafkaError.REBALANCE_IN_PROGRESS,
                KafkaError.FENCED_INSTANCE_ID,
            ):
                return GroupHasMembers(group, error.reason)
            return error
        return None

    def delete(self, group: str, topic: str | None) -> Pending[object]:
        """Kafka deletes whole groups: offsets on other topics are committed again behind it."""
        if self._closing.is_set():
            raise LogClosed
        pending: Pending[object] = Pending()
        known = dict(self._offsets.get(group, {}))
        kafka_name = None if topic is None else to_kafka(topic)
        left = {place: at for place, at in known.items() if kafka_name not in (None, place[0])}
        # All places are deleted, and those of other topics are there again behind that.
        deleted = {place: self._echoes.send(group, place, None) for place in known}
        again = {place: self._echoes.send(group, place, at) for place, at in left.items()}

        def forget() -> None:
            """Kafka does not know it, so nothing that says so will be read."""
            for place, one in deleted.items():
                self._echoes.failed(group, place, one)

        def delete() -> None:
            try:
                self._cluster.delete_group(group)
            except KafkaRefused as error:
                if error.code != KafkaError.GROUP_ID_NOT_FOUND:
                    raise
                self._post(forget)
            if left:
                self._cluster.commit(group, left)

        leaving = self.shares.leaving(group)

        def work() -> None:
            if leaving is not None:
                leaving.left.wait(LEAVE_S)
            error = self._try(delete, group)
            self._post(lambda: self._deleted(group, deleted, again, pending, error))

        self._executor.submit(work)
        return pending

    def _deleted(
        self,
        group: str,
        deleted: dict[Place, Sent],
        again: dict[Place, Sent],
        pending: Pending[object],
        error: LogError | None,
    ) -> None:
        self._answered(group, deleted, error)
        self._answered(group, again, error)
        pending.settle(None, error)

    # --- following --------------------------------------------------------------------------------

    def _run(self) -> None:
        consumer: Consumer | None = None
        while not self._closing.is_set():
            try:
                if consumer is None:
                    consumer = self._begin()
                    if consumer is None:
                        self._loaded.set()  # there was never a commit
                        self._closing.wait(ABSENT_S)
                        continue
                messages = consumer.consume(TAKEN_AT_ONCE, FOLLOW_S)
                self._take(messages)
            except KafkaException as error:
                self.error = trouble_of(f"read {OFFSETS_TOPIC}", error).reason
                self._closing.wait(ABSENT_S)
        if consumer is not None:
            consumer.close()

    def _begin(self) -> Consumer | None:
        consumer = self._clients.consumer(
            enable_partition_eof=True, auto_offset_reset="earliest", group_id="_penstock.offsets"
        )
        found = consumer.list_topics(OFFSETS_TOPIC, timeout=self._clients.options.reach_s)
        topic = found.topics.get(OFFSETS_TOPIC)
        if topic is None or topic.error is not None or not topic.partitions:
            consumer.close()
            return None
        self._behind = set(topic.partitions)
        consumer.assign([TopicPartition(OFFSETS_TOPIC, one, 0) for one in topic.partitions])
        return consumer

    def _take(self, messages: list[Message]) -> None:
        news: list[Committed] = []
        for message in messages:
            error = message.error()
            if error is None:
                found = decode(message.key(), message.value())
                if found is not None and not is_own(found.topic):
                    news.append(found)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._behind.discard(message.partition() or 0)
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self.error = error.str()
                self._loaded.set()
        if news:
            self._post(lambda: self._follow(news))
        if not self._behind and not self._loaded.is_set():
            self._post(self._loaded.set)
            self._loaded.set()

    def _follow(self, news: list[Committed]) -> None:
        for one in news:
            place = (one.topic, one.partition)
            if not self._echoes.is_news(one.group, place, one.offset):
                continue
            if one.offset is None:
                self._take_away(one.group, place)
            elif place in self._waiting.get(one.group, _Waiting()).offsets:
                continue  # a newer one is under way
            elif one.time_ms * 1000 <= self._forgotten_us.get(one.topic, 0):
                continue  # of a topic that was deleted since
            else:
                self._put(one.group, place, one.offset, one.time_ms * 1000)

    def found(self, group: str, place: Place, offset: int | None) -> None:
        """Asked for just now, while what is followed may be a moment behind. A commit that waited here and
        would take the group back behind that comes from before another member had the partition."""
        if offset is None:
            self._take_away(group, place)
            return
        self._put(group, place, offset, self._updated_us.get(group, 0))
        waiting = self._waiting.get(group, _Waiting())
        if waiting.offsets.get(place, offset) < offset:
            del waiting.offsets[place]
            late = [one for one in waiting.pending if one[0] == place]
            waiting.pending = [one for one in waiting.pending if one[0] != place]
            for _, one in late:
                one.settle(None, GroupHasMembers(group, "another one has read on meanwhile"))

    def last_known(self, group: str, place: Place) -> int | None:
        return self._offsets.get(group, {}).get(place)

    def _put(self, group: str, place: Place, offset: int, time_us: int) -> None:
        offsets = self._offsets.get(group)
        if offsets is None:
            offsets = self._offsets[group] = {}
            self._names.add(group)
        offsets[place] = offset
        self._updated_us[group] = max(time_us, self._updated_us.get(group, 0))

    def _take_away(self, group: str, place: Place) -> None:
        offsets = self._offsets.get(group)
        if offsets is None:
            return
        offsets.pop(place, None)
        if not offsets:
            del self._offsets[group]
            self._updated_us.pop(group, None)
            self._names.discard(group)

    def forget_topic(self, kafka_name: str) -> None:
        """Kafka forgets the offsets of a deleted topic a little later, and what was committed before is
        perhaps not read yet."""
        self._forgotten_us[kafka_name] = self._clock_us()
        while len(self._forgotten_us) > FORGOTTEN_KEPT:
            del self._forgotten_us[next(iter(self._forgotten_us))]
        for group in [
            name
            for name, found in self._offsets.items()
            if any(kafka_name == one for one, _ in found)
        ]:
            for place in [one for one in self._offsets[group] if one[0] == kafka_name]:
                self._take_away(group, place)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._post(self._refuse_all)

    def _refuse_all(self) -> None:
        for group in list(self._waiting):
            self.go_on(group)
