"""Decided transactions that cannot be finished at start: out of sight, tried again, never in part."""

import errno
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from kit.engines import WAIT_S, Opener, delete, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.transactions import (
    ALL,
    NOTHING,
    begin,
    everything,
    fill,
    first_file,
    stage,
    staged_files,
)

from penstock.log.batch.format import HEADER_SIZE
from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import (
    CommitUnfinished,
    CommitWaits,
    StagingDamaged,
    TopicReplaced,
    TransactionNotOpen,
)
from penstock.log.metadata import transaction_rows as kept
from penstock.log.transactions import retries


def full(files: FaultyFiles, suffix: str = ".log") -> None:
    files.fail("write", errno.ENOSPC, times=None, suffix=suffix)


def decide(engine: EmbeddedEngine, files: FaultyFiles, suffix: str) -> None:
    """Commits, with no space where a path ends so: decided, and not finished."""
    full(files, suffix)
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", ALL)
    assert engine.transactions.state("q") == "committing"
    engine.close()


def harm(engine: EmbeddedEngine, task: int, position: int = -9) -> Path:
    (path,) = (Path(path) for path in staged_files(engine) if path.endswith(f"/{task}.stage"))
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    return path


# --- a full disk ---------------------------------------------------------------------------------


def test_a_disk_that_is_still_full(
    engine: EmbeddedEngine,
    opened: Opener,
    files: FaultyFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A part of it is in the log. The server serves all the rest, and nobody sees the part."""
    expected = fill(engine)
    decide(engine, files, first_file(engine, "b"))
    caplog.clear()
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.01)
    again = opened()
    seen = threading.Event()
    again.watch("b", 0, 0, seen.set)
    assert everything(again) == NOTHING
    assert again.transactions.unfinished == 1
    assert put(again, "a", b"of another") == 2
    make(again, "c")
    put(again, "c", b"as ever")
    assert everything(again) == {**NOTHING, "c/0": [b"as ever"]}
    (line,) = (one.message for one in caplog.records if one.levelno == logging.ERROR)
    assert line.startswith("transaction 1 is decided but not finished: append to ")
    assert line.endswith("it is tried again; until then 3 partitions show nothing new")
    files.clear()
    assert seen.wait(WAIT_S)
    assert everything(again) == {
        **expected,
        "a/0": [*expected["a/0"][:2], b"of another", *expected["a/0"][2:]],
        "c/0": [b"as ever"],
    }
    again.close()
    assert again.transactions.unfinished == 0
    assert again.transactions.retries > 0
    assert staged_files(again) == []


def test_a_part_in_sealed_segments_is_not_seen(opened: Opener, files: FaultyFiles) -> None:
    engine = opened()
    make(engine, "t", segment_bytes=4096, retention_ms=0)
    make(engine, "b", retention_ms=0)
    put(engine, "t", b"before" * 300)
    begin(engine)
    for number in range(20):
        stage(engine, 1, b"%02d" % number * 1000, to="t/0")
    stage(engine, 1, b"last", to="b/0")
    decide(engine, files, first_file(engine, "b"))
    assert len(engine.catalogue.partition("t", 0).segments) > 5
    for _ in range(2):
        again = opened()
        again.maintain()
        assert values_of(again, "t") == [b"before" * 300]
        put(again, "t", b"after")
        assert values_of(again, "t") == [b"before" * 300]
    files.clear()
    again.transactions.commit("q", [1])
    found = values_of(again, "t")
    assert found[0] == b"before" * 300
    assert found[1:21] == [b"%02d" % number * 1000 for number in range(20)]
    assert found[21:] == [b"after", b"after"]
    assert values_of(again, "b") == [b"last"]


def test_two_that_share_a_partition(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    full(files, first_file(engine, "b"))
    for name in ("one", "two"):
        begin(engine, name)
        stage(engine, 1, name.encode(), to="a/0", of=name)
        stage(engine, 1, name.encode(), to="b/0", of=name)
        with pytest.raises(
            CommitUnfinished, match="No space left" if name == "one" else "it waits"
        ):
            engine.transactions.commit(name, [1])
    again = opened()
    assert again.transactions.unfinished == 2
    assert everything(again) == NOTHING
    files.clear()
    with pytest.raises(CommitWaits):
        again.transactions.commit("two", [1])
    again.transactions.commit("one", [1])
    again.transactions.commit("two", [1])
    assert everything(again) == {"a/0": [b"one", b"two"], "a/1": [], "b/0": [b"one", b"two"]}


def test_metadata_that_cannot_be_written(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is in the log, and the last row is missing."""
    expected = fill(engine)
    decide(engine, files, ".log")
    files.clear()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr(kept, "finish_row", fail)
        again = opened()
        assert everything(again) == NOTHING
    again.transactions.expire()
    assert everything(again) == expected


def test_topics_that_go_meanwhile(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    expected = fill(engine)
    decide(engine, files, first_file(engine, "b"))
    again = opened()
    delete(again, "b")
    files.clear()
    again.transactions.expire()
    del expected["b/0"]
    assert everything(again) == expected


def test_what_cannot_be_hidden_is_no_start(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    """And leaves no thread, no file and no lock behind."""
    fill(engine)
    decide(engine, files, first_file(engine, "b"))
    before = set(threading.enumerate())
    # The first read of a file by the recovery of the partition; the next by the look for its place.
    files.fail("open", errno.EIO, nth=2, suffix=first_file(engine, "a"))
    with pytest.raises(OSError, match="Input/output"):
        opened()
    assert set(threading.enumerate()) == before
    files.clear()
    assert opened().transactions.state("q") == "committed"


@pytest.mark.parametrize("call", ["list", "make_directory", "exists"])
def test_a_failed_start_leaves_nothing_open(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, call: str
) -> None:
    put(engine, "a", b"v")
    engine.close()
    before = set(threading.enumerate())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    files.fail(call, errno.EIO, nth=2)  # type: ignore[arg-type]  # the kinds of calls
    with pytest.raises(OSError):
        opened()
    files.clear()
    assert set(threading.enumerate()) == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert everything(opened()) == {**NOTHING, "a/0": [b"v"]}


# --- what was staged is damaged --------------------------------------------------------------------


def test_damage_before_anything_was_appended_rolls_back(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was told that it is committed, and nobody has seen a part: it may be written again."""
    fill(engine)
    decide(engine, files, ".log")
    path = harm(engine, 2)
    caplog.clear()
    files.clear()
    again = opened()
    (line,) = (one.message for one in caplog.records if one.levelno == logging.ERROR)
    assert line.startswith(f"transaction 1 is rolled back: staged records are damaged: {path} at")
    assert again.transactions.unfinished == 0
    assert staged_files(again) == []
    with pytest.raises(TransactionNotOpen, match="unknown"):
        again.transactions.commit("q", ALL)
    expected = fill(again)
    again.transactions.commit("q", ALL)
    assert everything(again) == expected


def test_damage_while_it_runs_rolls_back_too(engine: EmbeddedEngine, files: FaultyFiles) -> None:
    fill(engine)
    with files.pause("read", nth=7, suffix=".stage") as paused:
        failed: list[BaseException] = []

        def commit() -> None:
            try:
                engine.transactions.commit("q", ALL)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        paused.wait_until_reached()  # the first read after the decision
        assert engine.transactions.state("q") == "committing"
        harm(engine, 1, HEADER_SIZE + 1)
        paused.release()
        thread.join(WAIT_S)
    assert isinstance(failed[0], StagingDamaged)
    with pytest.raises(StagingDamaged) as caught:
        engine.transactions.commit("q", ALL)
    assert caught.value.rolled_back
    assert engine.transactions.state("q") == "unknown"
    assert everything(engine) == NOTHING
    assert begin(engine) == "open"


def test_what_is_in_the_log_needs_no_staged_file(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles
) -> None:
    expected = fill(engine)
    decide(engine, files, first_file(engine, "b"))
    files.clear()
    harm(engine, 1, HEADER_SIZE + 1)  # the first batch of the first task
    assert everything(opened()) == expected


def stuck(engine: EmbeddedEngine, opened: Opener, files: FaultyFiles) -> tuple[Path, bytes]:
    """A part is in the log and the rest is damaged. Gives the damaged file, and how it was."""
    fill(engine)
    decide(engine, files, first_file(engine, "b"))
    files.clear()
    (path,) = (Path(path) for path in staged_files(engine) if path.endswith("/1.stage"))
    whole = path.read_bytes()
    assert harm(engine, 1) == path
    return path, whole


def test_damage_in_the_middle_holds_the_partitions(
    engine: EmbeddedEngine, opened: Opener, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    path, whole = stuck(engine, opened, files)
    caplog.clear()
    again = opened()
    (line,) = (one.message for one in caplog.records if one.levelno == logging.ERROR)
    marker = path.with_name("give-up")
    assert f"damaged: {path} at byte" in line and f"from a backup, or create {marker}" in line
    for _ in range(2):
        with pytest.raises(StagingDamaged):
            again.transactions.commit("q", ALL)
        with pytest.raises(StagingDamaged):
            begin(again)
        again.transactions.expire()
    with pytest.raises(TransactionNotOpen, match="committing"):
        again.transactions.abort("q")
    put(again, "a", b"of another")
    assert everything(again) == NOTHING
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1
    path.write_bytes(whole)
    again.transactions.expire()
    assert again.transactions.state("q") == "committed"
    assert everything(again) == {
        "a/0": [b"1.1", b"1.1+", b"of another", b"2.1", b"2.1+", b"10.0", b"10.0+"],
        "a/1": [b"1.0", b"1.0+"],
        "b/0": [b"1.2", b"1.2+", b"2.0", b"2.0+"],
    }


@pytest.mark.parametrize("crash", [False, True])
def test_a_human_being_may_give_up_what_is_damaged(
    engine: EmbeddedEngine,
    opened: Opener,
    files: FaultyFiles,
    caplog: pytest.LogCaptureFixture,
    crash: bool,
) -> None:
    path, _ = stuck(engine, opened, files)
    path.with_name("give-up").touch()
    if crash:  # between two batches of what is left
        full(files, first_file(engine, "b"))
    again = opened()
    if crash:
        assert everything(again) == NOTHING
        files.clear()
        again = opened()
    assert "1 batches are left out for give-up" in caplog.text
    assert everything(again) == {
        "a/0": [b"1.1", b"1.1+", b"2.1", b"2.1+", b"10.0", b"10.0+"],
        "a/1": [b"1.0", b"1.0+"],
        "b/0": [b"2.0", b"2.0+"],
    }
    assert again.transactions.state("q") == "committed"
    assert staged_files(again) == []


# --- topics of the same name -----------------------------------------------------------------------


def renew(engine: EmbeddedEngine, topic: str) -> None:
    delete(engine, topic)
    make(engine, topic)


def test_a_topic_made_anew_gets_nothing_of_the_old_one(engine: EmbeddedEngine) -> None:
    fill(engine)
    renew(engine, "b")
    with pytest.raises(TopicReplaced, match="'b' was deleted and made anew since records were"):
        engine.transactions.commit("q", ALL)
    assert engine.transactions.state("q") == "open"
    stage(engine, 3, b"for the new one", to="b/0")
    engine.transactions.commit("q", [3, 10])
    assert everything(engine) == {
        "a/0": [b"10.0", b"10.0+"],
        "a/1": [],
        "b/0": [b"for the new one"],
    }


def test_a_topic_made_anew_after_the_decision(
    engine: EmbeddedEngine, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    expected = fill(engine)
    full(files, first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", ALL)
    files.clear()
    renew(engine, "b")
    engine.transactions.commit("q", ALL)
    assert everything(engine) == {**expected, "b/0": []}
    assert "transaction 1: b/0 is gone by now" in caplog.text


def test_what_an_older_version_staged_goes_by_the_name(
    engine: EmbeddedEngine, opened: Opener
) -> None:
    expected = fill(engine)
    engine.close()
    with closing(sqlite3.connect(f"{engine.directory}/metadata.db")) as database:
        database.execute("UPDATE staged SET created_us = 0")
        database.commit()
    again = opened()
    again.transactions.commit("q", ALL)
    assert everything(again) == expected
