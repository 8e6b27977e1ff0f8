"""Transactions of the engine: whoever comes at the same time."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit.engines import WAIT_S, Opener, batch, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.partitions import Clock
from kit.transactions import (
    ALL,
    HOUR_US,
    NOTHING,
    Loop,
    begin,
    everything,
    fill,
    first_file,
    stage,
    staged_files,
)

from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import (
    CommitUnfinished,
    CommitWaits,
    LogError,
    TransactionNotOpen,
)
from penstock.log.metadata_errors import MetadataError
from penstock.log.partitions import producers

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
    with pytest.raises(CommitUnfinished, match="No space left"):
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


def test_maintenance_shows_no_part(opened: Opener, files: FaultyFiles) -> None:
    """What is held back may be in sealed segments already: it is not merged with what can be seen."""
    engine = opened(EngineOptions(cache_bytes=0))  # as the Flight process reads
    make(engine, "t", segment_bytes=4096, retention_ms=0)
    make(engine, "full")
    put(engine, "t", b"before")
    begin(engine)
    for number in range(100):
        stage(engine, 1, b"%d" % number * 50, to="t/0")
    stage(engine, 1, b"v", to="full/0")
    files.fail("write", errno.ENOSPC, times=2, suffix=first_file(engine, "full"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", [1])
    engine.maintain()
    assert engine.transactions.state("q") == "committing"
    assert len(engine.catalogue.partition("t", 0).segments) > 1
    found = values_of(engine, "t")
    assert len(found) == 1
    assert found[0] == b"before"
    engine.transactions.commit("q", [1])
    assert values_of(engine, "t")[-1] == b"99" * 50


def test_transactions_share_partitions(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    """One that waits for the disk keeps its partitions back; none of the others shows a part of it."""
    for name in ("one", "two"):
        begin(engine, name)
        stage(engine, 1, name.encode(), to="a/0", of=name)
        stage(engine, 1, name.encode(), to="b/0", of=name)
    files.fail("write", errno.ENOSPC, suffix=first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("one", [1])
    with pytest.raises(CommitWaits):
        engine.transactions.commit("two", [1])
    assert engine.transactions.state("two") == "committing"
    assert everything(engine) == NOTHING
    engine.transactions.commit("one", [1])
    engine.transactions.commit("two", [1])
    assert everything(engine) == {"a/0": [b"one", b"two"], "a/1": [], "b/0": [b"one", b"two"]}


@pytest.mark.parametrize("restart", [False, True])
def test_one_that_shares_some_partitions_waits(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, restart: bool
) -> None:
    """Else it would be seen where it is alone, and not where the other one holds it back."""
    places = {"one": ("a/0", "b/0"), "two": ("a/0", "a/1"), "three": ("a/1",)}
    for name, targets in places.items():
        begin(engine, name)
        for to in targets:
            stage(engine, 1, name.encode(), to=to, of=name)
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("one", [1])
    with pytest.raises(CommitWaits):
        engine.transactions.commit("two", [1])
    if restart:
        engine = opened()
        assert engine.transactions.unfinished == 2
    engine.transactions.commit("three", [1])
    assert everything(engine) == {**NOTHING, "a/1": [b"three"]}
    files.clear()
    engine.transactions.expire()
    assert everything(engine) == {
        "a/0": [b"one", b"two"],
        "a/1": [b"three", b"two"],
        "b/0": [b"one"],
    }


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


def test_a_transaction_that_waits_is_not_forgotten_for_others(
    engine: EmbeddedEngine, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    begin(engine)
    for partition in (0, 1):
        stage(engine, 1, b"v", to=f"a/{partition}")
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "a", 1))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", [1])
    others = [b"%d" % number for number in range(5)]
    for number, value in enumerate(others):
        engine.append("a", 0, batch(value).from_producer(number, 0, 0)).result(WAIT_S)
    files.clear()
    engine.transactions.commit("q", [1])
    assert everything(engine) == {**NOTHING, "a/0": [b"v", *others], "a/1": [b"v"]}


def test_a_commit_is_shown_whole_though_the_next_one_waits(
    opened: Opener, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is late: the next one has begun in one of the partitions when it shows the first."""
    loop = Loop()
    loop.turn()
    engine = opened(post=loop.post)
    make(engine, "a", 2)
    make(engine, "b")
    for name, targets in {"one": ["a/0", "b/0"], "two": ["a/0", "a/1"]}.items():
        begin(engine, name)
        for to in targets:
            stage(engine, 1, name.encode(), to=to, of=name)
    late = Loop()
    monkeypatch.setattr(engine.transactions._applier, "_post", late.post)
    engine.transactions.commit("one", [1])
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "a", 1))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("two", [1])
    assert everything(engine) == NOTHING
    late.turn()
    assert everything(engine) == {"a/0": [b"one"], "a/1": [], "b/0": [b"one"]}
    files.clear()
    engine.transactions.expire()
    assert everything(engine) == {"a/0": [b"one", b"two"], "a/1": [b"two"], "b/0": [b"one"]}


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
    assert error is None or isinstance(error, LogError | MetadataError)
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
