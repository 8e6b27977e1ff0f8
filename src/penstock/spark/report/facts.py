"""What a report says: the result of the job, and all that the page is made from. Values only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """`busiest`: the records of the partition that has most. `largest_bytes`: of a value."""

    name: str
    records: int
    payload_bytes: int
    largest_bytes: int
    partitions: int
    busiest: int


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a plot over time: a number for each bar. `name` None: all others together."""

    name: str | None
    records: tuple[int, ...]
    payload_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyCount:
    key: bytes
    records: int


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The most frequent keys of a topic. Counts are too low by `slack` at most; then `different` is the
    least number of keys that there are."""

    topic: str
    keyed: int
    different: int
    slack: int
    top: tuple[KeyCount, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """`where`: the topic of a dead letter, or the door at which something was refused."""

    where: str
    text: str
    records: int


@dataclass(frozen=True, slots=True)
class Reasons:
    """The most frequent, and how many there are of all of them."""

    total: int = 0
    top: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the job has counted. Times are in microseconds, of the first and the last record; the bars
    begin at `start_s` and are `width_s` wide. `sizes`: records by the number of bits of their size."""

    first_us: int
    last_us: int
    start_s: int
    width_s: int
    records: int
    payload_bytes: int
    largest_bytes: int
    null_values: int
    topic_count: int
    partition_count: int
    topics: tuple[TopicTotals, ...]
    by_topic: tuple[Series, ...]
    by_protocol: tuple[Series, ...]
    sizes: dict[int, int]
    keys: tuple[TopicKeys, ...]
    letters: Reasons
    refusals: Reasons

    @property
    def bars(self) -> int:
        return self.last_us // 1_000_000 // self.width_s - self.start_s // self.width_s + 1


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Of one group in one topic. `committed_us`: when the group has committed last, if that is known."""

    group: str
    topic: str
    partitions: int
    lag: int
    worst: int
    committed_us: int | None


@dataclass(frozen=True, slots=True)
class Groups:
    """Those with the largest lag first. `problem`: why nothing is known about them, empty if it is."""

    count: int = 0
    top: tuple[GroupLag, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`pattern`: of the topics, empty for all. `from_us` 0: from the beginning. `job_s`: of the job."""

    server: str
    version: str
    made_us: int
    pattern: str
    from_us: int
    to_us: int
    job_s: float
    traffic: Traffic
    groups: Groups = field(default_factory=Groups)
