"""The partitions of a topic: each is opened when it is touched first, and not before.

A partition that nobody appends to, reads or watches costs a few bytes: its ends, if it was ever written.
Opening recovers the log and waits for the disk, so it happens in a thread; what comes meanwhile waits in
order (`Openings`). Does not know topics by name, and never closes what it opened: the engine does that.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from penstock.log.batch.format import Batch
from penstock.log.errors import LogError, Overloaded, closed_error
from penstock.log.partitions.appending import MAX_PENDING_BYTES
from penstock.log.partitions.ends import NOTHING, Ends, write_ends
from penstock.log.partitions.outcome import Callback, deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage.complaints import append_error
from penstock.log.storage.files import FileSystem

logger = logging.getLogger(__name__)


class OpenPartition(Protocol):
    def __call__(self, path: str, settings: TopicSettings, ends: Ends) -> Partition:
        """Recovers a partition; `ends` is what an earlier process knew of it."""
        ...


# Guards the tables of all topics; held for nanoseconds, never while the disk is asked.
_lock = threading.Lock()


class Partitions(msgspec.Struct, eq=False, gc=False):
    """Thread-safe. Numbers are checked by the caller. There is one for each topic, so the collector of
    garbage does not walk them: nothing that they hold refers to them."""

    path: str
    settings: TopicSettings
    count: int
    _open: OpenPartition
    # Of those that were ever written, and are not open.
    _ends: dict[int, Ends] | None = None
    closed: bool = False
    # The name of the topic, once that was deleted.
    _deleted_topic: str | None = None
    # Those that are open. Read without the lock.
    by_number: dict[int, Partition] | None = None
    _opening: dict[int, threading.Lock] | None = None

    def __len__(self) -> int:
        return self.count

    def opened(self, number: int) -> Partition | None:
        """The partition, if it is open."""
        opened = self.by_number
        return opened.get(number) if opened is not None else None

    def all_opened(self) -> list[Partition]:
        with _lock:
            return list(self.by_number.values()) if self.by_number is not None else []

    def touched(self) -> list[int]:
        """Numbers of those that were ever written, or are open: all others are empty."""
        with _lock:
            return sorted({*(self._ends or ()), *(self.by_number or ())})

    def ends(self, number: int) -> Ends | None:
        """What is known of a partition that is not open; None when it has to be opened first."""
        ends = self._noted(number)
        return ends if ends.exact else None

    def _noted(self, number: int) -> Ends:
        ends = self._ends
        return NOTHING if ends is None else ends.get(number, NOTHING)

    def unknown(self) -> list[int]:
        """Numbers of the partitions that have to be opened before their offsets are known."""
        ends = self._ends
        return [] if ends is None else [n for n, one in list(ends.items()) if not one.exact]

    def due(self, now_us: int) -> list[int]:
        """Numbers of those that are not open and have something for maintenance to do."""
        ends = self._ends
        if ends is None:
            return []
        return [n for n, one in list(ends.items()) if one.due_us <= now_us]

    def offsets_of(self, number: int) -> tuple[int, int]:
        """The first offset kept and the end of what is seen, as far as they are known."""
        ends = self._noted(number)  # first: they go when the partition is open
        partition = self.opened(number)
        if partition is not None:
            return partition.start_offset, partition.visible_offset
        return ends.start_offset, ends.next_offset

    def offsets(self) -> tuple[int, int]:
        """The sums of all partitions, as far as they are known."""
        pairs = [self.offsets_of(number) for number in self.touched()]
        return sum(start for start, _ in pairs), sum(end for _, end in pairs)

    def open(self, number: int) -> Partition:
        """The partition, opened by this thread or by another one. Raises OSError; LogClosed,
        or UnknownTopic once the topic was deleted."""
        with _lock:
            found = self.opened(number)
            if found is not None:
                return found
            if self.closed:
                raise closed_error(self._deleted_topic)
            if self._opening is None:
                self._opening = {}
            own = self._opening.setdefault(number, threading.Lock())
        with own:
            found = self.opened(number)
            if found is not None:
                return found
            if self.closed:  # the directory may belong to another topic by now
                raise closed_error(self._deleted_topic)
            return self._open_now(number)

    def _open_now(self, number: int) -> Partition:
        partition = self._open(f"{self.path}/{number}", self.settings, self._noted(number))
        with _lock:
            partition.settings = self.settings  # may have changed since
            if self.by_number is None:
                self.by_number = {}
            if not self.closed:
                self.by_number[number] = partition
            if self._opening is not None:
                self._opening.pop(number, None)
            if not self.closed:
                if self._ends is not None:
                    self._ends.pop(number, None)
                return partition
        deliver(partition.abandon(self._deleted_topic))  # or the engine was closed meanwhile
        raise closed_error(self._deleted_topic)

    def change(self, count: int, settings: TopicSettings) -> None:
        """More partitions, or new settings; maintenance looks at all of them again."""
        with _lock:
            self.count = count
            self.settings = settings
            if self._ends is not None:
                self._ends = {number: ends.due_at(0) for number, ends in self._ends.items()}
            opened = list(self.by_number.values()) if self.by_number is not None else []
        for partition in opened:
            partition.settings = settings

    def refuse(self, deleted_topic: str) -> None:
        """Opens nothing from now on: the topic is deleted. Does not wait; `close` does."""
        with _lock:
            self.closed = True
            self._deleted_topic = deleted_topic

    def close(self, deleted_topic: str | None = None) -> list[Partition]:
        """Opens nothing from now on; waits for openings in progress, and returns the open partitions.

        `deleted_topic`: its name, when that is why.
        """
        with _lock:
            self.closed = True
            self._deleted_topic = deleted_topic
            opening = list(self._opening.values()) if self._opening is not None else []
        for own in opening:
            own.acquire()
            own.release()
        return self.all_opened()

    def all_ends(self) -> dict[int, Ends]:
        """Of all that were ever written, open or not."""
        with _lock:
            ends = dict(self._ends) if self._ends is not None else {}
            opened = dict(self.by_number) if self.by_number is not None else {}
        ends.update((number, Ends.of(partition)) for number, partition in opened.items())
        return {number: one for number, one in ends.items() if one != NOTHING}


def note_ends(
    files: FileSystem, directory: str, topics: Iterable[tuple[str, int, Partitions]]
) -> None:
    """Of all topics: directory, when it was made, partitions. Without a note the next start opens every
    partition, as after a crash."""
    rows = ((path, created_us, partitions.all_ends()) for path, created_us, partitions in topics)
    try:
        write_ends(files, directory, rows)
    except OSError as error:
        logger.warning("the ends of the partitions could not be noted: %s", error)


# --- what waits meanwhile ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """What was asked of a partition while it is being opened, in order."""

    appends: deque[tuple[Batch, AppendToken]] = field(default_factory=deque)
    append_bytes: int = 0
    watchers: list[tuple[int, Callback]] = field(default_factory=list)


Key = tuple[Partitions, int]


class Openings:
    """Partitions that are being opened. `run` runs work in a thread, or raises LogClosed; `post` runs it
    where callbacks belong.

    Without `run` the caller opens them: where everything is stepped by hand.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], None]], object] | None,
        post: Callable[[Callable[[], None]], object],
        submit: Callable[[Partition], None],
    ) -> None:
        self._run = run
        self._post = post
        self._submit = submit
        self.waiting: dict[Key, _Waiting] = {}
        # Also held while what has waited is handed on. Watchers call back meanwhile, and may ask for more.
        self._lock = threading.RLock()

    def partition(self, partitions: Partitions, number: int) -> Partition | None:
        """The open partition, if nothing waits for it any more. Raises OSError where this opens it."""
        if self.waiting and (partitions, number) in self.waiting:
            return None
        found = partitions.opened(number)
        return found if found is not None or self._run is not None else partitions.open(number)

    def append(self, partitions: Partitions, number: int, batch: Batch) -> AppendToken:
        """Appends once the partition is open. Raises Overloaded, and what Partition.append raises."""
        with self._lock:
            partition = self.partition(partitions, number)
            if partition is None:
                waiting = self._begin(partitions, number)
                size = batch.size()
                if waiting.append_bytes + size > MAX_PENDING_BYTES:
                    path = f"{partitions.path}/{number}"
                    raise Overloaded(path, f"{waiting.append_bytes} bytes wait for it to open")
                token = AppendToken(batch.count)
                waiting.appends.append((batch, token))
                waiting.append_bytes += size
                return token
        token = partition.append(batch)
        self._submit(partition)
        return token

    def watch(self, partitions: Partitions, number: int, offset: int, callback: Callback) -> None:
        with self._lock:
            partition = self.partition(partitions, number)
            if partition is None:
                self._begin(partitions, number).watchers.append((offset, callback))
                return
        partition.watch(offset, callback)

    def unwatch(self, partitions: Partitions, number: int, callback: Callback) -> None:
        with self._lock:
            waiting = self.waiting.get((partitions, number))
            if waiting is not None:
                waiting.watchers = [one for one in waiting.watchers if one[1] != callback]
        partition = partitions.opened(number)
        if partition is not None:
            partition.unwatch(callback)

    def _begin(self, partitions: Partitions, number: int) -> _Waiting:
        waiting = self.waiting.get((partitions, number))
        if waiting is None:
            assert self._run is not None, "without threads a partition is opened at once"
            self._run(lambda: self._open(partitions, number))
            # The lock is held: nothing is handed on before this.
            waiting = self.waiting[partitions, number] = _Waiting()
        return waiting

    def finish(self) -> None:
        """Before a stop: opens what is still waited for, and hands on what was accepted."""
        for partitions, number in list(self.waiting):
            self._hand_on((partitions, number), *_opened(partitions, number))

    def _open(self, partitions: Partitions, number: int) -> None:
        partition, error = _opened(partitions, number)
        self._post(lambda: self._hand_on((partitions, number), partition, error))

    def _hand_on(self, key: Key, partition: Partition | None, error: Exception | None) -> None:
        with self._lock:
            waiting = self.waiting.get(key)
            if waiting is None:
                return  # `finish` has seen to it
            while partition is not None and waiting.appends:
                # A callback of a refused one may append, too.
                self._append_late(partition, *waiting.appends.popleft())
            # Not before: `partition` looks without the lock, and who finds the way free would overtake.
            del self.waiting[key]
            for _, token in waiting.appends:
                token.error = error
                token.complete()
            for offset, callback in waiting.watchers:
                self._watch_late(partition, offset, callback)

    def _append_late(self, partition: Partition, batch: Batch, token: AppendToken) -> None:
        try:
            partition.append(batch, token)
        except LogError as error:
            token.error = error
            token.complete()
            return
        self._submit(partition)

    def _watch_late(self, partition: Partition | None, offset: int, callback: Callback) -> None:
        """Wakes the watchers of a partition that cannot be opened: their next read gets the error."""
        with suppress(LogError):
            if partition is not None:
                partition.watch(offset, callback)
                return
        callback()


def _opened(partitions: Partitions, number: int) -> tuple[Partition | None, Exception | None]:
    """The partition, or why an append to it is refused."""
    try:
        return partitions.open(number), None
    except LogError as error:
        return None, error
    except OSError as error:
        return None, append_error(f"{partitions.path}/{number}", error)
