"""Groups that a client has numbered: each is staged once however often it is sent, and none is left out."""

import errno
import threading
from collections.abc import Sequence
from typing import Literal

import pytest
from kit.engines import Opener, batch, make
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.transactions import begin, everything, stage, staged_files

from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Target
from penstock.log.errors import SequenceGap, TransactionNotOpen
from penstock.log.metadata.transaction_rows import TransactionTable

TASK = 5


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    engine = opened()
    make(engine, "a", 2)
    begin(engine)
    return engine


def groups(*names: str) -> list[list[Target]]:
    """Each of two batches, for two partitions."""
    return [[("a", n, batch(f"{name}.{n}".encode())) for n in (0, 1)] for name in names]


def send(engine: EmbeddedEngine, sequence: int | None, *names: str) -> int:
    return engine.transactions.stage_groups("q", TASK, groups(*names), sequence)


def committed(engine: EmbeddedEngine, count: int | None = None) -> Sequence[str]:
    """The groups of partition 0; partition 1 has the same ones."""
    engine.transactions.commit("q", {TASK: count})
    found = everything(engine)
    names = [value.decode().removesuffix(".0") for value in found["a/0"]]
    assert found["a/1"] == [f"{name}.1".encode() for name in names]
    return names


@pytest.mark.parametrize(
    ("sent", "repeats", "kept"),
    [
        ([(0, "ab"), (2, "c")], [0, 0], "abc"),
        ([(0, "ab"), (0, "ab"), (2, "c")], [0, 2, 0], "abc"),
        ([(0, "ab"), (1, "bcd"), (0, "a"), (3, "de")], [0, 1, 1, 1], "abcde"),
        # What counts is the number: whoever sends something else under it is not heard.
        ([(0, "ab"), (1, "x"), (1, "xyz")], [0, 1, 1], "abyz"),
        # Without a number everything is new, and takes one.
        ([(None, "ab"), (1, "bc"), (None, "d"), (3, "de")], [0, 1, 0, 1], "abcde"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_repeats_are_left_out(
    engine: EmbeddedEngine,
    opened: Opener,
    sent: list[tuple[int | None, str]],
    repeats: list[int],
    kept: str,
    restarted: bool,
) -> None:
    found = []
    for sequence, names in sent:
        found.append(send(engine, sequence, *names))
        if restarted:
            engine = opened()
    assert found == repeats
    assert committed(engine, len(kept)) == list(kept)


def test_a_gap_is_refused(engine: EmbeddedEngine) -> None:
    with pytest.raises(SequenceGap, match=r"task 5 sent batch 1, expected 0; .* begun anew"):
        send(engine, 1, "b")
    send(engine, 0, "a")
    with pytest.raises(SequenceGap, match=r"task 5 sent batch 2, expected 1$"):
        send(engine, 2, "c", "d")
    stage(engine, 4, b"another task has its own numbers")
    send(engine, 1, "b")
    assert committed(engine) == ["a", "b"]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_could_not_be_written_can_be_sent_again(
    engine: EmbeddedEngine,
    opened: Opener,
    files: FaultyFiles,
    operation: Literal["write", "sync"],
) -> None:
    send(engine, 0, "a")
    for _ in range(2):
        files.fail(operation, errno.ENOSPC, suffix=".stage")
        with pytest.raises(OSError):
            send(engine, 1, "b", "c")
        with pytest.raises(SequenceGap):
            send(engine, 3, "d")
    assert send(engine, 1, "b", "c") == 0
    assert send(opened(), 0, "a", "b", "c") == 3
    assert committed(opened(), 3) == ["a", "b", "c"]


def test_a_group_is_there_as_a_whole_or_not_at_all(
    engine: EmbeddedEngine, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies with the files written, and the metadata not."""
    send(engine, 0, "a")
    monkeypatch.setattr("penstock.log.metadata.transaction_rows.stage_row", _refuse)
    with pytest.raises(RuntimeError):
        send(engine, 1, "longer", "c")
    monkeypatch.undo()
    again = opened()
    assert send(again, 0, "a", "b") == 1
    assert committed(again, 2) == ["a", "b"]
    assert staged_files(again) == []


def _refuse(*arguments: object) -> None:
    raise RuntimeError


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_commit_that_counts_other_groups_is_refused(engine: EmbeddedEngine, count: int) -> None:
    """The transaction timed out after the task, and was begun anew by another one."""
    send(engine, 0, "a", "b")
    text = "'q' is another one than task 5 staged in"
    with pytest.raises(TransactionNotOpen, match=text):
        committed(engine, count)
    with pytest.raises(TransactionNotOpen, match="task 6"):
        engine.transactions.commit("q", {TASK: 2, 6: 1})
    engine.transactions.commit("q", {TASK: 2, 6: 0, 7: None})
    with pytest.raises(TransactionNotOpen, match="is committed"):
        send(engine, 0, "a")


def test_begun_anew_under_the_same_name(engine: EmbeddedEngine) -> None:
    send(engine, 0, "a", "b")
    engine.transactions.abort("q")
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        send(engine, 2, "c")
    begin(engine)
    with pytest.raises(SequenceGap, match="begun anew"):
        send(engine, 2, "c")
    with pytest.raises(TransactionNotOpen, match="another one"):
        committed(engine, 3)


def test_an_end_between_two_looks_is_no_gap(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is open when it is looked up, and gone when its rows are counted."""
    send(engine, 0, "a", "b")
    counted = TransactionTable.sequence_after

    def count_late(rows: TransactionTable, transaction_id: int, task: int) -> int:
        engine.transactions.abort("q")
        return counted(rows, transaction_id, task)

    monkeypatch.setattr(TransactionTable, "sequence_after", count_late)
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        send(engine, 2, "c")


def test_tasks_at_the_same_time(engine: EmbeddedEngine) -> None:
    start = threading.Barrier(3, timeout=HANG_S)

    def run(task: int) -> None:
        start.wait()
        for sequence in range(20):
            one = groups(f"{task}-{sequence}")
            assert engine.transactions.stage_groups("q", task, one, sequence) == 0
            assert engine.transactions.stage_groups("q", task, one, sequence) == 1

    threads = [threading.Thread(target=run, args=(task,)) for task in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    engine.transactions.commit("q", dict.fromkeys(range(3), 20))
    expected = [f"{task}-{n}.0".encode() for task in range(3) for n in range(20)]
    assert everything(engine)["a/0"] == expected
