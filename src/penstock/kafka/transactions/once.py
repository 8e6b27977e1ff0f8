"""Exactly once: of all tries to apply the transaction of a name, by any gateway, one succeeds.

A try is:

    1. a producer whose transactional id nobody else has, ready since before step 2
    2. a claim with that id, durable; the claims of the same name before it are known then
    3. where there were others: their ids are fenced, and all marks are read
    4. unless the name has a mark: one transaction of Kafka with all records and the mark

Why it holds: let two tries have claims in this order, X before Y. Y fences the id of X after Y's claim. The
producer of X is older than X's claim, so Kafka refuses whatever X has not committed by then; what it has
committed Y reads as a mark. A first claim has nobody before it: then nobody has committed the name, and
step 3 is not needed. It does not matter how long a gateway is paused between two steps, or where it dies.

Somebody who is at it is not disturbed: a claim that is young, or that has a beat, is waited for.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from penstock.kafka.transactions.journal import Claim, Journal, Mark
from penstock.kafka.transactions.own_topics import JOURNAL_TOPIC, MARKS
from penstock.kafka.transactions.producers import Lent, Producers

# A claim without a sign of life for so long is that of a gateway that died or hangs.
PATIENCE_S: Final = 5.0
# A gateway that is at it says so this often in that time.
BEATS: Final = 4
# Between two tries; random up to that.
_PAUSE_S: Final = 0.2

# One that hangs and does not know it is taken for dead in the end.
MOST_BEATS: Final = 1_000
# After this time Kafka has ended by itself what a dead gateway has left open.
ORPHANED_S: Final = 900.0

Fill = Callable[[Lent], None]


class NotApplied(Exception):
    """It could not be done in time. `open`: it may be done nevertheless, or be done by Kafka later."""

    def __init__(self, reason: str, open: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.open = open


class _NameLock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class Once:
    """Thread-safe. `own_prefix`: of all transactional ids of this gateway."""

    def __init__(
        self,
        journal: Journal,
        own_prefix: str,
        clock_us: Callable[[], int],
        reach_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._journal = journal
        self._own_prefix = own_prefix
        self._clock_us = clock_us
        self._reach_s = reach_s
        self._patience_s = patience_s
        self._guard = threading.Lock()
        self._locks: dict[str, _NameLock] = {}
        self._ended = threading.Event()
        # Told which partitions a transaction has written to, when it is committed.
        self.applied: Callable[[frozenset[tuple[str, int]]], None] = lambda places: None
        # Claims of others whose ids were fenced.
        self._orphans: set[str] = set()

    def close(self) -> None:
        self._ended.set()

    def apply(self, name: str, rows: int | None, fill: Fill, producers: Producers) -> bool:
        """False when it was applied before. Raises what `fill` raises, DeliveryFailed, NotApplied.

        `fill` puts the records into the transaction of the producer that it gets.
        """
        ends_s = time.monotonic() + self._reach_s
        sent = False
        with self._alone(name):
            while True:
                if self._journal.committed(name) is not None:
                    return False
                lent: Lent | None = None
                try:
                    self._wait_for_others(name, self._journal.claims(name), ends_s)
                    with producers.lend(ends_s) as lent:
                        return self._try(name, rows, fill, producers, lent, ends_s)
                except KafkaException as error:
                    sent = sent or (lent is not None and lent.sent)
                    reason = error.args[0].str()
                    if time.monotonic() >= ends_s or self._ended.is_set():
                        raise NotApplied(reason, sent) from error
                self._ended.wait(random.uniform(0, _PAUSE_S))

    def is_free(self, name: str) -> bool:
        """Whether no other gateway seems to be at it."""
        oldest_us = time.time_ns() // 1000 - int(self._patience_s * 1e6)
        return all(
            one.time_us <= oldest_us or one.by.startswith(self._own_prefix)
            for one in self._journal.claims(name)
        )

    def _try(
        self,
        name: str,
        rows: int | None,
        fill: Fill,
        producers: Producers,
        lent: Lent,
        ends_s: float,
    ) -> bool:
        lent.sent = False
        claim, earlier = self._journal.claim(name, lent.id, ends_s)
        with self._beating(name, claim):
            if earlier:
                self._wait_for_others(name, earlier, ends_s)
                for id in {one.by for one in earlier} - {lent.id}:
                    producers.fence(id, ends_s)
                self._journal.barrier(ends_s)
            if self._journal.committed(name) is not None:
                return False
            mark = Mark(rows, self._clock_us())
            self._transact(name, mark, fill, lent, ends_s)
        self._journal.note(name, mark)
        self.applied(frozenset(lent.places))
        return True

    def _transact(self, name: str, mark: Mark, fill: Fill, lent: Lent, ends_s: float) -> None:
        begun_s = time.monotonic()
        filled_s = begun_s

        def fill_and_mark(lent: Lent) -> None:
            nonlocal filled_s
            fill(lent)
            filled_s = time.monotonic()
            # Last: from here to the end of the transaction nobody reads marks that come behind it.
            lent.producer.produce(
                JOURNAL_TOPIC,
                msgspec.json.encode(mark),
                name.encode(),
                partition=MARKS,
                on_delivery=lent.on_failure(JOURNAL_TOPIC),
            )

        def end_s() -> float:
            """To fill in may take long, and Kafka is there then."""
            long = filled_s - begun_s > self._patience_s
            return max(ends_s, filled_s + self._reach_s) if long else ends_s

        lent.transact(fill_and_mark, end_s)

    @contextmanager
    def _beating(self, name: str, claim: Claim) -> Iterator[None]:
        """Others see that somebody is at it, as long as this process runs."""
        done = threading.Event()

        def beat() -> None:
            for _ in range(MOST_BEATS):
                if done.wait(self._patience_s / BEATS):
                    return
                self._journal.beat(name, claim)

        threading.Thread(target=beat, name="penstock-kafka-beat", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def end_orphans(self, producers: Producers) -> None:
        """Ends what gateways that died have left open: it hides what lies behind it from all readers. Who
        lives and is fenced by mistake tries again. Raises KafkaException."""
        now_us = time.time_ns() // 1000
        young_us, old_us = (
            now_us - int(self._patience_s * 1e6),
            now_us - int(ORPHANED_S * 1e6),
        )
        left = {
            one.id: one.by
            for one in self._journal.open_claims()
            if old_us < one.time_us < young_us and not one.by.startswith(self._own_prefix)
        }
        self._orphans &= left.keys()
        for by in {left[id] for id in left.keys() - self._orphans}:
            producers.fence(by, time.monotonic() + self._reach_s)
            self._orphans |= {id for id in left if left[id] == by}

    def _wait_for_others(self, name: str, claims: list[Claim], ends_s: float) -> None:
        """Until it is committed, or nobody else seems to be at it. Raises KafkaException when that takes
        too long."""
        while True:
            known = {one.id for one in claims}
            young_us = max(
                (
                    one.time_us
                    for one in (*self._journal.claims(name), *claims)
                    if one.id in known and not one.by.startswith(self._own_prefix)
                ),
                default=0,
            )
            silent_s = time.time() - young_us / 1e6
            if silent_s >= self._patience_s:
                return
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                reason = "another gateway is at it"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
            # A clock that is behind another gateway's must not make it longer.
            wait_s = min(self._patience_s - silent_s, self._patience_s, left_s)
            if self._journal.wait_committed(name, wait_s):
                return
            if silent_s < -self._patience_s:
                return

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One thread of this gateway at a time."""
        with self._guard:
            mine = self._locks.setdefault(name, _NameLock())
            mine.users += 1
        try:
            with mine.lock:
                yield
        finally:
            with self._guard:
                mine.users -= 1
                if not mine.users:
                    del self._locks[name]
