"""What transactions promise, on both engines: the same calls, the same outcome, the same errors."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.engines import batch, make
from kit.kafka_transactions import Gateways
from kit.limits import HANG_S
from kit.partitions import Clock
from kit.transactions import HOUR_US
from kit.transactions import everything as in_files

from penstock.kafka.transactions.transactions import KafkaTransactions
from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Target
from penstock.log.errors import (
    LogError,
    StagingGap,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.transactions.transactions import Transactions

NOTHING: dict[str, list[bytes]] = {"a/0": [], "a/1": [], "b/0": []}
TASK = 5


@dataclass
class Subject:
    """Transactions of one engine, on a of two partitions, b of one, and s of records of 1,024 bytes."""

    transactions: Transactions | KafkaTransactions
    everything: Callable[[], object]
    name: Callable[[str], str]
    pass_us: Callable[[int], None]

    @property
    def q(self) -> str:
        return self.name("q")

    def begin(self) -> str:
        return self.transactions.begin(self.q, HOUR_US)

    def targets(self, to: str, *values: bytes) -> list[Target]:
        topic, partition = to.split("/")
        return [(self.name(topic), int(partition), batch(*values))]

    def stage(self, task: int, *values: bytes, to: str = "a/0") -> None:
        self.transactions.stage_groups(self.q, task, [self.targets(to, *values)])

    def send(self, sequence: int | None, names: str) -> int:
        """Groups of two batches, for two partitions."""
        groups = [
            [self.targets(f"a/{n}", f"{name}.{n}".encode())[0] for n in (0, 1)] for name in names
        ]
        return self.transactions.stage_groups(self.q, TASK, groups, sequence)


@pytest.fixture(params=["embedded", "kafka"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "kafka":
        gateways: Gateways = request.getfixturevalue("gateways")
        gateways.know("s", 1, record_bytes=1024)

        def pass_us(time_us: int) -> None:
            gateways.clock.later_us += time_us

        def visible() -> object:
            gateways.topics.pop(gateways.name("s"), None)  # Kafka does not have it
            return gateways.everything()

        found = Subject(gateways.open(), visible, gateways.name, pass_us)
        yield found
        return
    clock = Clock(10_000_000)

    def pass_us_here(time_us: int) -> None:
        clock.now_us += time_us

    with closing(EmbeddedEngine(str(tmp_path), clock_us=clock)) as engine:
        make(engine, "a", 2)
        make(engine, "b")

        def kept() -> object:
            return {place: values for place, values in in_files(engine).items() if place[0] != "s"}

        make(engine, "s", 1, record_bytes=1024)
        yield Subject(engine.transactions, kept, str, pass_us_here)


def test_visible_at_the_commit_in_order_of_task_and_number(subject: Subject) -> None:
    assert subject.begin() == "open"
    for task, value, to in [
        (2, b"2.0", "b/0"), (1, b"1.0", "a/1"), (2, b"2.1", "a/0"), (1, b"1.1", "a/0"),
        (1, b"1.2", "b/0"), (10, b"10.0", "a/0"), (3, b"not chosen", "a/0"),
    ]:  # fmt: skip
        subject.stage(task, value, value + b"+", to=to)
    assert subject.everything() == NOTHING
    assert subject.transactions.state(subject.q) == "open"
    [one] = subject.transactions.unfinished_ones()
    assert (one.name, one.state, [*one.staged]) == (
        subject.q,
        "open",
        [subject.name("a"), subject.name("b")],
    )
    usage = subject.transactions.usage(subject.q[:1])
    assert (usage.open, usage.staged_bytes) == (1, sum(one.staged.values()))
    assert subject.transactions.usage("x").open == 0
    subject.transactions.commit(subject.q, {1: 3, 2: 2, 10: None, 77: None}, 5)
    expected = {
        "a/0": [b"1.1", b"1.1+", b"2.1", b"2.1+", b"10.0", b"10.0+"],
        "a/1": [b"1.0", b"1.0+"],
        "b/0": [b"1.2", b"1.2+", b"2.0", b"2.0+"],
    }
    assert subject.everything() == expected
    assert subject.transactions.usage("").open == 0
    assert subject.transactions.oldest_age_us() == 0
    assert subject.transactions.rows_of(subject.q) == 5
    for tasks in ({1: 3}, {1: 7}, {}):
        subject.transactions.commit(subject.q, tasks)
    assert subject.begin() == subject.transactions.state(subject.q) == "committed"
    with pytest.raises(TransactionNotOpen, match="is committed"):
        subject.stage(1, b"late")
    with pytest.raises(TransactionNotOpen, match="is committed"):
        subject.transactions.abort(subject.q)
    assert subject.everything() == expected


@pytest.mark.parametrize(
    ("to", "value", "error"),
    [("x/0", b"v", UnknownTopic), ("a/2", b"v", UnknownPartition), ("s/0", b"v" * 2000, TooLarge)],
)
def test_what_the_log_would_refuse_is_not_staged(
    subject: Subject, to: str, value: bytes, error: type[LogError]
) -> None:
    subject.begin()
    with pytest.raises(error):
        subject.stage(1, value, to=to)
    assert subject.transactions.usage("").staged_bytes == 0
    wrong = subject.targets("a/0", b"good") + subject.targets(to, value)
    with pytest.raises(error):
        subject.transactions.commit_at_once(subject.name("r"), wrong)
    assert subject.transactions.state(subject.name("r")) == "unknown"
    assert subject.everything() == NOTHING


def test_names_that_nobody_began(subject: Subject) -> None:
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        subject.stage(1, b"v")
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        subject.transactions.commit(subject.q, {1: None})
    subject.transactions.abort(subject.q)
    assert subject.transactions.state(subject.q) == "unknown"
    assert subject.transactions.rows_of(subject.q) is None


def test_abort_leaves_nothing(subject: Subject) -> None:
    subject.begin()
    subject.send(0, "ab")
    subject.transactions.abort(subject.q)
    assert subject.transactions.usage("").staged_bytes == 0
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        subject.send(2, "c")
    assert subject.begin() == "open"
    with pytest.raises(StagingGap, match=r"task 5 sent batch 2, expected 0; .* begun anew"):
        subject.send(2, "c")
    with pytest.raises(TransactionNotOpen, match="another one than task 5 staged in"):
        subject.transactions.commit(subject.q, {TASK: 3})
    subject.stage(1, b"new")
    subject.transactions.commit(subject.q, {1: 1, TASK: 0})
    assert subject.everything() == {**NOTHING, "a/0": [b"new"]}


@pytest.mark.parametrize(
    ("sent", "repeats", "kept"),
    [
        ([(0, "ab"), (2, "c")], [0, 0], "abc"),
        ([(0, "ab"), (1, "bcd"), (0, "a"), (3, "de")], [0, 1, 1, 1], "abcde"),
        # What counts is the number: whoever sends something else under it is not heard.
        ([(0, "ab"), (1, "x"), (1, "xyz")], [0, 1, 1], "abyz"),
        # Without a number everything is new, and takes one.
        ([(None, "ab"), (1, "bc"), (None, "d"), (3, "de")], [0, 1, 0, 1], "abcde"),
    ],
)
def test_repeats_are_left_out(
    subject: Subject, sent: list[tuple[int | None, str]], repeats: list[int], kept: str
) -> None:
    subject.begin()
    assert [subject.send(*one) for one in sent] == repeats
    subject.transactions.commit(subject.q, {TASK: len(kept)})
    expected = {f"a/{n}": [f"{name}.{n}".encode() for name in kept] for n in (0, 1)}
    assert subject.everything() == {**NOTHING, **expected}


def test_a_gap_is_refused(subject: Subject) -> None:
    subject.begin()
    subject.send(0, "a")
    with pytest.raises(StagingGap, match=r"task 5 sent batch 2, expected 1$"):
        subject.send(2, "cd")
    subject.stage(4, b"another task has its own numbers")
    assert subject.send(1, "b") == 0


def test_tasks_at_the_same_time(subject: Subject) -> None:
    subject.begin()
    start = threading.Barrier(3, timeout=HANG_S)

    def run(task: int) -> None:
        start.wait()
        for sequence in range(5):
            groups = [subject.targets("a/0", b"%d-%d" % (task, sequence))]
            stage = subject.transactions.stage_groups
            assert stage(subject.q, task, groups, sequence) == 0
            assert stage(subject.q, task, groups, sequence) == 1

    threads = [threading.Thread(target=run, args=(task,)) for task in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    subject.transactions.commit(subject.q, dict.fromkeys(range(3), 5))
    expected = [b"%d-%d" % (task, n) for task in range(3) for n in range(5)]
    assert subject.everything() == {**NOTHING, "a/0": expected}


def test_at_once_and_again(subject: Subject) -> None:
    targets = [
        one
        for to, value in [("a/0", b"0"), ("a/1", b"1"), ("b/0", b"2"), ("a/0", b"3")]
        for one in subject.targets(to, value)
    ]
    for _ in range(2):
        subject.transactions.commit_at_once(subject.q, targets)
    subject.transactions.commit(subject.q, {})
    assert subject.everything() == {"a/0": [b"0", b"3"], "a/1": [b"1"], "b/0": [b"2"]}
    assert subject.transactions.rows_of(subject.q) is None
    empty = subject.name("empty")
    subject.transactions.commit_at_once(empty, [])
    assert subject.transactions.begin(empty, HOUR_US) == "committed"


def test_a_name_with_staged_batches_is_refused(subject: Subject) -> None:
    subject.begin()
    subject.stage(1, b"staged")
    with pytest.raises(TransactionNotOpen, match="is open with staged batches"):
        subject.transactions.commit_at_once(subject.q, subject.targets("a/0", b"other"))
    subject.transactions.commit(subject.q, {1: 1})
    assert subject.everything() == {**NOTHING, "a/0": [b"staged"]}


def test_abandoned_ones_are_rolled_back(subject: Subject) -> None:
    for short, hours in (("short", 1), ("long", 10), ("alive", 1)):
        subject.transactions.begin(subject.name(short), hours * HOUR_US)
        subject.transactions.stage_groups(subject.name(short), 1, [subject.targets("a/0", b"v")])
    subject.pass_us(HOUR_US // 2)
    subject.transactions.stage_groups(subject.name("alive"), 1, [subject.targets("a/0", b"v")])
    assert subject.transactions.expire() == 0
    subject.pass_us(HOUR_US // 2 + 1000)
    assert subject.transactions.oldest_age_us() >= HOUR_US
    assert subject.transactions.expire() == 1
    states = [subject.transactions.state(subject.name(one)) for one in ("short", "long", "alive")]
    assert states == ["unknown", "open", "open"]
    subject.pass_us(20 * HOUR_US)
    assert subject.transactions.expire() == 2
    assert subject.transactions.usage("").staged_bytes == 0
    assert subject.everything() == NOTHING


def test_committed_names_are_forgotten_in_the_end(subject: Subject) -> None:
    subject.begin()
    subject.transactions.commit(subject.q, {})
    subject.pass_us(30 * 24 * HOUR_US - 60_000_000)
    subject.transactions.expire()
    assert subject.transactions.state(subject.q) == "committed"
    subject.pass_us(60_000_001)
    subject.transactions.expire()
    assert subject.transactions.state(subject.q) == "unknown"
    assert subject.begin() == "open"
