"""Transactions of the engine on disks that fail, and with topics that change."""

import errno
import sqlite3
from pathlib import Path

import pytest
from kit.engines import Opener, change, delete, make, put
from kit.faulty_files import FaultyFiles
from kit.partitions import Clock
from kit.transactions import (
    ALL,
    LARGE,
    NOTHING,
    begin,
    everything,
    fill,
    first_file,
    stage,
    staged_files,
)

from penstock.broker.errors import Code, from_exception
from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import (
    CommitUnfinished,
    CorruptLog,
    DecisionUnknown,
    LogError,
    UnknownTopic,
)
from penstock.log.metadata import transaction_rows as kept
from penstock.log.metadata_errors import MetadataRefused, MetadataWriteFailed

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
    with pytest.raises(CommitUnfinished, match="No space left"):
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
    except CommitUnfinished:
        assert everything(engine) == {**NOTHING, "b/0": [b"before"]}
        assert engine.transactions.state("q") == "committing"
        engine.transactions.expire()
    files.clear()  # the commit may need fewer writes
    assert everything(engine) == {**expected, "b/0": [b"before", *expected["b/0"]]}
    put(engine, "b", b"after")
    assert everything(engine)["b/0"][-1] == b"after"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_what_is_decided_is_never_called_not_stored(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, call: str, error: int
) -> None:
    """Who believes it writes everything again, and has it twice."""
    expected = fill(engine)
    files.fail(call, error, times=None, suffix=first_file(engine, "b"))  # type: ignore[arg-type]  # the kinds of calls
    for ask in (lambda: engine.transactions.commit("q", ALL), lambda: begin(engine)):
        with pytest.raises(CommitUnfinished) as refused:
            ask()
        answer = from_exception(refused.value)
        assert answer.code is Code.COMMIT_UNFINISHED and answer.code.retriable
        assert "decided and will appear" in str(answer) and "nothing" not in str(answer)
    files.clear()
    again = opened()
    again.transactions.commit("q", ALL)
    assert everything(again) == expected


def test_a_decision_that_may_be_written_or_not(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(engine)

    def fail(*_: object) -> None:
        raise MetadataWriteFailed("metadata.db", "disk I/O error", 1)

    with monkeypatch.context() as patch:
        patch.setattr(kept, "decide_row", fail)
        with pytest.raises(DecisionUnknown, match="may be written or not: disk I/O error") as told:
            engine.transactions.commit("q", ALL)
        assert from_exception(told.value).code is Code.OUTCOME_UNKNOWN
    engine.transactions.commit("q", ALL)
    assert everything(engine) == expected


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
    with pytest.raises(CommitUnfinished, match="flush failed"):
        engine.transactions.commit("q", [1])
    assert engine.transactions.state("q") == "committing"
    assert everything(engine)["a/0"] == []
    again = opened()
    assert again.transactions.state("q") == "committed"
    assert everything(again) == {"a/0": [b"here"], "t/0": [b"there"]}


@pytest.mark.parametrize(
    ("step", "answer"),
    [("decide_row", MetadataRefused), ("finish_row", CommitUnfinished)],
)
def test_metadata_that_fails(
    engine: EmbeddedEngine,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    answer: type[Exception],
) -> None:
    expected = fill(engine)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr(kept, step, fail)
        with pytest.raises(answer, match="no such thing"):
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
        with pytest.raises(CommitUnfinished, match="No space left"):
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
    delete(engine, "b")
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
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", ALL)
    delete(engine, "b")
    engine.transactions.commit("q", ALL)
    del expected["b/0"]
    assert everything(engine) == expected


@pytest.mark.parametrize("durability", ["none", "interval", "ack"])
def test_a_topic_that_is_deleted_after_its_part_was_written(
    opened: Opener, files: FaultyFiles, durability: str
) -> None:
    """Of the deleted one nothing is left to flush."""
    engine = opened()
    make(engine, "a", 1, durability=durability)
    make(engine, "b")
    begin(engine)
    for to in ("a/0", "b/0"):
        stage(engine, 1, b"v", to=to)
    files.fail("write", errno.ENOSPC, suffix=first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", [1])
    delete(engine, "a")
    engine.catalogue.wait_for_removals()
    engine.transactions.commit("q", [1])
    assert engine.transactions.state("q") == "committed"
    assert everything(engine) == {"b/0": [b"v"]}


def test_partitions_that_are_added(engine: EmbeddedEngine) -> None:
    expected = fill(engine)
    change(engine, "a", 4)
    engine.transactions.commit("q", ALL)
    assert everything(engine) == {**expected, "a/2": [], "a/3": []}
