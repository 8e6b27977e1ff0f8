"""One client of librdkafka that is a member of a group: it holds partitions for this gateway, and reads
nothing.

By Kafka's own protocol (the classic one, which every client speaks): the members of a group agree on who
has which partition, and Kafka tells each. Its partitions are paused as soon as they come; who reads them
here does so as always, through the engine. A member commits with its generation, so one that was thrown
out cannot undo what the next holder has done.

`turn` is called again and again in one thread, which is that of the callbacks too (`group_pollers.py`).
What they find out goes to the event loop, in the order in which it happened.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.kafka.clients import Clients, as_kafka_error
from penstock.kafka.cluster import AWAY, KafkaTrouble, Place, trouble_of

# A gateway that dies loses its partitions after this long, as it loses its other duties.
SESSION_MS: Final = 10_000
# How soon a member hears that the group is shared out anew.
BEAT_MS: Final = 1_000
# How soon new partitions of a topic are noticed: the client that leads the group looks for them.
METADATA_MS: Final = 5_000
# What every client speaks by default; one that is new may not be mixed with them.
STRATEGY: Final = "range,roundrobin"
# A partition that is given away waits this long for the last commits: Kafka and all other members do, too.
RELEASE_S: Final = 1.0
# The committed offsets of partitions that came. Where Kafka does not tell in time, the gateway goes by what
# it has read in the topic of offsets, which may be a moment behind.
COMMITTED_S: Final = 5.0
# How soon a commit that cannot have the consumer looks whether it has to hand itself over.
TURN_S: Final = 0.01
# After an error of the library, before the next attempt.
PAUSE_S: Final = 1.0
# How long a member may be without knowing what it holds before those who wait are told. Shorter than a
# client waits for an answer.
PATIENCE_S: Final = 8.0
# Events of one turn: a rebalance has two or three.
EVENTS_AT_ONCE: Final = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assigned:
    """`topics`: those that were subscribed to. `committed`: of what is held, where Kafka has told it; None
    where nothing is. `alone`: the group has no other member; known of the first one alone."""

    topics: frozenset[str]
    held: frozenset[Place]
    committed: Mapping[Place, int | None]
    alone: bool


class NotSharedOut(KafkaTrouble):
    line = "Kafka has not told yet which partitions this server has of {what}: {reason}; try again"


class Listener(Protocol):
    """Hears of a member. Called in its thread."""

    def releasing(self, done: Callable[[], None]) -> None:
        """All partitions are about to go: `done` when nothing has to be committed any more."""
        ...

    def released(self) -> None:
        """They are gone until `assigned`."""
        ...

    def lost(self) -> None:
        """They were gone before anybody could say so."""
        ...

    def assigned(self, news: "Assigned") -> None:
        """It is known again what is held."""
        ...

    def unchanged(self, topics: frozenset[str]) -> None:
        """These are wanted again, as before: nothing is shared out anew."""
        ...

    def tired(self, error: KafkaTrouble, refused: bool) -> None:
        """It has not been known for long what is held. `refused`: because Kafka has said no."""
        ...


class _Commit:
    """One that another thread waits for."""

    def __init__(self, offsets: Mapping[Place, int]) -> None:
        self._offsets = offsets
        self._done = threading.Event()
        self._error: KafkaTrouble | None = None

    def settle(self, commit: Callable[[Mapping[Place, int]], None]) -> None:
        try:
            commit(self._offsets)
        except KafkaTrouble as error:
            self._error = error
        self._done.set()

    def wait(self) -> None:
        """Raises KafkaTrouble. Nobody takes it up any more where the release is over."""
        if not self._done.wait(2 * RELEASE_S):
            raise trouble_of("commit in time", KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        if self._error is not None:
            raise self._error


class GroupMember:
    """`topics` and `leaving` are set by the event loop; everything else belongs to the thread of `turn`."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        client_id: str,
        count_members: Callable[[str], int],
        listener: Listener,
    ) -> None:
        self.group = group
        # By their names in Kafka.
        self.topics: frozenset[str] = frozenset()
        self.leaving = False
        self.left = threading.Event()
        self._clients = clients
        self._client_id = client_id
        self._count_members = count_members
        self._listener = listener
        self._consumer: Consumer | None = None
        # The library lets one thread into a consumer at a time, and its callbacks count as the call that
        # they came from. A commit of another thread waits here instead, where it can be handed over.
        self._in_use = threading.Lock()
        # Of the release that is under way; None ends it.
        self._last_commits: queue.SimpleQueue[_Commit | None] | None = None
        self._held: frozenset[Place] = frozenset()
        self._holds = False
        self._was_assigned = False
        self._subscribed: frozenset[str] = frozenset()
        # As they were set last: the same again means that somebody waits to hear of them.
        self._seen_topics: frozenset[str] = frozenset()
        self._paused_until_s = 0.0
        # Since when it is not known what is held; None while it is, and when that was told.
        self._waiting_since_s: float | None = time.monotonic()
        self._reason = "the other members have not agreed"
        self._complained = False

    # --- in its thread ----------------------------------------------------------------------------

    def turn(self) -> bool:
        """False: it has left, and is not to be called again."""
        if self.leaving:
            self.close()
            return False
        if time.monotonic() < self._paused_until_s:
            return True
        try:
            with self._in_use, as_kafka_error():
                self._work()
        except KafkaException as error:
            self._complain(error.args[0])
            self._begin_anew()
            self._paused_until_s = time.monotonic() + PAUSE_S
        self._look_at_the_time()
        return True

    def _work(self) -> None:
        topics = self.topics
        if not topics:
            return  # they are not made yet
        if self._consumer is None:
            self._consumer = self._made()
        if topics is not self._seen_topics:
            self._seen_topics = topics
            self._subscribe(self._consumer, topics)
        for _ in range(EVENTS_AT_ONCE):
            message = self._consumer.poll(0)
            if message is None:
                return
            error = message.error()
            if error is not None and error.fatal():
                raise KafkaException(error)
            if error is not None:
                self._complain(error)

    def _subscribe(self, consumer: Consumer, topics: frozenset[str]) -> None:
        if topics == self._subscribed:
            if self._holds:
                self._listener.unchanged(topics)
            return
        consumer.subscribe(
            sorted(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._subscribed = topics
        # Nothing is shared out anew where Kafka does not give a topic: those who wait are told then, too.
        if self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()

    def _begin_anew(self) -> None:
        """With another consumer: this one is of no use any more, or it never was."""
        if self._holds:
            self._lost_all()
        self._close_consumer()
        self._subscribed = self._seen_topics = frozenset()

    def _made(self) -> Consumer:
        chosen = self._clients.options.client
        times = {
            "session.timeout.ms": chosen.get("session.timeout.ms", SESSION_MS),
            "heartbeat.interval.ms": chosen.get("heartbeat.interval.ms", BEAT_MS),
        }
        return self._clients.consumer(
            group_id=self.group,
            group_protocol="classic",
            client_id=self._client_id,
            partition_assignment_strategy=STRATEGY,
            topic_metadata_refresh_interval_ms=METADATA_MS,
            fetch_message_max_bytes=1024,
            **{name.replace(".", "_"): value for name, value in times.items()},
        )

    def _look_at_the_time(self) -> None:
        since_s = self._waiting_since_s
        if since_s is not None and time.monotonic() - since_s > PATIENCE_S:
            self._waiting_since_s = None
            code = KafkaError._TIMED_OUT
            error = NotSharedOut(f"group {self.group!r}", self._reason, code)
            self._listener.tired(error, self._complained)

    def _complain(self, error: object) -> None:
        """Once for each time that it is in the group. That nobody answers is told once for all clients."""
        found = trouble_of(f"read for group {self.group!r}", error)
        self._reason = found.reason
        if not self._complained and found.code not in AWAY:
            logger.warning("%s", found)
        self._complained = True

    def close(self) -> None:
        """Leaves the group, so that others have its partitions at once."""
        self._release()
        self._close_consumer()
        self.left.set()

    def _close_consumer(self) -> None:
        with self._in_use:
            consumer, self._consumer = self._consumer, None
            try:
                if consumer is not None:
                    with as_kafka_error():
                        consumer.close()
            except (KafkaException, RuntimeError) as error:
                logger.warning("leaving group %r: %s", self.group, error)

    # --- what Kafka tells, in the same thread -----------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        # From the end: where a fetch begins before the pause, there is nothing.
        consumer.assign([TopicPartition(one.topic, one.partition, OFFSET_END) for one in places])
        consumer.pause(places)
        held = frozenset((one.topic, one.partition) for one in places)
        news = Assigned(self._subscribed, held, self._committed(consumer, places), self._is_alone())
        self._held, self._holds = held, True
        self._waiting_since_s = None
        self._complained = False
        self._listener.assigned(news)

    def _committed(
        self, consumer: Consumer, places: list[TopicPartition]
    ) -> dict[Place, int | None]:
        try:
            found = consumer.committed(places, timeout=COMMITTED_S) if places else []
        except KafkaException as error:
            self._complain(error.args[0])
            return {}
        return {
            (one.topic, one.partition): one.offset if one.offset >= 0 else None
            for one in found
            if one.error is None
        }

    def _is_alone(self) -> bool:
        """Asked once, when it begins. Where nobody can tell, nothing that is committed is passed over."""
        if self._was_assigned:
            return False
        self._was_assigned = True
        try:
            return self._count_members(self.group) <= 1
        except KafkaTrouble:
            return False

    def _revoked(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        self._release()

    def _release(self) -> None:
        if not self._holds:
            return
        self._holds = False
        commits: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        self._last_commits = commits
        self._listener.releasing(lambda: commits.put(None))
        self._commit_last(commits, time.monotonic() + RELEASE_S)
        self._last_commits = None
        self._held = frozenset()
        self._waiting_since_s = time.monotonic()
        self._listener.released()

    def _commit_last(self, commits: "queue.SimpleQueue[_Commit | None]", until_s: float) -> None:
        """What is handed over, until it is said that nothing follows."""
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                commit = commits.get(timeout=left_s)
            except queue.Empty:
                return
            if commit is None:
                return
            commit.settle(self._commit_now)

    def _lost(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        self._lost_all()

    def _lost_all(self) -> None:
        self._held, self._holds = frozenset(), False
        self._waiting_since_s = time.monotonic()
        self._listener.lost()

    # --- in any thread ----------------------------------------------------------------------------

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """As a member, of what it holds. Raises KafkaTrouble, with UNKNOWN_MEMBER_ID where it does not hold
        all of it any more."""
        while not self._in_use.acquire(timeout=TURN_S):
            commits = self._last_commits
            if commits is not None:
                handed_over = _Commit(offsets)
                commits.put(handed_over)
                handed_over.wait()
                return
        try:
            self._commit_now(offsets)
        finally:
            self._in_use.release()

    def _commit_now(self, offsets: Mapping[Place, int]) -> None:
        what = f"commit offsets of group {self.group!r}"
        places = [
            TopicPartition(name, number, offset) for (name, number), offset in offsets.items()
        ]
        if self._consumer is None or not self._held.issuperset(offsets):
            raise trouble_of(what, KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise trouble_of(what, error) from None
        for place in done or ():
            if place.error is not None:
                raise trouble_of(what, place.error)
