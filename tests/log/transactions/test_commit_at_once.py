"""Transactions that their owner kept in memory: durable with their commit, in few flushes, or not there."""

import errno
from pathlib import Path

import pytest
from kit.engines import Opener, batch, make
from kit.faulty_files import FaultyFiles
from kit.transactions import NOTHING, begin, everything, first_file, stage, staged_files

from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Target
from penstock.log.errors import (
    CommitUnfinished,
    DecisionUnknown,
    StagingDamaged,
    TooLarge,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata.transaction_rows import TransactionTable
from penstock.log.metadata_errors import MetadataWriteFailed

ALL: dict[str, list[bytes]] = {"a/0": [b"0", b"3"], "a/1": [b"1"], "b/0": [b"2"]}


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    engine = opened()
    make(engine, "a", 2)
    make(engine, "b", 1)
    return engine


def targets(copies: int = 1) -> list[Target]:
    places = [("a", 0, b"0"), ("a", 1, b"1"), ("b", 0, b"2"), ("a", 0, b"3")]
    return [(topic, at, batch(*[value] * copies)) for topic, at, value in places]


def test_all_of_it_is_there_at_once_and_stays(engine: EmbeddedEngine, opened: Opener) -> None:
    engine.transactions.commit_at_once("q", targets())
    assert everything(engine) == ALL
    assert staged_files(engine) == []
    repeat(engine)
    repeat(opened())


def repeat(engine: EmbeddedEngine) -> None:
    settle(engine)
    engine.transactions.commit_at_once("q", targets())
    engine.transactions.commit("q", [])
    assert everything(engine) == ALL
    assert engine.transactions.state("q") == "committed"
    assert engine.metadata.query("SELECT count(*) FROM staged") == [(0,)]


def settle(engine: EmbeddedEngine) -> None:
    """Until the last change of a commit is there, for which it does not wait itself."""
    engine.metadata.submit(lambda db: None).result()


def test_nothing_at_all_is_remembered_too(engine: EmbeddedEngine) -> None:
    engine.transactions.commit_at_once("q", [])
    assert engine.transactions.state("q") == "committed"
    assert everything(engine) == NOTHING


def test_as_many_flushes_for_many_records_as_for_few(
    engine: EmbeddedEngine, files: FaultyFiles
) -> None:
    def flushes(name: str, copies: int) -> tuple[int, int, int]:
        before = files.calls["sync"], files.calls["sync_directory"], engine.metadata.commits
        engine.transactions.commit_at_once(name, targets(copies))
        settle(engine)
        after = files.calls["sync"], files.calls["sync_directory"], engine.metadata.commits
        first, second, third = (now - then for now, then in zip(after, before, strict=True))
        return first, second, third

    flushes("first", 1)  # makes files
    few = flushes("few", 1)
    many = flushes("many", 2_000)
    assert few[1] == many[1] == 0
    # One flush of each partition, and one more where a second batch came too late for the first.
    assert max(few[0], many[0]) <= 4
    # The decision with the batches, the end, and the one above: which may share a commit.
    assert max(few[2], many[2]) <= 3


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("c", 0, batch(b"x")), UnknownTopic),
        (("a", 2, batch(b"x")), UnknownPartition),
        (("s", 0, batch(b"x" * 2000)), TooLarge),
    ],
)
def test_what_the_log_would_refuse_stores_nothing(
    engine: EmbeddedEngine, wrong: Target, error: type[Exception]
) -> None:
    make(engine, "s", 1, record_bytes=1024)
    with pytest.raises(error):
        engine.transactions.commit_at_once("q", [*targets(), wrong])
    assert everything(engine) == {**NOTHING, "s/0": []}
    assert engine.transactions.state("q") == "unknown"


