"""The Kafka engine: the engine page on topics, groups and transactions of Kafka.

Puts the parts together. A gateway keeps nothing that is not in Kafka but caches: what it knows of topics
(topics.py), of ends (ends.py), of groups (groups.py), and records that were read or written lately
(blocks.py). What it appends itself can be read here at once, without asking Kafka. See
penstock.log.engine for what the calls mean.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock import __version__
from penstock.kafka.accepting import Accepting
from penstock.kafka.blocks import Blocks
from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.cluster import Cluster, Place
from penstock.kafka.duties import Duties
from penstock.kafka.ends import Ends
from penstock.kafka.finding import Finding
from penstock.kafka.gateways import Beat, Gateways
from penstock.kafka.group_shares import GroupShares
from penstock.kafka.groups import KafkaGroups
from penstock.kafka.idempotence import Idempotence
from penstock.kafka.looking import Looking
from penstock.kafka.metadata.store import KafkaMetadata
from penstock.kafka.reading import Fetched, Follower, RangeReaders
from penstock.kafka.reads import Reads
from penstock.kafka.topic_settings import NO_ENCRYPTION
from penstock.kafka.topics import KafkaTopics, Topic
from penstock.kafka.transactions.transactions import KafkaTransactions
from penstock.kafka.visible import Visible
from penstock.log.batch.format import (
    Batch,
)
from penstock.log.engine import (
    AppendToken,
    ClusterView,
    Keys,
    Node,
    PartitionInfo,
    Pending,
    ReadResult,
    Sizes,
    Statistics,
    TopicInfo,
    walk_topics,
)
from penstock.log.errors import (
    InvalidSettings,
    LogClosed,
    LogError,
    UnknownPartition,
)
from penstock.log.settings import TopicSettings
from penstock.log.shares import Changed, GivingAway, Share

# Administration, commits of groups and questions of time: each waits for an answer of Kafka.
THREADS: Final = 8
MILLISECOND_US: Final = 1000
# Accepted and not yet acknowledged by Kafka, over all partitions; librdkafka holds a copy of it.
MAX_UNDURABLE_BYTES: Final = 256 * 1024 * 1024
CACHE_BYTES: Final = 256 * 1024 * 1024
# Groups that this gateway reads for at once, each with a client of librdkafka.
GROUP_CLIENTS: Final = 100
# How long a start waits until it is known who has which duty: longer only where somebody died just now.
DUTIES_S: Final = 3.0

T = TypeVar("T")
Post = Callable[[Callable[[], None]], object]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaEngineOptions:
    """`with_origin`: whether records get a header with the protocol that they came in by."""

    kafka: KafkaOptions
    defaults: TopicSettings = TopicSettings()
    cache_bytes: int = CACHE_BYTES
    undurable_bytes: int = MAX_UNDURABLE_BYTES
    transaction_memory_us: int | None = None
    with_origin: bool = False
    group_clients: int = GROUP_CLIENTS
    gateway_id: str = field(default_factory=lambda: f"gateway-{os.urandom(6).hex()}")


def clock_us() -> int:
    """In whole milliseconds, as Kafka keeps times: a record reads the same here and from Kafka."""
    return time.time_ns() // 1_000_000 * MILLISECOND_US


def steady_clock_us() -> Callable[[], int]:
    """The time now, and what has passed since: no record expires because somebody sets the clock."""
    base_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
    return lambda: base_us + time.monotonic_ns() // 1000


class KafkaEngine:
    def __init__(self, options: KafkaEngineOptions, post: Post) -> None:
        """Raises MetadataUnavailable, KafkaAway or KafkaRefused when Kafka cannot be used."""
        self.options = options
        self.post = post
        self.clock_us = clock_us
        self.run_us = steady_clock_us()
        self.run_base_us: int | None = None
        self.can_encrypt = False
        self.shared = True
        self.lost: str | None = None
        self._closed = False
        with ExitStack() as opened:
            self._open(opened)
            opened.pop_all()

    def _open(self, opened: ExitStack) -> None:
        """`opened` closes everything that was opened so far if a later step fails."""
        options = self.options
        self.clients = Clients(options.kafka)
        self._cluster = Cluster(self.clients)
        self._executor = ThreadPoolExecutor(THREADS, "penstock-kafka")
        opened.callback(self._executor.shutdown)
        self.metadata = KafkaMetadata(self.clients, post=self.post)
        opened.callback(self.metadata.close)
        self.topics_known = KafkaTopics(
            self._cluster, self.metadata, self._executor, self.post, options.defaults, clock_us
        )
        self.topics_known.gone = self._gone
        self._finding = Finding(
            self._cluster, self.topics_known, self.metadata, self.post, options.kafka.reach_s
        )
        self.groups_known = KafkaGroups(
            self.clients, self._cluster, self._executor, self.post, clock_us
        )
        opened.callback(self.groups_known.close)
        self.shares = self.groups_known.shares = GroupShares(
            self.clients,
            options.gateway_id,
            options.group_clients,
            self._cluster.count_members,
            self.groups_known,
            self.post,
        )
        self.ends = Ends()
        self.transactions = KafkaTransactions(
            self.clients,
            self.metadata,
            self.topic,
            clock_us,
            options.transaction_memory_us,
            with_origin=options.with_origin,
            fresh=lambda name, id: self._finding.find(name, expected=True, topic_id=id),
            applied=Visible(self._cluster, self.ends, self.post).wait,
        )
        opened.callback(self.transactions.close)
        self._idempotence = Idempotence(self.metadata, self.transactions)
        self.topics_known.ends_found = self.ends.swept
        self.blocks = Blocks(options.cache_bytes)
        self._accepting = Accepting(
            self.clients,
            self.ends,
            self.blocks,
            self._idempotence,
            self._executor,
            self.post,
            options.undurable_bytes,
            options.with_origin,
            clock_us,
        )
        opened.callback(self._accepting.close)
        self.topics_known.made = self._accepting.appender.look_again
        self._readers = RangeReaders(self.clients, self.post, options.with_origin)
        opened.callback(self._readers.close)
        self._reads = Reads(
            self._cluster, self.ends, self.blocks, self._readers, self._ask, self.run_us
        )
        self._follower = Follower(self.clients, self._followed, options.with_origin)
        opened.callback(self._follower.close)
        self._looking = Looking(
            self._cluster, self.topics_known, self.ends, self.post, self.transactions.expire
        )
        self.gateways = Gateways(self.clients, self._cluster, options.gateway_id)
        opened.callback(self.gateways.close)
        self._duties = Duties(self.metadata, self.gateways, self.post)
        self._looking.first()
        self.groups_known.wait_until_loaded(options.kafka.reach_s)
        self._looking.start()

    # --- the cluster -----------------------------------------------------------------------------

    def announce(self, address: str, flight: str) -> None:
        beat = Beat(address, flight, __version__, clock_us(), duties=self._duties.names)
        self.gateways.announce(beat)
        self._duties.wait_until_known(DUTIES_S)

    def cluster(self) -> ClusterView:
        nodes = [
            Node(one.id, one.beat.address, flight=one.beat.flight, loopback=one.beat.loopback)
            for one in self.gateways.online()
        ]
        nodes += [
            Node(_broker_id(number), "", cluster_address=address)
            for number, address in sorted(self._cluster.brokers.items())
        ]
        trouble = self.metadata.trouble or ""
        return ClusterView("kafka", self._cluster.id, self.gateways.id, tuple(nodes), trouble)

    def share_duty(
        self, name: str, shares: int, gained: Callable[[int], None], lost: Callable[[int], None]
    ) -> None:
        self._duties.share(name, shares, gained, lost)

    def replicas(self, topic: str) -> list[tuple[list[str], list[str]]]:
        found = self.topics_known.get(topic)
        known = self._cluster.replicas
        places = [(found.kafka_name, number) for number in range(found.info.partitions)]
        pairs = [known.get(place, ((), ())) for place in places]
        return [(list(map(_broker_id, all_)), list(map(_broker_id, good))) for all_, good in pairs]

    # --- topics ----------------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        return [info for page in walk_topics(self) for info in page]

    def topic_names(self, after: str | None, limit: int) -> list[str]:
        return self.topics_known.names(after, limit)

    def topic(self, name: str) -> TopicInfo | None:
        found = self.topics_known.by_name.get(name)
        return None if found is None else found.info

    def fresh_topic(self, name: str, *, expected: bool = False) -> Pending[TopicInfo | None]:
        token: Pending[TopicInfo | None] = Pending()
        self._ask(
            lambda: self._finding.find(name, expected=expected),
            lambda found: token.settle(found, None),
            lambda error: token.settle(None, error),
        )
        return token

    def watch_topics(self, watcher: Callable[[str], None]) -> None:
        self.topics_known.watchers.append(watcher)

    def create_topic(
        self, name: str, partitions: int = 1, settings: TopicSettings | None = None
    ) -> TopicInfo:
        chosen = settings if settings is not None else self.options.defaults
        return self.topics_known.create(name, partitions, chosen).info

    def topic_durable(self, name: str) -> Pending[int] | None:
        return self.topics_known.get(name).creation

    def delete_topic(self, name: str) -> Pending[object]:
        return self.topics_known.delete(name)

    def _gone(self, topic: Topic) -> None:
        self.groups_known.forget_topic(topic.kafka_name)
        for number in range(topic.info.partitions):
            place = (topic.kafka_name, number)
            self.blocks.drop(place)
            self._follower.leave(place)
            for wake in self.ends.forget(place):
                wake()

    def change_topic(
        self, name: str, changes: dict[str, object], partitions: int | None = None
    ) -> Pending[object]:
        return self.topics_known.change(name, changes, partitions)

    def use_keys(self, keys: Keys) -> None:
        if keys.current:
            raise InvalidSettings("encryption", True, NO_ENCRYPTION)

    def keys_needed(self, topic: str) -> list[int]:
        self.topics_known.get(topic)
        return []

    def partition_info(self, topic: str, partition: int) -> PartitionInfo:
        """Kafka tells neither sizes nor segments: they are 0."""
        earliest, latest = self.offsets(topic, partition)
        return PartitionInfo(topic, partition, earliest, latest, latest, 0, 0, None, ())

    def is_stopped(self, topic: str, partition: int) -> bool:
        self._place(topic, partition)
        return False

    def written_partitions(self, topic: str) -> list[int]:
        found = self.topics_known.get(topic)
        return [
            number
            for number in range(found.info.partitions)
            if self.ends.of((found.kafka_name, number)).latest
        ]

    def _place(self, topic: str, partition: int) -> tuple[Topic, Place]:
        """Raises UnknownTopic, UnknownPartition."""
        found = self.topics_known.get(topic)
        if not 0 <= partition < found.info.partitions:
            raise UnknownPartition(topic, partition)
        return found, (found.kafka_name, partition)

    # --- appends ---------------------------------------------------------------------------------

    def append(self, topic: str, partition: int, batch: Batch) -> AppendToken:
        if self._closed:
            raise LogClosed
        return self._accepting.append(*self._place(topic, partition), batch)

    @property
    def undurable_bytes(self) -> int:
        return self._accepting.undurable.total

    # --- reads -----------------------------------------------------------------------------------

    def read(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, early: bool = False
    ) -> Pending[ReadResult]:
        """Nothing is early here: what Kafka has not acknowledged is not shown."""
        _, place = self._place(topic, partition)
        token: Pending[ReadResult] = Pending()
        self._reads.read(token, place, offset, max_bytes)
        return token

    def _followed(self, news: list[Fetched]) -> None:
        self.post(lambda: self._take_news(news))

    def _take_news(self, news: list[Fetched]) -> None:
        for found in news:
            self._reads.keep(found)

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        return self.ends.both(self._place(topic, partition)[1])

    def fresh_offsets(self, topic: str, partition: int, seen: int = 0) -> Pending[tuple[int, int]]:
        found, place = self._place(topic, partition)
        token: Pending[tuple[int, int]] = Pending()
        known = self.ends.is_fresh(place) and self.ends.of(place).latest >= seen
        if found.creation is not None or known:
            token.settle(self.offsets(topic, partition), None)
            return token

        def told(_: object) -> None:
            token.settle(self.ends.both(place), None)

        self._reads.ask_ends([place], told, lambda error: token.settle(None, error))
        return token

    def all_fresh_offsets(self, topic: str) -> Pending[object]:
        found = self.topics_known.get(topic)
        token: Pending[object] = Pending()
        if found.creation is not None:
            token.settle(None, None)
            return token
        places = [(found.kafka_name, number) for number in range(found.info.partitions)]
        self._reads.ask_ends(
            places, lambda _: token.settle(None, None), lambda error: token.settle(None, error)
        )
        return token

    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]:
        _, place = self._place(topic, partition)
        token: Pending[int] = Pending()

        def asked() -> int:
            found = self._cluster.at_time(place, -(-time_us // MILLISECOND_US))
            return found if found is not None else self._cluster.latest([place]).get(place, 0)

        self._ask(asked, lambda found: token.settle(found, None), lambda e: token.settle(None, e))
        return token

    def watch(self, topic: str, partition: int, offset: int, callback: Callable[[], None]) -> None:
        _, place = self._place(topic, partition)
        if self.ends.watch(place, offset, callback):
            self._follower.follow(place, self.ends.of(place).latest)
        else:
            callback()

    def watch_early(
        self, topic: str, partition: int, offset: int, callback: Callable[[], None]
    ) -> None:
        """Nothing is early here; the other watch tells of it."""

    def unwatch(self, topic: str, partition: int, callback: Callable[[], None]) -> None:
        found = self.topics_known.by_name.get(topic)
        if found is None:
            return
        place = (found.kafka_name, partition)
        self.ends.unwatch(place, callback)
        if not self.ends.of(place).watchers:
            self._follower.leave(place)

    # --- groups ----------------------------------------------------------------------------------

    def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> Pending[object]:
        self._place(topic, partition)
        return self.groups_known.commit(group, topic, partition, offset)

    def committed_offset(self, group: str, topic: str, partition: int) -> int | None:
        return self.groups_known.committed(group, topic, partition)

    def groups(self) -> dict[str, dict[tuple[str, int], int]]:
        return self.groups_known.all()

    def group_names(self, after: str | None, limit: int) -> list[str]:
        return self.groups_known.names(after, limit)

    def group(self, group: str) -> Mapping[tuple[str, int], int]:
        return self.groups_known.of(group)

    def group_updated_us(self, group: str) -> int | None:
        return self.groups_known.updated_us(group)

    def delete_group(self, group: str, topic: str | None = None) -> Pending[object]:
        return self.groups_known.delete(group, topic)

    def share(self, group: str, topic: str, changed: Changed, giving_away: GivingAway) -> Share:
        found = self.topics_known.get(topic)
        if self._closed:
            raise LogClosed
        self.groups_known.check_name(group)
        share = self.shares.join(group, found.kafka_name, changed, giving_away)
        if found.creation is None:
            share.topic_made(None)
        else:
            found.waiting.append(share.topic_made)
        return share

    def purge_topic(self, topic: str) -> Pending[int]:
        """Kafka does not tell how many bytes that gave back: 0."""
        found = self.topics_known.get(topic)
        token: Pending[int] = Pending()
        places = [(found.kafka_name, number) for number in range(found.info.partitions)]

        def purge() -> dict[Place, int]:
            ends = self._cluster.latest(places)
            self._cluster.purge({place: end for place, end in ends.items() if end})
            return ends

        def purged(ends: dict[Place, int]) -> None:
            self.ends.swept(ends, ends)
            for place in places:
                self.blocks.drop(place)
            token.settle(0, None)

        self._ask(purge, purged, lambda error: token.settle(None, error))
        return token

    # --- what is watched -------------------------------------------------------------------------

    def sizes(self) -> Sizes:
        topics = self.topics_known
        return Sizes(len(topics.by_name), topics.partition_count, len(self.groups_known))

    def statistics(self) -> Statistics:
        start_offsets, end_offsets = self.ends.sums()
        return Statistics(
            log=self._accepting.counted(),
            topics=len(self.topics_known.by_name),
            partitions=self.topics_known.partition_count,
            partitions_stopped=0,
            start_offsets=start_offsets,
            end_offsets=end_offsets,
            transactions_unfinished=self.transactions.unfinished,
            transaction_retries=0,
            metadata_commits=self.metadata.commits,
            metadata_changes=self.metadata.changes,
            undurable_bytes=self._accepting.undurable.total,
        )

    def partition_directory(self, topic: str, partition: int) -> str | None:
        return None

    # --- threads ---------------------------------------------------------------------------------

    def _ask(
        self,
        question: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[BaseException], object],
    ) -> None:
        def run() -> None:
            try:
                answer = question()
            except Exception as error:  # whoever waits is told, whatever it is
                if not isinstance(error, LogError):
                    logger.exception("a question to Kafka failed")
                failure = error
                self.post(lambda: _call(failed, failure))
                return
            self.post(lambda: answered(answer))

        try:
            self._executor.submit(run)
        except RuntimeError:  # an executor raises it after its shutdown, and only then
            failed(LogClosed())

    def close(self) -> None:
        """Not on the thread that `post` runs completions in."""
        if self._closed:
            return
        self._closed = True
        self.gateways.close()
        self._looking.close()
        self._follower.close()
        self._readers.close()
        self.shares.close()
        # Topics that are being made, and then the appends that wait for them.
        self.groups_known.close()
        self._executor.shutdown()
        self._finish_turn()
        self._accepting.close()
        self.transactions.close()
        self.metadata.close()

    def _finish_turn(self) -> None:
        """What was posted so far is done when this returns."""
        done = threading.Event()
        self.post(done.set)
        done.wait(self.options.kafka.reach_s)


def _broker_id(number: int) -> str:
    return f"broker-{number}"


def _call(failed: Callable[[BaseException], object], error: BaseException) -> None:
    failed(error)
