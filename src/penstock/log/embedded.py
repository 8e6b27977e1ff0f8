"""The embedded engine: the log of this machine, behind the engine boundary.

Puts together metadata, catalogue, partitions, commit threads, reader threads and maintenance. Opens and
closes a data directory; one process at a time.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from penstock.log.alone import Alone
from penstock.log.batch.encryption import Keyring
from penstock.log.batch.format import Batch
from penstock.log.batch.record_limit import check_record_sizes
from penstock.log.engine import Keys, PartitionInfo, Sizes, TopicInfo, walk_topics
from penstock.log.errors import (
    AppendFailed,
    LogClosed,
    LogError,
    Overloaded,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.maintenance import Maintenance
from penstock.log.metadata.catalogue import Catalogue, Topic
from penstock.log.metadata.groups import GroupOffsets
from penstock.log.metadata.key_table import KeyTable
from penstock.log.metadata.rebuild import check_metadata_is_there
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata.transaction_rows import TransactionTable
from penstock.log.options import EngineOptions
from penstock.log.partitions import cleaner
from penstock.log.partitions.commit import GroupCommit, Later, Post, call_now
from penstock.log.partitions.damage_report import log_damages
from penstock.log.partitions.describing import describe
from penstock.log.partitions.ends import Ends, take_ends
from penstock.log.partitions.flush_threads import FlushThreads
from penstock.log.partitions.gate import gate
from penstock.log.partitions.opening import Openings, Partitions, note_ends
from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.scrub import Scrub
from penstock.log.partitions.tokens import AppendToken, UndurableBytes
from penstock.log.partitions.totals import LogTotals
from penstock.log.pending import Pending
from penstock.log.settings import TopicSettings
from penstock.log.shares import WHOLE_TOPIC, Changed, GivingAway, Share
from penstock.log.statistics import Statistics
from penstock.log.storage import reader
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import FileSystem, RealFiles
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.lock import DataDirectoryLock
from penstock.log.storage.names import METADATA_FILE
from penstock.log.storage.presence import Presence
from penstock.log.storage.reader import ReadResult
from penstock.log.storage.reserve import Reserve
from penstock.log.storage.steady_clock import RunClock, SteadyClock, boot_time_s, wall_clock_us
from penstock.log.transactions.staging import Staging
from penstock.log.transactions.transactions import Transactions

# Reads that miss the cache wait for the disk: two can wait at the same time without a queue.
READER_THREADS = 2
# A start after a crash opens the partitions that the last process had not closed, for at most this long.
# The rest is opened in the background, or earlier when it is used.
RECOVERY_WAIT_S = 5.0

__all__ = ["EmbeddedEngine", "EngineOptions", "boot_time_s", "wall_clock_us"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EmbeddedEngine:
    """See engine.Engine for what the calls mean."""

    def __init__(
        self,
        directory: str,
        options: EngineOptions | None = None,
        *,
        post: Post = call_now,
        files: FileSystem | None = None,
        clock_us: Callable[[], int] = wall_clock_us,
        monotonic: Callable[[], float] = time.monotonic,
        observe_flush: Callable[[float, int], None] | None = None,
        elapsed_s: Callable[[], float] | None = None,
        later: Later | None = None,
    ) -> None:
        """`elapsed_s` confirms the clock (steady_clock.py); without it the wall clock is trusted.
        `later` calls back after a delay in the thread that `post` calls back in: given where `append` is
        only called in that thread."""
        self.directory = directory
        self.options = options if options is not None else EngineOptions()
        self.post = post
        self.clock_us = clock_us
        self._monotonic = monotonic
        self._later = later
        self._undurable = UndurableBytes(self.options.undurable_bytes)
        self._observe_flush = observe_flush
        self.files = files if files is not None else RealFiles()
        self.files.make_directory(directory)
        self._lock = DataDirectoryLock(directory)
        self.steady_us = SteadyClock(clock_us, elapsed_s, self._lock.last_used_us)
        self.run_us = RunClock(clock_us, elapsed_s, self._lock.last_used_us)
        self._lock.note_use(self.steady_us())
        self._totals = LogTotals()
        alone = Alone(self.topic, self.offsets)
        self.announce, self.cluster, self.replicas = alone.announce, alone.cluster, alone.replicas
        self.share_duty, self.fresh_offsets = alone.share_duty, alone.fresh_offsets
        self.fresh_topic, self.all_fresh_offsets = alone.fresh_topic, alone.all_fresh_offsets
        self.shared = False
        with ExitStack() as opened:
            opened.callback(self._lock.release)
            self._open(opened)
            opened.pop_all()

    def _open(self, opened: ExitStack) -> None:
        """`opened` closes everything that was opened so far if a later step fails."""
        check_metadata_is_there(self.files, self.directory)
        self.cache = BatchCache(self.options.cache_bytes)
        self.pool = HandlePool(self.files, self.options.open_files)
        opened.callback(self.pool.close)
        # Flushes that run while the next group is written; none where the caller steps by hand.
        threads = self.options.commit_threads
        self._flush_threads = FlushThreads(threads, self.post) if threads else None
        if self._flush_threads is not None:
            opened.callback(self._flush_threads.close)
        self.reserve = Reserve(self.files, self.directory)
        self.reserve.fill()
        self.metadata = MetadataStore(
            f"{self.directory}/{METADATA_FILE}", post=self.post, make_space=self.reserve.spend
        )
        opened.callback(self.metadata.close)
        known = take_ends(self.files, self.directory)
        self.catalogue = Catalogue(
            self.directory, self.files, self.metadata, self._open_partition, self.clock_us, known
        )
        self._topics = self.catalogue.by_name
        self.keys = Keyring()
        self._key_table = KeyTable(self.metadata, self.keys)
        self._adopt_keys(self.options.keys)
        names = {topic.info.id: topic.info.name for topic in self.catalogue}
        self._groups = GroupOffsets(self.metadata, names, self.clock_us)
        later = self._later if threads else None
        self.commit = GroupCommit(threads, self.post, self._monotonic, later=later)
        opened.callback(self.commit.close)
        rows = TransactionTable(self.metadata)
        self.transactions = Transactions(
            Staging(self.directory, self.files, rows.content_of, self.keys),
            rows,
            self.catalogue,
            self.commit,
            self.reserve,
            self.steady_us,
            self.post,
            self.options.transaction_memory_us,
        )
        opened.callback(self.transactions.close)
        self.transactions.recover()
        self._readers = ThreadPoolExecutor(READER_THREADS, "penstock-read")
        opened.callback(self._readers.shutdown)
        run = self._run_in_reader if threads else None
        self._openings = Openings(run, self.post, self.commit.submit)
        self._closing = threading.Event()
        self._presence = Presence(self._lock, self.metadata.refuse, self.steady_us)
        opened.callback(self._presence.close)
        unknown = self._open_unknown(self._unknown(), RECOVERY_WAIT_S)
        if unknown:
            self._readers.submit(self._open_unknown, unknown)
        self._maintenance = Maintenance(
            self.catalogue,
            self.transactions,
            self.reserve,
            self._presence,
            self.keys,
            self.steady_us,
            self.post,
            self._open_unknown,
            self.options.maintenance_interval_s,
        )
        self._maintenance.start()
        self._scrub = self._start_scrub()

    def _start_scrub(self) -> tuple[Scrub, threading.Thread] | None:
        period_us = self.options.scrub_period_us
        if period_us is None:
            return None
        scrub = Scrub(
            self.files,
            self.directory,
            period_us,
            lambda: [one for topic in self.catalogue for one in topic.partitions.all_opened()],
            self.steady_us,
            self._closing.wait,
        )
        return scrub, scrub.start()

    def _unknown(self) -> list[tuple[Partitions, int]]:
        return [
            (topic.partitions, number)
            for topic in self.catalogue
            for number in topic.partitions.unknown()
        ]

    def _open_unknown(
        self, unknown: Sequence[tuple[Partitions, int]], at_most_s: float | None = None
    ) -> Sequence[tuple[Partitions, int]]:
        """Opens partitions that the last process left open, to report damage; returns the rest."""
        began_s = self._monotonic()
        for at, (partitions, number) in enumerate(unknown):
            late = at_most_s is not None and self._monotonic() - began_s > at_most_s
            if late or self._closing.is_set():
                return unknown[at:]
            if at_most_s is not None:
                partitions.open(number)
                continue
            try:
                partitions.open(number)
            except (LogError, OSError) as error:
                logger.error("%s/%d cannot be opened: %s", partitions.path, number, error)
        return []

    def _open_partition(self, path: str, settings: TopicSettings, ends: Ends) -> Partition:
        partition = Partition(
            path,
            settings,
            self.pool,
            self.cache,
            self.run_us,
            self._observe_flush,
            self._flush_threads,
            durable_offset=ends.next_offset,
            keys=self.keys,
        )
        partition.wake_early = lambda wakes: self._deliver(Outcome(wakes))
        found = partition.recovered
        if found.cut_bytes:
            logger.warning("%s: torn tail of %d bytes cut", found.cut_path, found.cut_bytes)
        log_damages(found.damages)
        return partition

    @property
    def run_base_us(self) -> int | None:
        return self.run_us.base_us

    # --- topics ----------------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        return [info for page in walk_topics(self) for info in page]

    def topic_names(self, after: str | None, limit: int) -> list[str]:
        return self.catalogue.names.page(after, limit)

    def topic(self, name: str) -> TopicInfo | None:
        topic = self._topics.get(name)
        return topic.info if topic is not None else None

    def watch_topics(self, watcher: Callable[[str], None]) -> None:
        self.catalogue.watchers.append(watcher)

    def create_topic(
        self, name: str, partitions: int = 1, settings: TopicSettings | None = None
    ) -> TopicInfo:
        chosen = settings if settings is not None else self.options.defaults
        topic = self.catalogue.create(name, partitions, chosen)
        if topic.creation is not None:
            topic.creation.on_done(lambda change: self._created(change, topic))
        return topic.info

    def _created(self, change: Pending[int], topic: Topic) -> None:
        """Removes the files of a topic whose creation failed."""
        if change.error is not None:
            self.catalogue.remove_files(topic.directory, lambda: self._stop_partitions(topic))

    def topic_durable(self, name: str) -> Pending[int] | None:
        return self.catalogue.get(name).creation

    def delete_topic(self, name: str) -> Pending[object]:
        return self.catalogue.remove(name, self._removed)

    def _removed(self, topic: Topic) -> None:
        topic.partitions.refuse(topic.info.name)
        self._groups.forget_topic(topic.info.id)
        self.catalogue.remove_files(topic.directory, lambda: self._stop_partitions(topic))

    def _stop_partitions(self, topic: Topic) -> None:
        """In a thread of its own: a flush may be under way."""
        name = topic.info.name
        stopping = topic.partitions.close(name)
        for partition in stopping:
            self._deliver(partition.abandon(name))
            self.commit.forget(partition)
            self._deliver(partition.settle())
            # Again: a commit that was under way may have opened a file meanwhile, and an open file
            # would keep its space.
            self._deliver(partition.abandon(name))
        self.cache.drop({partition.tail for partition in stopping})

    def _deliver(self, outcome: Outcome) -> None:
        if outcome.tokens or outcome.wakes:
            self.post(lambda: deliver(outcome))

    def change_topic(
        self, name: str, changes: dict[str, object], partitions: int | None = None
    ) -> Pending[tuple[int, TopicSettings]]:
        change = self.catalogue.change(name, changes, partitions)
        if "encryption" in changes:
            change.on_done(lambda _: self._maintenance.soon())
        return change

    @property
    def can_encrypt(self) -> bool:
        return bool(self.keys.current)

    def use_keys(self, keys: Keys) -> None:
        self._key_table.check(keys, self.catalogue)
        # The old ones stay until nobody can begin to use them: a topic may be made at this moment.
        self._adopt_keys(Keys({**self.keys.by_id, **keys.by_id}, keys.current))
        self._adopt_keys(keys)
        self._maintenance.soon()

    def _adopt_keys(self, keys: Keys) -> None:
        self.catalogue.key_generation = self._key_table.adopt(keys, self.catalogue)

    def keys_needed(self, topic: str) -> list[int]:
        return self._key_table.ids_since(self.catalogue.get(topic).keys_since)

    def partition_info(self, topic: str, partition: int) -> PartitionInfo:
        return describe(topic, partition, self._place(topic, partition).partitions)

    def is_stopped(self, topic: str, partition: int) -> bool:
        found = self._place(topic, partition).partitions.opened(partition)
        return found is not None and found.stopped is not None

    def written_partitions(self, topic: str) -> list[int]:
        return self.catalogue.get(topic).partitions.touched()

    # --- records ---------------------------------------------------------------------------------

    def _place(self, topic: str, partition: int) -> Topic:
        """The topic, if it has such a partition. Raises UnknownTopic, UnknownPartition."""
        found = self._topics.get(topic)
        if found is None:
            raise UnknownTopic(topic)
        if not 0 <= partition < found.partitions.count:
            raise UnknownPartition(topic, partition)
        return found

    def append(self, topic: str, partition: int, batch: Batch) -> AppendToken:
        found = self._place(topic, partition)
        partitions = found.partitions
        check_record_sizes(batch, found.info.settings.record_bytes)
        if self.reserve.spent:
            self.reserve.check(partitions.path)
        if self._presence.lost is not None:
            raise AppendFailed(partitions.path, self._presence.lost)
        size = batch.size()
        undurable = self._undurable
        if undurable.total + size > undurable.limit:
            raise Overloaded(partitions.path, f"{undurable.total} bytes wait to be durable")
        target = None
        if partitions.by_number is not None and not self._openings.waiting:
            target = partitions.by_number.get(partition)
        if target is None:
            target = self._openings.partition(partitions, partition)
        if target is None:
            token = self._openings.append(partitions, partition, batch)
        else:
            token = self.commit.append(target, batch)
        if not token.done:
            token.count_in(undurable, size)
        if found.described is not found.info:
            self.catalogue.note_records(found)
        if found.creation is None:
            return token
        return gate(token, found.creation)

    def read(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, early: bool = False
    ) -> Pending[ReadResult]:
        partitions = self._place(topic, partition).partitions
        source = (partitions.by_number or {}).get(partition)
        token: Pending[ReadResult] = Pending()
        if source is None:
            self._in_thread(token, lambda: _read(partitions.open(partition), offset, max_bytes))
            return token
        end = source.early_offset if early else None
        if reader.in_memory(source, offset, end):
            _settle_now(token, lambda: _read(source, offset, max_bytes, end, cached=True))
        else:
            self._in_thread(token, lambda: _read(source, offset, max_bytes, end))
        return token

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        partitions = self._place(topic, partition).partitions
        by_number = partitions.by_number
        found = by_number.get(partition) if by_number is not None else None
        if found is not None:
            return found.start_offset, found.visible_offset
        ends = partitions.ends(partition)  # first: they go when the partition is open
        found = partitions.opened(partition)
        if found is None:
            if ends is not None:
                return ends.start_offset, ends.next_offset
            # Only in the moments after a crash, until everything is opened in the background.
            found = partitions.open(partition)
        return found.start_offset, found.visible_offset

    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]:
        partitions = self._place(topic, partition).partitions
        token: Pending[int] = Pending()

        def find() -> int:
            source = partitions.open(partition)
            with source.damages.telling():
                offset = reader.offset_at_time(source, time_us)
            return offset if offset is not None else source.visible_offset

        self._in_thread(token, find)
        return token

    def watch(self, topic: str, partition: int, offset: int, callback: Callable[[], None]) -> None:
        partitions = self._place(topic, partition).partitions
        self._openings.watch(partitions, partition, offset, callback)

    def watch_early(
        self, topic: str, partition: int, offset: int, callback: Callable[[], None]
    ) -> None:
        found = self._place(topic, partition).partitions.opened(partition)
        if found is not None:  # else it is opened by the watch of what is durable
            found.watch_early(offset, callback)

    def unwatch(self, topic: str, partition: int, callback: Callable[[], None]) -> None:
        found = self.catalogue.find(topic)
        if found is not None:
            self._openings.unwatch(found.partitions, partition, callback)

    # --- groups ----------------------------------------------------------------------------------

    def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> Pending[object]:
        self.catalogue.partitions(topic, partition)
        topic_id = self.catalogue.get(topic).info.id
        return self._groups.commit(group, topic, topic_id, partition, offset)

    def committed_offset(self, group: str, topic: str, partition: int) -> int | None:
        return self._groups.committed(group, topic, partition)

    def groups(self) -> dict[str, dict[tuple[str, int], int]]:
        return self._groups.all()

    def group_names(self, after: str | None, limit: int) -> list[str]:
        return self._groups.names.page(after, limit)

    def group(self, group: str) -> Mapping[tuple[str, int], int]:
        return self._groups.of(group)

    def group_updated_us(self, group: str) -> int | None:
        return self._groups.updated_us(group)

    def delete_group(self, group: str, topic: str | None = None) -> Pending[object]:
        topics = {name for name, _ in self._groups.of(group) if topic in (None, name)}
        return self._groups.delete(group, [self.catalogue.get(name).info.id for name in topics])

    def share(self, group: str, topic: str, changed: Changed, giving_away: GivingAway) -> Share:
        """Nobody else serves this log."""
        self.catalogue.get(topic)
        return WHOLE_TOPIC

    def purge_topic(self, topic: str) -> Pending[int]:
        partitions = self.catalogue.get(topic).partitions
        token: Pending[int] = Pending()

        def purge() -> int:
            return sum(cleaner.purge(partitions.open(number)) for number in partitions.touched())

        self._in_thread(token, purge)
        return token

    def sizes(self) -> Sizes:
        return Sizes(len(self.catalogue), self.catalogue.partition_count, len(self._groups))

    # --- what is watched -------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        opened = [one for topic in self.catalogue for one in topic.partitions.all_opened()]
        start_offsets, end_offsets = self.catalogue.offsets()
        return Statistics(
            log=self._totals.of(opened),
            topics=len(self.catalogue),
            partitions=self.catalogue.partition_count,
            partitions_stopped=sum(partition.stopped is not None for partition in opened),
            start_offsets=start_offsets,
            end_offsets=end_offsets,
            transactions_unfinished=self.transactions.unfinished,
            transaction_retries=self.transactions.retries,
            metadata_commits=self.metadata.commits,
            metadata_changes=self.metadata.changes,
            undurable_bytes=self._undurable.total,
            clock_step_us=self.steady_us.step_us,
            reencrypted_segments=self._maintenance.reencrypted_segments,
            reencrypted_bytes=self._maintenance.reencrypted_bytes,
            topics_by_key=self._key_table.topics_by_key(self.catalogue),
            scrubbed_bytes=0 if self._scrub is None else self._scrub[0].read_bytes,
        )

    @property
    def undurable_bytes(self) -> int:
        return self._undurable.total

    @property
    def lost(self) -> str | None:
        return self._presence.lost

    def partition_directory(self, topic: str, partition: int) -> str:
        return f"{self.catalogue.partitions(topic, partition).path}/{partition}"

    # --- threads ---------------------------------------------------------------------------------

    def _in_thread(self, token: Pending[T], work: Callable[[], T]) -> None:
        def run() -> None:
            try:
                value, error = work(), None
            except (LogError, OSError) as failure:
                value, error = None, failure
            self.post(lambda: token.settle(value, error))

        self._run_in_reader(run)

    def _run_in_reader(self, work: Callable[[], None]) -> None:
        """Raises LogClosed once the engine is closing."""
        try:
            self._readers.submit(work)
        except RuntimeError:  # an executor raises it after its shutdown, and only then
            raise LogClosed from None

    def maintain(self) -> None:
        """One round of retention, compaction and merging, of new keys, and of late transactions."""
        self._maintenance.run()

    def close(self) -> None:
        """Writes and flushes everything that was accepted. Calling it again does nothing.

        Not on the thread that `post` runs completions in: transactions under way wait for such.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._maintenance.close()
        self._presence.close()
        if self._scrub is not None:
            self._scrub[1].join()
        self.transactions.close()
        self._readers.shutdown()
        self._openings.finish()
        self.commit.close()
        for topic in self.catalogue:
            for partition in topic.partitions.close():
                self._deliver(partition.close(note_end=False))
        if self._flush_threads is not None:
            self._flush_threads.close()
        self.catalogue.describe(look=False)
        self.catalogue.wait_for_removals()
        self.metadata.close()
        if self._presence.lost is None:  # else the directory may hold another log by now
            note_ends(
                self.files,
                self.directory,
                ((one.directory, one.info.created_us, one.partitions) for one in self.catalogue),
            )
        self.pool.close()
        self._lock.note_use(self.steady_us())
        self._lock.release()


def _read(
    source: Partition, offset: int, max_bytes: int, end: int | None = None, cached: bool = False
) -> ReadResult:
    with source.damages.telling():
        return reader.read(source, offset, max_bytes, end, memory_only=cached)


def _settle_now(token: Pending[ReadResult], work: Callable[[], ReadResult]) -> None:
    try:
        token.settle(work(), None)
    except (LogError, OSError) as error:
        token.settle(None, error)