def test_a_name_with_staged_files_is_refused(engine: EmbeddedEngine) -> None:
    begin(engine)
    stage(engine, 1, b"staged")
    with pytest.raises(TransactionNotOpen, match="open"):
        engine.transactions.commit_at_once("q", targets())
    engine.transactions.commit("q", [1])
    assert everything(engine) == {**NOTHING, "a/0": [b"staged"]}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_full_disk_after_the_decision(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, restarted: bool
) -> None:
    """What was decided comes from the metadata then, whatever the repeated call brings."""
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit_at_once("q", targets())
    assert everything(engine) == NOTHING
    files.clear()
    if restarted:
        engine.close()
        engine = opened()
    engine.transactions.commit_at_once("q", [("a", 1, batch(b"another"))])
    assert everything(engine) == ALL


def test_a_decision_that_may_be_written_or_not(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MetadataWriteFailed("metadata.db", "disk I/O error", 1)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.log.metadata.transaction_rows.decide_at_once_row", fail)
        with pytest.raises(DecisionUnknown):
            engine.transactions.commit_at_once("q", targets())
    assert everything(engine) == NOTHING
    engine.transactions.commit_at_once("q", targets())
    assert everything(engine) == ALL


def test_a_last_state_that_is_not_written_is_written_later(
    engine: EmbeddedEngine, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit does not wait for it: its records are durable in the log, and are not stored twice."""

    def fail(*_: object) -> None:
        raise MetadataWriteFailed("metadata.db", "disk I/O error", 1)

    with monkeypatch.context() as patch:
        patch.setattr("penstock.log.metadata.transaction_rows.finish_row", fail)
        engine.transactions.commit_at_once("q", targets())
        engine.transactions.commit_at_once("r", [("a", 0, batch(b"4"))])
        settle(engine)
    assert engine.transactions.state("q") == "committing"
    expected = {**ALL, "a/0": [b"0", b"3", b"4"]}
    assert everything(engine) == expected
    engine.transactions.expire()
    assert engine.transactions.state("q") == "committed"
    assert everything(engine) == expected == everything(opened())


def test_damage_in_the_metadata_rolls_back_what_was_not_begun(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    for name in ("a", "b"):
        files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, name))
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "a", 1))
    with pytest.raises(CommitUnfinished):
        engine.transactions.commit_at_once("q", targets())
    engine.metadata.submit(
        lambda db: db.execute("UPDATE staged SET content = zeroblob(200) WHERE topic = 'b'")
    ).result()
    with pytest.raises(StagingDamaged, match=str(Path(engine.directory, "metadata.db"))):
        list(engine.transactions._staging.read(1, engine.transactions._rows.staged_by(1)))
    engine.close()
    files.clear()
    again = opened()
    assert again.transactions.state("q") == "unknown"
    assert everything(again) == NOTHING


@pytest.mark.parametrize("turned", [False, True], ids=["in the order of decisions", "in another"])
def test_a_start_finishes_many_that_were_stored(
    engine: EmbeddedEngine, opened: Opener, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    """A process that dies before it has noted the end of several commits, which were answered: they lie
    behind each other in the same partitions, and none of them waits for another for ever."""
    transactions = engine.transactions
    monkeypatch.setattr(TransactionTable, "finish_soon", lambda *_: None)
    late = [("a", 0, batch(b"late")), ("b", 0, batch(b"late"))]
    if turned:  # decided first, stored last
        apply = transactions._applier.apply
        monkeypatch.setattr(transactions._applier, "apply", lambda *_, **__: True)
        transactions.commit_at_once("late", late)
        monkeypatch.setattr(transactions._applier, "apply", apply)
    for name in ("q", "r", "s"):
        transactions.commit_at_once(name, targets())
    if not turned:
        transactions.commit_at_once("late", late)
    assert transactions.state("s") == "committing"
    monkeypatch.undo()
    again = opened()
    for name in ("q", "r", "s", "late"):
        assert again.transactions.state(name) == "committed"
    assert everything(again) == {
        "a/0": [b"0", b"3"] * 3 + [b"late"],
        "a/1": [b"1"] * 3,
        "b/0": [b"2"] * 3 + [b"late"],
    }
    assert again.statistics().transactions_unfinished == 0
