"""Transactions of the engine: all at once or never, exactly once, in order, whoever comes at the same time."""

import errno
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.engines import WAIT_S, Opener, batch, make, put, settle, values_of
from kit.faulty_files import FaultyFiles
from kit.partitions import Clock

from penstock.log import producers
from penstock.log import staging as kept
from penstock.log.batch import Batch
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import (
    CorruptLog,
    LogError,
    PartitionStopped,
    StorageFull,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.segment import Segment
from penstock.log.transactions import REMEMBERED_US

HOUR_US = 3600 * 1_000_000
# Larger than what a partition writes in one group: each one is a write of its own.
LARGE = 5 * 1024 * 1024


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    engine = opened()
    make(engine, "a", 2)
    make(engine, "b")
    return engine


def begin(engine: EmbeddedEngine, name: str = "q") -> str:
    return engine.transactions.begin(name, HOUR_US)


def stage(
    engine: EmbeddedEngine, task: int, *values: bytes, to: str = "a/0", of: str = "q"
) -> None:
    topic, partition = to.split("/")
    engine.transactions.stage(of, task, topic, int(partition), batch(*values))


def everything(engine: EmbeddedEngine) -> dict[str, list[bytes]]:
    return {
        f"{info.name}/{number}": values_of(engine, info.name, number)
        for info in engine.topics()
        for number in range(info.partitions)
    }


def staged_files(engine: EmbeddedEngine) -> list[str]:
    return [str(path) for path in Path(engine.directory, "transactions").rglob("*.stage")]


def first_file(engine: EmbeddedEngine, topic: str, partition: int = 0) -> str:
    """The end of the path of the first segment."""
    return Segment(engine.catalogue.partition(topic, partition).directory, 0, False).path


def fill(engine: EmbeddedEngine) -> dict[str, list[bytes]]:
    """Stages in no good order; gives what the commit of all of it shows."""
    begin(engine)
    for task, value, to in [
        (2, b"2.0", "b/0"), (1, b"1.0", "a/1"), (2, b"2.1", "a/0"), (1, b"1.1", "a/0"),
        (1, b"1.2", "b/0"), (10, b"10.0", "a/0"),
    ]:  # fmt: skip
        stage(engine, task, value, value + b"+", to=to)
    return {
        "a/0": [b"1.1", b"1.1+", b"2.1", b"2.1+", b"10.0", b"10.0+"],
        "a/1": [b"1.0", b"1.0+"],
        "b/0": [b"1.2", b"1.2+", b"2.0", b"2.0+"],
    }


ALL = (1, 2, 10)
NOTHING: dict[str, list[bytes]] = {"a/0": [], "a/1": [], "b/0": []}


# --- the plain way ---------------------------------------------------------------------------------


def test_visible_at_the_commit_in_order_of_task_and_number(engine: EmbeddedEngine) -> None:
    expected = fill(engine)
    assert everything(engine) == NOTHING
    assert engine.transactions.state("q") == "open"
    engine.transactions.commit("q", ALL)
    assert everything(engine) == expected
    assert staged_files(engine) == []
    for tasks in (ALL, (1,), ()):
        engine.transactions.commit("q", tasks)
    assert begin(engine) == engine.transactions.state("q") == "committed"
    with pytest.raises(TransactionNotOpen, match="'q' is committed"):
        stage(engine, 1, b"late")
    with pytest.raises(TransactionNotOpen, match="committed"):
        engine.transactions.abort("q")
    assert everything(engine) == expected


def test_tasks_that_are_not_named_leave_nothing(engine: EmbeddedEngine) -> None:
    fill(engine)
    engine.transactions.commit("q", [2, 77, 2])
    assert everything(engine) == {"a/0": [b"2.1", b"2.1+"], "a/1": [], "b/0": [b"2.0", b"2.0+"]}
    assert staged_files(engine) == []


def test_nothing_at_all_can_be_committed(engine: EmbeddedEngine) -> None:
    begin(engine)
    engine.transactions.commit("q", [])
    assert engine.transactions.state("q") == "committed"


def test_several_batches_with_one_flush(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    begin(engine)
    stage(engine, 1, b"0")
    syncs = files.calls["sync"]
    batches: list[tuple[str, int, Batch]] = [("a", n % 2, batch(b"%d" % n)) for n in range(1, 7)]
    engine.transactions.stage_all("q", 1, batches)
    assert files.calls["sync"] == syncs + 1
    engine.transactions.commit("q", [1])
    assert everything(engine)["a/0"] == [b"0", b"2", b"4", b"6"]
    assert everything(engine)["a/1"] == [b"1", b"3", b"5"]


@pytest.mark.parametrize("changes", [
    {"durability": "none"}, {"durability": "interval", "flush_interval_ms": 60_000},
    {"compression": "zstd"}, {"segment_bytes": 4096},
])  # fmt: skip
def test_durable_in_every_kind_of_topic(opened: Opener, changes: dict[str, object]) -> None:
    engine = opened()
    make(engine, "t", 1, **changes)
    begin(engine)
    for number in range(8):
        stage(engine, 1, *[b"%d" % number * 500] * 3, to="t/0")
    engine.transactions.commit("q", [1])
    partition = engine.catalogue.partition("t", 0)
    assert partition.flushed_offset == partition.visible_offset == 24
    expected = [b"%d" % (n // 3) * 500 for n in range(24)]
    assert values_of(engine, "t") == values_of(opened(), "t") == expected


@pytest.mark.parametrize(
    ("to", "value", "error"),
    [("x/0", b"v", UnknownTopic), ("a/2", b"v", UnknownPartition), ("s/0", b"v" * 2000, TooLarge)],
)
def test_what_the_log_would_refuse_is_not_staged(
    engine: EmbeddedEngine, to: str, value: bytes, error: type[LogError]
) -> None:
    make(engine, "s", 1, record_bytes=1024)
    begin(engine)
    with pytest.raises(error):
        stage(engine, 1, value, to=to)
    assert staged_files(engine) == []


def test_a_limit_that_changes_later_is_none_for_what_is_staged(engine: EmbeddedEngine) -> None:
    begin(engine)
    stage(engine, 1, b"v" * 3000)
    engine.change_topic("a", {"record_bytes": 1024}).result(WAIT_S)
    engine.transactions.commit("q", [1])
    assert everything(engine)["a/0"] == [b"v" * 3000]


def test_names_that_nobody_began(engine: EmbeddedEngine) -> None:
    for call in (lambda: stage(engine, 1, b"v"), lambda: engine.transactions.commit("q", [1])):
        with pytest.raises(TransactionNotOpen, match="'q' is unknown"):
            call()
    engine.transactions.abort("q")
    assert engine.transactions.state("q") == "unknown"


def test_abort_leaves_nothing(engine: EmbeddedEngine) -> None:
    fill(engine)
    engine.transactions.abort("q")
    assert staged_files(engine) == []
    with pytest.raises(TransactionNotOpen, match="unknown"):
        engine.transactions.commit("q", ALL)
    assert begin(engine) == "open"
    stage(engine, 1, b"new")
    engine.transactions.commit("q", ALL)
    assert everything(engine) == {**NOTHING, "a/0": [b"new"]}


# --- time ------------------------------------------------------------------------------------------


def test_abandoned_ones_are_rolled_back(opened: Opener) -> None:
    clock = Clock(10_000_000)
    engine = opened(clock_us=clock)
    make(engine, "a")
    for name, timeout_us in (("short", 100), ("long", 1000), ("alive", 100)):
        engine.transactions.begin(name, timeout_us)
        stage(engine, 1, name.encode(), of=name)
    clock.now_us += 99
    stage(engine, 1, b"again", of="alive")
    assert engine.transactions.expire() == 0
    clock.now_us += 1
    engine.maintain()
    states = [engine.transactions.state(name) for name in ("short", "long", "alive")]
    assert states == ["unknown", "open", "open"]
    assert len(staged_files(engine)) == 2
    clock.now_us += 10_000
    assert engine.transactions.expire() == 2
    assert staged_files(engine) == []
    assert values_of(engine, "a") == []


def test_committed_names_are_forgotten_in_the_end(opened: Opener) -> None:
    clock = Clock()
    engine = opened(clock_us=clock)
    begin(engine)
    engine.transactions.commit("q", [])
    clock.now_us += REMEMBERED_US
    engine.transactions.expire()
    assert engine.transactions.state("q") == "committed"
    clock.now_us += 1
    engine.transactions.expire()
    assert engine.transactions.state("q") == "unknown"


# --- start again -----------------------------------------------------------------------------------


def test_an_open_one_goes_on_after_a_restart(engine: EmbeddedEngine, opened: Opener) -> None:
    expected = fill(engine)
    again = opened()
    assert everything(again) == NOTHING
    assert begin(again) == "open"
    stage(again, 10, b"10.1")
    again.transactions.commit("q", ALL)
    assert everything(again) == {**expected, "a/0": [*expected["a/0"], b"10.1"]}


@pytest.mark.parametrize("threads", [0, 2])
def test_a_decided_one_is_finished_at_start(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, threads: int
) -> None:
    """Before anybody can read, and without the help of an event loop that does not turn yet."""
    expected = fill(engine)
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "b"))
    with pytest.raises(StorageFull):
        engine.transactions.commit("q", ALL)
    assert everything(engine) == NOTHING
    engine.close()
    files.clear()
    later: list[Callable[[], None]] = []
    again = opened(EngineOptions(commit_threads=threads), post=later.append)
    for work in later:
        work()
    assert again.transactions.state("q") == "committed"
    assert staged_files(again) == []
    assert everything(again) == expected


def test_files_that_nobody_owns_are_removed_at_start(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    expected = fill(engine)
    begin(engine, "other")
    stage(engine, 1, b"kept", of="other")
    files.fail("remove_tree", errno.EIO)
    engine.transactions.commit("q", ALL)
    assert everything(engine) == expected
    assert "stay until restart" in caplog.text
    assert len(staged_files(engine)) == 4
    stray = Path(engine.directory, "transactions", "4711")
    stray.mkdir()
    (stray / "1.stage").write_bytes(b"of a stage that came too late")
    again = opened()
    assert len(staged_files(again)) == 1
    again.transactions.commit("other", [1])
    assert everything(again)["a/0"] == [*expected["a/0"], b"kept"]


# --- disks that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "write", "sync", "sync_directory", "make_directory"])
def test_a_failed_stage_leaves_the_others_alone(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, call: str
) -> None:
    begin(engine)
    files.fail(call, errno.ENOSPC)  # type: ignore[arg-type]  # the kinds of calls
    with pytest.raises(OSError):
        stage(engine, 1, b"lost")
    stage(engine, 1, b"one")
    again = opened()
    stage(again, 1, b"two")
    again.transactions.commit("q", [1])
    assert everything(again)["a/0"] == [b"one", b"two"]


def test_the_first_batch_failed_and_the_second_would_not(
    engine: EmbeddedEngine, files: FaultyFiles
) -> None:
    """A second batch that is stored without the first would make the first look like a repeat."""
    begin(engine)
    for number in range(3):
        stage(engine, 1, b"%d" % number * LARGE)
    files.fail("write", errno.ENOSPC, suffix=".log")
    with pytest.raises(StorageFull):
        engine.transactions.commit("q", [1])
    assert everything(engine) == NOTHING
    engine.transactions.commit("q", [1])
    assert [value[:1] for value in everything(engine)["a/0"]] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_disk_that_is_full_for_one_write(
    engine: EmbeddedEngine, files: FaultyFiles, nth: int
) -> None:
    expected = fill(engine)
    put(engine, "b", b"before")
    files.fail("write", errno.ENOSPC, nth=nth, suffix=".log")
    try:
        engine.transactions.commit("q", ALL)
    except StorageFull:
        assert everything(engine) == {**NOTHING, "b/0": [b"before"]}
        assert engine.transactions.state("q") == "committing"
        engine.maintain()
    assert everything(engine) == {**expected, "b/0": [b"before", *expected["b/0"]]}
    put(engine, "b", b"after")
    assert everything(engine)["b/0"][-1] == b"after"


@pytest.mark.parametrize("durability", ["ack", "interval", "none"])
def test_a_failed_flush_is_no_commit(opened: Opener, files: FaultyFiles, durability: str) -> None:
    engine = opened()
    make(engine, "a")
    make(engine, "t", durability=durability, flush_interval_ms=60_000)
    begin(engine)
    stage(engine, 1, b"here")
    stage(engine, 1, b"there", to="t/0")
    files.fail("sync", errno.EIO, suffix=first_file(engine, "t"))
    with pytest.raises(LogError):
        engine.transactions.commit("q", [1])
    with pytest.raises(PartitionStopped):
        engine.transactions.commit("q", [1])
    assert engine.transactions.state("q") == "committing"
    assert everything(engine)["a/0"] == []
    again = opened()
    assert again.transactions.state("q") == "committed"
    assert everything(again) == {"a/0": [b"here"], "t/0": [b"there"]}


@pytest.mark.parametrize("step", ["decide_row", "finish_row"])
def test_metadata_that_fails(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    expected = fill(engine)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr(kept, step, fail)
        with pytest.raises(sqlite3.OperationalError):
            engine.transactions.commit("q", ALL)
        assert everything(engine) == NOTHING
    engine.transactions.commit("q", ALL)
    assert everything(engine) == expected


def test_one_that_cannot_be_finished_holds_nobody_else_up(
    opened: Opener, files: FaultyFiles
) -> None:
    clock = Clock()
    engine = opened(clock_us=clock)
    make(engine, "a", 2)
    make(engine, "b")
    for name, to in (("stuck", "a/0"), ("fine", "a/1")):
        engine.transactions.begin(name, 100)
        stage(engine, 1, name.encode(), to=to, of=name)
    engine.transactions.begin("late", 100)
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "a", 0))
    files.fail("write", errno.ENOSPC, times=1, suffix=first_file(engine, "a", 1))
    for name in ("stuck", "fine"):
        with pytest.raises(StorageFull):
            engine.transactions.commit(name, [1])
    clock.now_us += 1000
    assert engine.transactions.expire() == 1
    assert engine.transactions.state("fine") == "committed"
    put(engine, "b", b"untouched")
    assert everything(engine) == {"a/0": [], "a/1": [b"fine"], "b/0": [b"untouched"]}
    files.clear()
    engine.transactions.expire()
    assert everything(engine)["a/0"] == [b"stuck"]


def test_damage_is_found_before_the_point_of_no_return(engine: EmbeddedEngine) -> None:
    fill(engine)
    (path,) = (path for path in staged_files(engine) if path.endswith("/2.stage"))
    content = bytearray(Path(path).read_bytes())
    content[-9] ^= 1
    Path(path).write_bytes(content)
    with pytest.raises(CorruptLog, match=r"2\.stage"):
        engine.transactions.commit("q", ALL)
    assert engine.transactions.state("q") == "open"
    engine.transactions.commit("q", [1])
    assert everything(engine)["b/0"] == [b"1.2", b"1.2+"]


# --- topics that change ----------------------------------------------------------------------------


def test_a_deleted_topic_is_heard_of_before_the_commit(engine: EmbeddedEngine) -> None:
    fill(engine)
    engine.delete_topic("b").result(WAIT_S)
    with pytest.raises(UnknownTopic):
        engine.transactions.commit("q", ALL)
    assert engine.transactions.state("q") == "open"
    engine.transactions.commit("q", [10])
    assert everything(engine) == {"a/0": [b"10.0", b"10.0+"], "a/1": []}


def test_a_topic_that_is_deleted_after_the_decision(
    engine: EmbeddedEngine, files: FaultyFiles
) -> None:
    expected = fill(engine)
    files.fail("write", errno.ENOSPC, suffix=first_file(engine, "b"))
    with pytest.raises(StorageFull):
        engine.transactions.commit("q", ALL)
    engine.delete_topic("b").result(WAIT_S)
    settle(engine)
    engine.transactions.commit("q", ALL)
    del expected["b/0"]
    assert everything(engine) == expected


def test_partitions_that_are_added(engine: EmbeddedEngine) -> None:
    expected = fill(engine)
    engine.change_topic("a", {}, 4).result(WAIT_S)
    engine.transactions.commit("q", ALL)
    assert everything(engine) == {**expected, "a/2": [], "a/3": []}


# --- at the same time ------------------------------------------------------------------------------


def test_nobody_sees_a_part(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    expected = fill(engine)
    seen: list[dict[str, list[bytes]]] = []
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        engine.watch(topic, partition, 0, lambda: seen.append(everything(engine)))
    last = first_file(engine, "b")
    with ThreadPoolExecutor(1) as pool, files.pause("sync", suffix=last) as paused:
        commit = pool.submit(engine.transactions.commit, "q", ALL)
        paused.wait_until_reached()
        engine.catalogue.partition("a", 0).flush()
        assert put(engine, "a", b"of another", partition=1) > 0
        assert everything(engine) == NOTHING
        assert not seen
        paused.release()
        commit.result(WAIT_S)
    expected["a/1"].append(b"of another")
    assert everything(engine) == expected
    assert seen == [expected] * 3, "who is woken sees all of it"


def test_two_commits_at_the_same_moment(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    """The first decision counts; the other commit hears that it is done."""
    fill(engine)
    with ThreadPoolExecutor(1) as pool, files.pause("read", suffix=".stage") as paused:
        slow = pool.submit(engine.transactions.commit, "q", [1])
        paused.wait_until_reached()
        engine.transactions.commit("q", [10])
        paused.release()
        slow.result(WAIT_S)
    assert everything(engine) == {**NOTHING, "a/0": [b"10.0", b"10.0+"]}


def test_many_commits_at_the_same_moment(engine: EmbeddedEngine) -> None:
    expected = fill(engine)
    start = threading.Barrier(8, timeout=WAIT_S)

    def commit() -> None:
        start.wait()
        engine.transactions.commit("q", ALL)
        assert everything(engine) == expected

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(commit) for _ in range(8)]:
            done.result(WAIT_S)
    assert everything(engine) == expected


@pytest.mark.parametrize("call", ["abort", "expire"])
def test_an_end_that_comes_before_the_decision(
    opened: Opener, files: FaultyFiles, call: str
) -> None:
    clock = Clock()
    engine = opened(clock_us=clock)
    make(engine, "a", 2)
    make(engine, "b")
    fill(engine)
    with ThreadPoolExecutor(1) as pool, files.pause("read", suffix=".stage") as paused:
        commit = pool.submit(engine.transactions.commit, "q", ALL)
        paused.wait_until_reached()
        clock.now_us += HOUR_US
        if call == "abort":
            engine.transactions.abort("q")
        else:
            assert engine.transactions.expire() == 1
        paused.release()
        with pytest.raises(TransactionNotOpen, match="unknown"):
            commit.result(WAIT_S)
    assert everything(engine) == NOTHING
    assert staged_files(engine) == []


def test_an_abort_that_comes_after_the_decision(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    expected = fill(engine)
    with ThreadPoolExecutor(1) as pool, files.pause("write", suffix=".log") as paused:
        commit = pool.submit(engine.transactions.commit, "q", ALL)
        paused.wait_until_reached()
        with pytest.raises(TransactionNotOpen, match="committing"):
            engine.transactions.abort("q")
        with pytest.raises(TransactionNotOpen, match="committing"):
            stage(engine, 1, b"late")
        paused.release()
        commit.result(WAIT_S)
    assert everything(engine) == expected
    assert staged_files(engine) == []


def test_begin_waits_for_a_commit_under_way(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    expected = fill(engine)
    files.fail("write", errno.ENOSPC, suffix=".log")
    with pytest.raises(StorageFull):
        engine.transactions.commit("q", ALL)
    assert begin(engine) == "committed"
    assert everything(engine) == expected


@pytest.mark.parametrize("end", ["abort", "expire", "commit"])
def test_a_stage_that_comes_too_late(opened: Opener, files: FaultyFiles, end: str) -> None:
    clock = Clock()
    engine = opened(clock_us=clock)
    make(engine, "a")
    begin(engine)
    stage(engine, 1, b"in time")
    with ThreadPoolExecutor(1) as pool, files.pause("sync", suffix="/2.stage") as paused:
        late = pool.submit(stage, engine, 2, b"late")
        paused.wait_until_reached()
        clock.now_us += HOUR_US
        if end == "commit":
            engine.transactions.commit("q", [1, 2])
        else:
            getattr(engine.transactions, end)(*["q"] * (end == "abort"))
        paused.release()
        with pytest.raises(TransactionNotOpen, match="committed" if end == "commit" else "unknown"):
            late.result(WAIT_S)
    assert staged_files(engine) == []
    assert values_of(engine, "a") == ([b"in time"] if end == "commit" else [])


def test_transactions_share_partitions(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    """One that waits for the disk keeps its partitions back; none of the others shows a part of it."""
    for name in ("one", "two"):
        begin(engine, name)
        stage(engine, 1, name.encode(), to="a/0", of=name)
        stage(engine, 1, name.encode(), to="b/0", of=name)
    files.fail("write", errno.ENOSPC, suffix=first_file(engine, "b"))
    with pytest.raises(StorageFull):
        engine.transactions.commit("one", [1])
    engine.transactions.commit("two", [1])
    assert everything(engine) == NOTHING
    engine.transactions.commit("one", [1])
    assert everything(engine) == {"a/0": [b"one", b"two"], "a/1": [], "b/0": [b"two", b"one"]}


def test_many_transactions_do_not_make_the_log_forget_its_producers(
    engine: EmbeddedEngine, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    first = engine.append("a", 0, batch(b"mine").from_producer(7, 0, 0)).result(WAIT_S)
    for number in range(6):
        begin(engine, str(number))
        stage(engine, 1, b"%d" % number, of=str(number))
        engine.transactions.commit(str(number), [1])
    again = engine.append("a", 0, batch(b"mine").from_producer(7, 0, 0))
    assert (again.result(WAIT_S), again.repeated) == (first, True)
    assert everything(engine)["a/0"] == [b"mine", *(b"%d" % n for n in range(6))]


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_the_engine_closes_during_a_commit(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, kind: str
) -> None:
    expected = fill(engine)
    with ThreadPoolExecutor(2) as pool, files.pause(kind, suffix=".log") as paused:  # type: ignore[arg-type]  # the kinds of calls
        commit = pool.submit(engine.transactions.commit, "q", ALL)
        paused.wait_until_reached()
        close = pool.submit(engine.close)
        paused.release()
        close.result(WAIT_S)
        error = commit.exception(WAIT_S)
    assert error is None or isinstance(error, Exception)
    assert everything(opened()) == expected


def test_ten_thousand_batches(engine: EmbeddedEngine) -> None:
    begin(engine)
    for first in range(0, 10_000, 1000):
        numbers = range(first, first + 1000)
        engine.transactions.stage_all(
            "q", first % 3, [("a", n % 2, batch(b"%d" % n)) for n in numbers]
        )
    engine.transactions.commit("q", range(3))
    found = everything(engine)
    numbers_by_task = sorted(range(10_000), key=lambda n: (n // 1000 * 1000 % 3, n))
    for partition in (0, 1):
        expected = [b"%d" % n for n in numbers_by_task if n % 2 == partition]
        assert found[f"a/{partition}"] == expected
