"""The engine page: the interface between broker, sessions and server and the log, whatever stores it.

Narrow and asynchronous: everything that may touch a disk or a network gives a token or a change that
completes later. The embedded engine (embedded.py) is one implementation. Others import nothing of `log`
but this page, which is made of

    engine.py             the engine: topics, records, groups, transactions, statistics
    records.py            its metadata: named records with compare and set, and their feed
    pending.py            results that complete later
    shares.py             which partitions this process may hand out to the readers of a group
    callbacks.py          completions in order and in turns: for whoever implements the page
    feeds.py              the watchers of the metadata, likewise
    settings.py           the settings of a topic
    statistics.py         counters
    sorted_names.py, callbacks.py, feeds.py   names in pages, completions in turns, feeds of spaces
    errors.py, metadata_errors.py
    batch/                the batch format, which both sides of the page share

`make lint` checks it. Only server/assembly.py, which builds the embedded engine, and the offline tools of
the command line may import what is behind the page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.log.batch.format import Batch
from penstock.log.partitions.tokens import AppendToken, UndurableBytes
from penstock.log.pending import Pending
from penstock.log.records import Metadata
from penstock.log.settings import TopicSettings
from penstock.log.shares import Changed, GivingAway, Share
from penstock.log.statistics import Counters, Statistics
from penstock.log.storage.reader import ReadResult

# Also values that come from the modules that make them.
__all__ = [
    "AppendToken",
    "Batch",
    "ClusterView",
    "Counters",
    "Engine",
    "Keys",
    "Metadata",
    "Node",
    "PartitionInfo",
    "Pending",
    "ReadResult",
    "Share",
    "Sizes",
    "Statistics",
    "Target",
    "Tasks",
    "TopicInfo",
    "TransactionUsage",
    "Transactions",
    "UndurableBytes",
    "walk_groups",
    "walk_topics",
]

T = TypeVar("T")


class TopicInfo(msgspec.Struct, frozen=True, gc=False):
    """A topic as it is now. The id is never used again for another topic of the same name."""

    id: int
    name: str
    partitions: int
    settings: TopicSettings
    created_us: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Current numbers of everything that has a limit."""

    topics: int
    partitions: int
    groups: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as it is now. `stopped`: why it refuses appends; `damages`: what is lost."""

    topic: str
    partition: int
    earliest: int
    latest: int
    next_offset: int
    size_bytes: int
    segments: int
    stopped: str | None
    damages: tuple[str, ...]
    # Of the keys that its records are encrypted with, 0 where some are not; None when it is not open.
    key_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """Keys of encryption by their ids, and the one that is used from now on; 0: none. They have no repr,
    so that no log line shows them."""

    by_id: Mapping[int, bytes] = field(default_factory=dict)
    current: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A part of what serves the log. `address`: for clients; empty for a part that they do not talk to,
    which has a `cluster_address`. `flight`: of Arrow Flight, empty where it is off. `loopback`: the same
    for all nodes that mean the same interface by 127.0.0.1."""

    id: str
    address: str
    cluster_address: str = ""
    flight: str = ""
    loopback: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Who serves the log, as this process knows it. `this` is the id of its own node. `trouble`: why the
    others cannot be reached; empty normally."""

    engine: str
    id: str
    this: str
    nodes: tuple[Node, ...]
    trouble: str = ""


# Topic, partition, and what shall go there.
Target = tuple[str, int, Batch]
# Tasks of a commit, and how many groups each has staged, where that is known.
Tasks = Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class TransactionUsage:
    """Transactions that are not committed yet, and the bytes that they have staged."""

    open: int
    staged_bytes: int


@dataclass(frozen=True, slots=True)
class OpenTransactionInfo:
    """One that is not committed yet. `state` is open or committing, `begun_us` is 0 when it is not known,
    `updated_us` its last sign of life, `deadline_us` when it is given up without another one. `staged`:
    bytes by topic."""

    name: str
    state: str
    begun_us: int
    updated_us: int
    deadline_us: int
    staged: Mapping[str, int]


class Transactions(Protocol):
    """Batches of many tasks, across topics and partitions, visible at once or never.

    The calls wait for the disk: run them in a thread. `check` does not.
    """

    def begin(self, name: str, timeout_us: int) -> str:
        """Opens it, or gives an open one more time. Gives its state: open or committed."""
        ...

    def check(self, topic: str, partition: int, batch: Batch) -> None:
        """Whether the log will take it. Raises UnknownTopic, UnknownPartition, TooLarge."""
        ...

    def stage_groups(
        self, name: str, task: int, groups: Sequence[Sequence[Target]], sequence: int | None = None
    ) -> int:
        """Durable on return, and not visible to readers. Numbered groups that are stored already are
        skipped; returns how many."""
        ...

    def commit(self, name: str, tasks: Tasks, rows: int | None = None) -> None:
        """Everything that these tasks staged becomes visible at once. Repeating it changes nothing.
        `rows` is remembered with the name, see `rows_of`."""
        ...

    def rows_of(self, name: str) -> int | None:
        """How many rows a committed one has; None when its commit has not told, or it is long ago."""
        ...

    def unfinished_ones(self) -> Sequence[OpenTransactionInfo]:
        """All that are open or being committed, by name."""
        ...

    def commit_at_once(self, name: str, batches: Sequence[Target]) -> bool:
        """A whole transaction that its owner kept in memory: durable and visible together, or not at all.
        Repeating it changes nothing, whatever it is then to write: False when one of this name was
        committed before. For small ones: it is written twice, once beside all metadata."""
        ...

    def abort(self, name: str) -> None:
        """Removes what was staged. Aborting an unknown transaction is allowed; a committed one stays."""
        ...

    def state(self, name: str) -> str:
        """open, committing, committed or unknown."""
        ...

    def usage(self, prefix: str) -> TransactionUsage:
        """Of those whose names begin with the prefix."""
        ...

    def oldest_age_us(self) -> int:
        """Of those that are not committed; 0 when there is none."""
        ...


class Engine(Protocol):
    """Called from one thread (the event loop); completions come back to the same thread."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def clock_us(self) -> Callable[[], int]:
        """The clock that records are stamped and kept by."""
        ...

    @property
    def run_us(self) -> Callable[[], int]:
        """The clock that records expire by: the wall clock at the start, and the time since. Nobody can
        set it while the server runs."""
        ...

    @property
    def run_base_us(self) -> int | None:
        """What other processes of this machine add to the time since its boot to get `run_us`; None: the
        wall clock counts there."""
        ...

    @property
    def post(self) -> Callable[[Callable[[], None]], object]:
        """Runs a function in the thread that completions come back to, from any thread."""
        ...

    def announce(self, address: str, flight: str) -> None:
        """Where clients reach this process. Waits where others have to be told: call it in a thread."""
        ...

    def cluster(self) -> ClusterView:
        """From any thread, at once."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes write to the same log: then a module that keeps something of it in memory
        has to follow it, and cannot know the offset of what comes next."""
        ...

    def share_duty(
        self, name: str, shares: int, gained: Callable[[int], None], lost: Callable[[int], None]
    ) -> None:
        """A duty in parts, numbered from 0, that the processes which serve the log divide among themselves.
        Calls `gained` with each part that is this one's from now on, at once where there is no other, and
        `lost` with each that is no longer. Two may for a moment both believe to have a part."""
        ...

    def replicas(self, topic: str) -> Sequence[tuple[Sequence[str], Sequence[str]]]:
        """For each partition: ids of the nodes that keep it, and of those that have all of it."""
        ...

    def topics(self) -> list[TopicInfo]: ...
    def topic_names(self, after: str | None, limit: int) -> list[str]:
        """Names behind `after`, in order."""
        ...

    def group_names(self, after: str | None, limit: int) -> list[str]:
        """Names of groups behind `after`, in order."""
        ...

    def topic(self, name: str) -> TopicInfo | None: ...
    def fresh_topic(self, name: str, *, expected: bool = False) -> "Pending[TopicInfo | None]":
        """The same with its ends, as it is at the call, whoever else makes topics. `expected`: somebody
        has seen it, so that it is worth a second look. Done at once where nobody has to be asked."""
        ...

    def watch_topics(self, watcher: Callable[[str], None]) -> None:
        """Calls back with the name of every topic that comes to be or changes from now on."""
        ...

    def create_topic(
        self, name: str, partitions: int = 1, settings: TopicSettings | None = None
    ) -> TopicInfo:
        """Usable at once; appends to it complete when the topic itself is durable too."""
        ...

    def topic_durable(self, name: str) -> "Pending[int] | None":
        """What still has to be written before the topic survives a crash; None when nothing."""
        ...

    def delete_topic(self, name: str) -> Pending[object]: ...
    def change_topic(
        self, name: str, changes: dict[str, object], partitions: int | None = None
    ) -> Pending[object]: ...
    @property
    def can_encrypt(self) -> bool:
        """Whether there is a key, so that topics may be encrypted."""
        ...

    def use_keys(self, keys: Keys) -> None:
        """Other keys of encryption from now on. Waits for the disk. Raises KeyMissing, KeyWrong; then
        nothing is changed."""
        ...

    def keys_needed(self, topic: str) -> list[int]:
        """Ids of the keys that the files of a topic may be encrypted with."""
        ...

    def partition_info(self, topic: str, partition: int) -> PartitionInfo: ...
    def is_stopped(self, topic: str, partition: int) -> bool:
        """Whether it takes no records until the next start, after an error of the disk."""
        ...

    def written_partitions(self, topic: str) -> list[int]:
        """Numbers of those that may hold something; all others are empty, and were always."""
        ...

    def append(self, topic: str, partition: int, batch: Batch) -> AppendToken:
        """Raises Overloaded when too much is not durable yet, in the partition or in all together."""
        ...

    @property
    def undurable_bytes(self) -> int:
        """Bytes that were accepted and whose appends are not complete, over all partitions and doors."""
        ...

    def read(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, early: bool = False
    ) -> Pending[ReadResult]:
        """`early`: also at-most-once messages that are written and not durable yet. Only for consumers
        at most once, which keep no position."""
        ...

    def watch_early(
        self, topic: str, partition: int, offset: int, callback: Callable[[], None]
    ) -> None:
        """Like `watch`, for an early read. One watcher a partition; `unwatch` ends it."""
        ...

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and latest: the first offset kept, and the one after the last visible."""
        ...

    def fresh_offsets(self, topic: str, partition: int, seen: int = 0) -> Pending[tuple[int, int]]:
        """The same, as they are at the call, whoever else writes; `offsets` may be a second old where
        others do. `seen`: an end that somebody has seen; then what was told a moment ago is old too. Done
        at once where nobody has to be asked."""
        ...

    def all_fresh_offsets(self, topic: str) -> Pending[object]:
        """When it is done, `offsets` of all partitions are as they were at the call: one question for
        all of them."""
        ...

    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]: ...
    def watch(
        self, topic: str, partition: int, offset: int, callback: Callable[[], None]
    ) -> None: ...
    def unwatch(self, topic: str, partition: int, callback: Callable[[], None]) -> None: ...
    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int
    ) -> Pending[object]: ...
    def committed_offset(self, group: str, topic: str, partition: int) -> int | None: ...
    def groups(self) -> dict[str, dict[tuple[str, int], int]]: ...
    def group(self, group: str) -> Mapping[tuple[str, int], int]:
        """Committed offsets by topic and partition; none when there is no such group."""
        ...

    def group_updated_us(self, group: str) -> int | None:
        """When it has committed last; None when there is no such group."""
        ...

    def delete_group(self, group: str, topic: str | None = None) -> Pending[object]:
        """Its offsets, on one topic or on all, are gone, durably, when this is done. A later commit makes
        it anew."""
        ...

    def share(self, group: str, topic: str, changed: Changed, giving_away: GivingAway) -> Share:
        """Somebody here reads the topic for the group from now on: which partitions, the share tells.
        Raises UnknownTopic, InvalidGroupName, TooManyGroups."""
        ...

    def purge_topic(self, topic: str) -> Pending[int]:
        """Removes all records that readers can see. Gives how many bytes that gave back.

        Offsets go on where they were, and the topic keeps its settings and groups.
        """
        ...

    def sizes(self) -> Sizes:
        """Takes constant time, however many there are."""
        ...

    def statistics(self) -> Statistics: ...
    @property
    def lost(self) -> str | None:
        """Why nothing can be stored until a restart; None normally."""
        ...

    def partition_directory(self, topic: str, partition: int) -> str | None:
        """Where another process of this machine may read the segment files (storage/follower.py): an
        optimisation that only an engine with files has. None: read through the engine."""
        ...

    def close(self) -> None:
        """Everything that was accepted is durable on return. Calling it again does nothing."""
        ...


# --- lists of everything --------------------------------------------------------------------------

# Names that a walk takes at once. One list of 100,000 would be walked by every collection of garbage while
# it is filled, 7 ms each time, and everybody waits.
WALKED_AT_ONCE: Final = 500


def walk_topics(engine: Engine) -> Iterator[list[TopicInfo]]:
    """All topics, page by page in the order of their names, from any thread. One that comes or goes
    meanwhile may be there or not."""
    after: str | None = None
    while names := engine.topic_names(after, WALKED_AT_ONCE):
        yield [info for info in map(engine.topic, names) if info is not None]
        after = names[-1]


def walk_groups(engine: Engine) -> Iterator[list[str]]:
    """The names of all groups, in the same way."""
    after: str | None = None
    while names := engine.group_names(after, WALKED_AT_ONCE):
        yield names
        after = names[-1]
