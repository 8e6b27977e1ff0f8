"""Maintenance of the embedded engine: retention, compaction, merging, new keys, late transactions.

One thread, one round a minute, or at once when there is something to encrypt anew. What is done to a
partition is in partitions/cleaner.py and partitions/reencryption.py.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.log.batch.encryption import Keyring
from penstock.log.batch.format import BatchError
from penstock.log.errors import NO_SPACE, CorruptLog, LogError, UnknownTopic
from penstock.log.metadata.catalogue import Catalogue, Topic
from penstock.log.metadata_errors import MetadataError
from penstock.log.partitions import cleaner
from penstock.log.partitions.opening import Partitions
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.reencryption import Pace, is_stale, reencrypt
from penstock.log.storage.presence import Presence
from penstock.log.storage.reserve import Reserve
from penstock.log.transactions.transactions import Transactions

logger = logging.getLogger(__name__)

# Partitions to open, which may be many.
Open = Callable[[Sequence[tuple[Partitions, int]]], object]


class Maintenance:
    """`open_all` opens partitions and logs what cannot be opened."""

    def __init__(
        self,
        catalogue: Catalogue,
        transactions: Transactions,
        reserve: Reserve,
        presence: Presence,
        keys: Keyring,
        clock_us: Callable[[], int],
        post: Callable[[Callable[[], None]], object],
        open_all: Open,
        interval_s: float,
    ) -> None:
        self.reencrypted_segments = 0
        self.reencrypted_bytes = 0
        self._catalogue = catalogue
        self._transactions = transactions
        self._reserve = reserve
        self._presence = presence
        self._keys = keys
        self._clock_us = clock_us
        self._post = post
        self._open_all = open_all
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._round = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-maintenance", daemon=True)

    def start(self) -> None:
        if any(self._has_old_keys(topic) for topic in self._catalogue):
            self.soon()
        self._thread.start()

    def soon(self) -> None:
        """There is something to do that should not wait for the next round."""
        self._wanted.set()

    def close(self) -> None:
        """Waits for the end of what is being done."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._interval_s)
            self._wanted.clear()
            if self._closing.is_set():
                return
            try:
                self.run()
            except Exception:  # a bug: the next round must run nevertheless
                logger.exception("maintenance failed")

    def run(self) -> None:
        """One round. Rounds of several threads come one after the other."""
        with self._round:
            self._run_round()

    def _run_round(self) -> None:
        if self._presence.lost is not None:
            return
        try:
            self._transactions.expire()
        except (LogError, MetadataError, OSError, TimeoutError) as error:
            logger.warning("transactions: %s", error)
        now_us = self._clock_us()
        pace = Pace(self._closing.wait)
        for topic in self._catalogue:
            self._maintain_topic(topic, now_us, pace)
            if self._closing.is_set():
                return
        if pace.is_over:
            self.soon()
        self._catalogue.describe()
        if self._reserve.spent:
            self._reserve.fill()

    def _maintain_topic(self, topic: Topic, now_us: int, pace: Pace) -> None:
        generation = self._catalogue.key_generation  # before a look at the segments
        old_keys = self._has_old_keys(topic)
        partitions = topic.partitions
        due = partitions.touched() if old_keys else partitions.due(now_us)
        if due:
            self._open_all([(partitions, number) for number in due])
        for partition in partitions.all_opened():
            if self._closing.is_set():
                return
            try:
                self._with_space(partition, pace)
            except CorruptLog:
                continue  # already reported where it was found
            except (LogError, BatchError, OSError) as error:
                logger.warning("maintenance of %s: %s", partition.directory, error)
        if old_keys:
            self._note_keys(topic, generation)

    def _with_space(self, partition: Partition, pace: Pace) -> None:
        """Retention has to write a little before it can free space."""
        try:
            self._maintain_partition(partition, pace)
        except OSError as error:
            if error.errno not in NO_SPACE or not self._reserve.spend():
                raise
            self._maintain_partition(partition, pace)

    def _maintain_partition(self, partition: Partition, pace: Pace) -> None:
        now_us = self._clock_us()
        cleaner.apply_retention(partition, now_us)
        # First: what the cleaner then rewrites is under the right key already.
        done = reencrypt(partition, pace)
        self.reencrypted_segments += done.segments
        self.reencrypted_bytes += done.size_bytes
        cleaner.clean(partition, now_us)

    # --- keys ------------------------------------------------------------------------------------

    def _has_old_keys(self, topic: Topic) -> bool:
        """Whether some of its records may be under a key that is not the current one."""
        if not topic.keys_since:
            return False
        encrypted = topic.info.settings.encryption
        return not encrypted or topic.keys_since < self._catalogue.key_generation

    def _note_keys(self, topic: Topic, generation: int) -> None:
        """Where all of the topic is under the current key, older ones are no longer needed for it."""
        encrypted = topic.info.settings.encryption
        partitions = topic.partitions
        opened = [partitions.opened(number) for number in partitions.touched()]
        if any(one is None or is_stale(one) for one in opened):
            return
        if self._transactions.stages_for(topic.info.name):
            return
        keys_since = generation if encrypted else 0

        def note() -> None:
            with suppress(UnknownTopic):  # it was deleted meanwhile
                self._catalogue.change(topic.info.name, {}, None, keys_since)

        self._post(note)
