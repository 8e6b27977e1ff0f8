"""Transactions of the engine: all at once or never, exactly once, in order; time and restarts."""

import errno
from pathlib import Path

import pytest
from kit.engines import Opener, batch, change, make, values_of
from kit.faulty_files import FaultyFiles
from kit.partitions import Clock
from kit.transactions import (
    ALL,
    NOTHING,
    Loop,
    begin,
    everything,
    fill,
    first_file,
    stage,
    staged_files,
)

from penstock.log.batch.format import Batch
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import (
    CommitUnfinished,
    LogError,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.transactions.transactions import DEFAULT_MEMORY_US

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
    change(engine, "a", record_bytes=1024)
    engine.transactions.commit("q", [1])
    assert everything(engine)["a/0"] == [b"v" * 3000]


def test_names_that_nobody_began(engine: EmbeddedEngine) -> None:
    with pytest.raises(TransactionNotOpen, match="'q' is unknown"):
        stage(engine, 1, b"v")
    with pytest.raises(TransactionNotOpen, match="'q' is unknown"):
        engine.transactions.commit("q", [1])
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
    clock.now_us += DEFAULT_MEMORY_US
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
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", ALL)
    assert everything(engine) == NOTHING
    engine.close()
    files.clear()
    loop = Loop()
    again = opened(EngineOptions(commit_threads=threads), post=loop.post)
    loop.turn()
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
