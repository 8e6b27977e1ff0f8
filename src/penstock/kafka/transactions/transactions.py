"""Transactions over Kafka: batches that many tasks staged become visible at once, in all topics, or never.

    begin --> open --stage--> open --commit--> committing --applied--> committed
                 |
                 +--abort, or no sign of life for too long--> unknown

Equal gateways share them: any call may come to any of them. Staged batches are messages of a topic of
their own (staging.py), states are records of the metadata (rows.py). A commit is decided by one change of
the metadata; then its batches are produced in one transaction of Kafka, exactly once however many gateways
try (once.py). What is decided, whichever gateway comes first finishes: a repeated call, or `expire`, which
the engine calls every few seconds.

`commit_at_once` needs no metadata: it is decided with the end of its transaction of Kafka.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import PenstockError
from penstock.kafka.clients import Clients
from penstock.kafka.transactions.deciding import Decider
from penstock.kafka.transactions.filling import Filling
from penstock.kafka.transactions.finishing import Finisher
from penstock.kafka.transactions.journal import Journal
from penstock.kafka.transactions.looking import Known
from penstock.kafka.transactions.once import PATIENCE_S, NotApplied, Once
from penstock.kafka.transactions.own_topics import ensure_topics
from penstock.kafka.transactions.producers import DeliveryFailed, Lent, Producers
from penstock.kafka.transactions.rows import (
    CallRow,
    Head,
    Piece,
    Rows,
    TaskRow,
    last_sign_us,
)
from penstock.kafka.transactions.staging import Staging
from penstock.kafka.transactions.targets import Fresh, Targets, Topics
from penstock.log.batch.format import HEADER_SIZE, MAX_BATCH_BYTES, Batch
from penstock.log.batch.record_limit import check_record_sizes
from penstock.log.engine import (
    Target,
    Tasks,
)
from penstock.log.errors import (
    AppendFailed,
    DecisionUnknown,
    LogClosed,
    LogError,
    StagingGap,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.records import ABSENT, Edit, Kept, Metadata

# A committed name is remembered this long: far longer than any client repeats a commit, and than a stream
# that crashed is left alone.
DEFAULT_MEMORY_US: Final = 30 * 24 * 3600 * 1_000_000
# How often to look whether a new topic has its id.
NEW_TOPIC_PAUSE_S: Final = 0.005
# Producers for small transactions: each has some threads of librdkafka, and makes about a hundred a second.
QUICK_PRODUCERS: Final = 8
# How long such a one may take. What a gateway that dies leaves open is hidden from readers, with all that
# lies behind it, until then.
QUICK_TIMEOUT_S: Final = 10.0
# And for commits of what was staged, which may be gigabytes: others finish what a dead gateway has begun,
# so it is not left open for so long. Kafka allows 15 minutes if it is not told otherwise.
LARGE_PRODUCERS: Final = 2
LARGE_TIMEOUT_S: Final = 600.0
# Between two times that staged batches which nobody needs are removed.
TRIM_EVERY_S: Final = 1800.0

logger = logging.getLogger(__name__)


class KafkaTransactions(Known):
    """See engine.Transactions. Thread-safe; all calls but `check` wait for Kafka, for `reach_s` at most
    when it is away. `topics` gives a topic by name; its id is the same on all gateways, and never used
    again."""

    def __init__(
        self,
        clients: Clients,
        metadata: Metadata,
        topics: Topics,
        clock_us: Callable[[], int],
        memory_us: int | None = DEFAULT_MEMORY_US,
        *,
        with_origin: bool = False,
        patience_s: float = PATIENCE_S,
        fresh: Fresh | None = None,
        applied: Callable[[frozenset[tuple[str, int]]], None] = lambda places: None,
    ) -> None:
        """`memory_us`: how long committed names are remembered; None: for ever. `patience_s`: how long
        another gateway that is at it may be silent. `fresh`: like `topics`, but asks Kafka, for what
        another gateway has staged. `applied`: told which partitions a transaction has written to, before
        its commit returns. Raises KafkaAway, KafkaRefused."""
        ensure_topics(clients, memory_us)
        self._topics = topics
        self._with_origin = with_origin
        self._reach_s = clients.options.reach_s
        super().__init__(Rows(metadata), Journal(clients, clock_us, memory_us), clock_us)
        self._staging = Staging(clients)
        prefix = f"penstock.{uuid.uuid4().hex}"
        self._quick = Producers(clients, f"{prefix}.quick", QUICK_PRODUCERS, QUICK_TIMEOUT_S)
        self._large = Producers(clients, f"{prefix}.large", LARGE_PRODUCERS, LARGE_TIMEOUT_S)
        self._once = Once(self._journal, prefix, clock_us, self._reach_s, patience_s)
        self._once.applied = applied
        targets = Targets(topics, fresh if fresh is not None else lambda name, _: topics(name))
        self._finisher = Finisher(
            self._rows,
            self._staging,
            self._journal,
            self._once,
            self._large,
            targets,
            with_origin,
            self._reach_s,
        )
        self._pause = threading.Event()
        self._decider = Decider(self._rows, targets, clock_us)
        self._closed = False
        self._close_lock = threading.Lock()
        self._trim_s = 0.0

    def close(self) -> None:
        """What is decided and not finished another gateway finishes, or the next start. Calling it again
        does nothing."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self._once.close()
        self._quick.close()
        self._large.close()
        self._journal.close()
        self._staging.close()

    # --- begin and stage ----------------------------------------------------------------------------

    def begin(self, name: str, timeout_us: int) -> str:
        """Opens it, or gives an open one more time. Gives its state: open or committed."""
        with self._reaching(name) as again:
            while again():
                if self._journal.committed(name) is not None:
                    return "committed"
                head = self._rows.head(name)
                if head is not None and head.value.state != "open":
                    self._finisher.finish(head)
                    return "committed"
                if head is None:
                    self._barrier()
                    if self._journal.committed(name) is not None:
                        return "committed"
                now_us = self._clock_us()
                if head is None:
                    new = Head(uuid.uuid4().hex, "open", now_us, now_us, timeout_us)
                else:
                    old = head.value
                    new = Head(old.id, "open", old.begun_us, now_us, timeout_us)
                version = ABSENT if head is None else head.version
                if self._rows.changed([self._rows.heads.put(name, new, version)]):
                    return "open"
        raise AssertionError("`again` raises in the end")

    def check(self, topic: str, partition: int, batch: Batch) -> None:
        """Whether the log will take it. Raises UnknownTopic, UnknownPartition, TooLarge."""
        info = self._topics(topic)
        if info is None:
            raise UnknownTopic(topic)
        if not 0 <= partition < info.partitions:
            raise UnknownPartition(topic, partition)
        size = batch.size()
        if size > MAX_BATCH_BYTES + HEADER_SIZE:
            raise TooLarge("batch", size, MAX_BATCH_BYTES)
        check_record_sizes(batch, info.settings.record_bytes)

    def stage_groups(
        self, name: str, task: int, groups: Sequence[Sequence[Target]], sequence: int | None = None
    ) -> int:
        """Groups that are there already are left out; gives how many. Numbers begin at 0 and have no gaps:
        StagingGap. Without a number they are new ones. Counts as a sign of life."""
        for group in groups:
            for target in group:
                self.check(*target)
        written: _Written | None = None
        with self._reaching(name) as again:
            while again():
                head = self._open_head(name)
                id = head.value.id
                row = self._rows.task(id, task)
                following = 0 if row is None else row.value.next
                first = following if sequence is None else sequence
                if first > following:
                    if self._rows.holds(
                        [
                            self._rows.require_head(name, head),
                            self._rows.require_task(id, task, row),
                        ]
                    ):
                        raise StagingGap(name, task, first, following)
                    continue
                repeated = min(following - first, len(groups))
                if repeated == len(groups):
                    return repeated
                if written is None or written.id != id:
                    written = self._write(id, groups, repeated)
                pieces = written.after(repeated)
                edits: list[Edit] = [
                    self._rows.require_head(name, head),
                    self._rows.put_task(
                        id, task, self._next_row(row, first + len(groups), pieces), row
                    ),
                    self._rows.put_call(id, task, first + repeated, CallRow(tuple(pieces))),
                ]
                if self._rows.changed(edits):
                    return repeated
        raise AssertionError("`again` raises in the end")

    def _write(self, id: str, groups: Sequence[Sequence[Target]], repeated: int) -> "_Written":
        new = groups[repeated:]
        place, offsets = self._staging.write(id, [batch for group in new for _, _, batch in group])
        offset_of = iter(offsets)
        found = []
        for group in new:
            pieces = []
            for topic, partition, batch in group:
                topic_id = self._id_of(topic)
                pieces.append(
                    Piece(topic, partition, topic_id, place, next(offset_of), batch.size())
                )
            found.append(pieces)
        return _Written(id, repeated, found)

    def _id_of(self, topic: str) -> int:
        """A topic that this gateway is making has its id a moment later."""
        until_s = time.monotonic() + self._reach_s
        while True:
            info = self._topics(topic)
            if info is None:
                raise UnknownTopic(topic)
            if info.id or time.monotonic() >= until_s:
                return info.id
            self._pause.wait(NEW_TOPIC_PAUSE_S)

    def _next_row(
        self, row: Kept[TaskRow] | None, following: int, pieces: Sequence[Piece]
    ) -> TaskRow:
        staged = {} if row is None else dict(row.value.staged)
        for one in pieces:
            staged[one.topic] = staged.get(one.topic, 0) + one.length
        return TaskRow(following, self._clock_us(), staged)

    # --- the end --------------------------------------------------------------------------------------

    def commit(self, name: str, tasks: Iterable[int] | Tasks, rows: int | None = None) -> None:
        """Everything that these tasks staged becomes visible at once. Repeating it changes nothing.

        With the number of groups of each task, TransactionNotOpen also when some of them are not there.
        Raises TransactionNotOpen; UnknownTopic or UnknownPartition when something could not become visible:
        then it is still open. StagingDamaged: it is given up. CommitUnfinished when it is decided and is
        finished later; DecisionUnknown when not even that is known.
        """
        chosen = tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
        with self._reaching(name) as again:
            while again():
                if self._journal.committed(name) is not None:
                    return
                head = self._rows.head(name)
                if head is None:
                    if self._state_of_none(name) == "committed":
                        return
                    head = self._rows.head(name)
                    if head is None:
                        raise TransactionNotOpen(name, "unknown")
                if head.value.state == "open":
                    decided = self._decider.decide(head, chosen, rows)
                    if decided is None:
                        continue
                    head = decided
                self._finisher.finish(head)
                return

    def commit_at_once(self, name: str, batches: Sequence[Target]) -> bool:
        """All of it visible at once, or nothing. Repeating it changes nothing: False then.

        Raises what `check` raises; AppendFailed when nothing is stored; DecisionUnknown when that is not
        known: then the next call under this name, to any gateway, finds out.
        """
        for target in batches:
            self.check(*target)

        def fill(lent: Lent) -> None:
            filling = Filling(lent, self._with_origin, self._reach_s)
            for topic, partition, batch in batches:
                filling.add(topic, partition, batch)

        with self._reaching(name):
            head = self._rows.head(name)
            if head is not None and self._journal.committed(name) is None:
                if head.value.state == "open":
                    raise TransactionNotOpen(name, "open with staged batches")
                self._finisher.finish(head)
                return False
            try:
                return self._once.apply(name, None, fill, self._quick)
            except DeliveryFailed as error:
                raise _refused(error) from error
            except NotApplied as error:
                if error.open:
                    raise DecisionUnknown(error.reason) from error
                raise AppendFailed(f"transaction {name!r}", error.reason) from error

    def abort(self, name: str) -> None:
        """What was staged is gone. Aborting what does not exist is fine; a commit stands."""
        with self._reaching(name) as again:
            while again():
                head = self._rows.head(name)
                if self._journal.committed(name) is not None:
                    raise TransactionNotOpen(name, "committed")
                if head is None:
                    state = self._state_of_none(name)
                    if state == "committed":
                        raise TransactionNotOpen(name, state)
                    if self._rows.head(name) is None:
                        return
                    continue
                if head.value.state != "open":
                    raise TransactionNotOpen(name, head.value.state)
                if self._rows.changed(self._rows.remove(head)):
                    return

    # --- now and then -----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finishes what was decided some time ago and that nobody is at."""
        if not self._closed:
            self._finisher.finish_all(self._clock_us())

    def expire(self) -> int:
        """Finishes commits, ends open transactions whose time is over, and forgets old names. Gives how
        many it has ended. The engine calls it every few seconds, in a thread, on every gateway.
        Raises MetadataError when Kafka is away."""
        self.recover()
        now_us = self._clock_us()
        ended = 0
        for head in self._rows.all_heads():
            if head.value.state != "open":
                continue
            tasks = self._rows.tasks(head.value.id)
            if last_sign_us(head, tasks) + head.value.timeout_us > now_us:
                continue
            # A sign of life that comes at this moment counts.
            alive = [self._rows.require_task(head.value.id, *one) for one in tasks.items()]
            ended += self._rows.changed([*alive, *self._rows.remove(head)])
        self._journal.tidy()
        self._trim()
        return ended

    def _trim(self) -> None:
        if time.monotonic() < self._trim_s:
            return
        self._trim_s = time.monotonic() + TRIM_EVERY_S
        try:
            self._staging.trim(self._rows.lowest_offsets())
        except PenstockError as error:
            logger.warning("staged records stay until their retention: %s", error)

    # --- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _reaching(self, name: str) -> Iterator[Callable[[], bool]]:
        """Gives a function that is true until others have changed the same thing for too long. Kafka that
        is away becomes a clear error."""
        if self._closed:
            raise LogClosed
        ends_s = time.monotonic() + self._reach_s
        times = 0

        def again() -> bool:
            nonlocal times
            times += 1
            if times > 1 and time.monotonic() > ends_s:
                raise AppendFailed(f"transaction {name!r}", "others change it all the time")
            return True

        try:
            yield again
        except KafkaException as error:
            raise AppendFailed(f"transaction {name!r}", error.args[0].str()) from error

    def _barrier(self) -> None:
        self._journal.barrier(time.monotonic() + self._reach_s)

    def _open_head(self, name: str) -> Kept[Head]:
        """Raises TransactionNotOpen."""
        while True:
            head = self._rows.head(name)
            if head is not None and head.value.state == "open":
                return head
            if self._rows.holds([self._rows.require_head(name, head)]):
                state = self._state_of_none(name) if head is None else head.value.state
                raise TransactionNotOpen(name, state)

    def _state_of_none(self, name: str) -> str:
        """Of a name without a head, over all gateways; unknown also when there is a head by now."""
        if self._rows.holds([self._rows.require_head(name, None)]):
            self._barrier()
        return "unknown" if self._journal.committed(name) is None else "committed"


class _Written:
    """What a call has staged of its groups, from number `first` on."""

    def __init__(self, id: str, first: int, groups: list[list[Piece]]) -> None:
        self.id = id
        self._first = first
        self._groups = groups

    def after(self, repeated: int) -> list[Piece]:
        return [piece for group in self._groups[repeated - self._first :] for piece in group]


def _refused(error: DeliveryFailed) -> LogError:
    code = error.error.code()
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return UnknownTopic(error.topic)
    return AppendFailed(f"topic {error.topic!r}", error.error.str())
