"""Dead letters looked at, replayed and purged; replays across crashes."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from kit.overriding import Overriding

from penstock.broker.access.access import Principal
from penstock.broker.delivery.dead_letter_queue import LIST_BYTES, REPLAYED, DeadLetter
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.log.engine import Pending
from penstock.log.errors import LogError

REASON = [(b"penstock-reason", b"boom"), (b"penstock-deliveries", b"3"), (b"trace", b"1")]


def bury(bench: Bench, *values: bytes, partition: int = 0, partitions: int = 1) -> None:
    if bench.engine.topic("t.dlq") is None:
        bench.engine.create_topic("t.dlq", partitions)
    headers = [list(REASON) for _ in values]
    records = Records(list(values), [b"k"] * len(values), headers)
    token = bench.broker.publish(ANYBODY, "t.dlq", partition, records)
    bench.wait_for(lambda: token.done)
    assert token.error is None


def finish(bench: Bench, begin: Callable[[], Pending[object]]) -> object:
    pending = begin()
    bench.wait_for(lambda: pending.done)
    return pending.result()


def listed(bench: Bench, most: int = 100, after: str | None = None) -> list[DeadLetter]:
    pending = bench.broker.dead_letter_queue.page(ANYBODY, "t", most, after)
    bench.wait_for(lambda: pending.done)
    return pending.result()


def replay(bench: Bench, letter_id: str, *, force: bool = False) -> None:
    queue = bench.broker.dead_letter_queue
    finish(bench, lambda: queue.replay(ANYBODY, "t", letter_id, force=force))


def refused(bench: Bench, letter_id: str) -> Code:
    with pytest.raises(BrokerError) as caught:
        replay(bench, letter_id)
    return caught.value.code


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return threaded(str(tmp_path / "data"))


def threaded(directory: str) -> Bench:
    """With threads, as in a server: a transaction waits for the log, and its thread for the loop."""
    bench = Bench(directory, commit_threads=1)
    bench.broker._run = lambda work: threading.Thread(target=work).start()
    return bench


def test_entries_are_listed_in_pages(bench: Bench) -> None:
    assert listed(bench) == []
    bury(bench, b"a", b"b", partitions=2)
    bury(bench, b"c", partition=1)
    found = listed(bench)
    assert [(one.id, one.value, one.reason, one.deliveries, one.replays) for one in found] == [
        ("0-0", b"a", "boom", 3, 0),
        ("0-1", b"b", "boom", 3, 0),
        ("1-0", b"c", "boom", 3, 0),
    ]
    assert [one.id for one in listed(bench, 2)] == ["0-0", "0-1"]
    assert [one.id for one in listed(bench, 2, "0-0")] == ["0-1", "1-0"]
    assert listed(bench, 2, "1-0") == [] == listed(bench, 0)


def test_a_list_is_bounded_in_bytes(bench: Bench) -> None:
    for _ in range(3):
        bury(bench, bytes(LIST_BYTES // 2))
    assert len(listed(bench)) == 2
    assert [one.id for one in listed(bench, 9, "0-1")] == ["0-2"]


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ([(b"penstock-topic", b"t")], []),
        (
            [(b"penstock-topic", b"t"), (b"penstock-partition", b"1"), (b"penstock-offset", b"17")],
            [(b"penstock-origin", b"t/1/17")],
        ),
        (
            [(b"penstock-origin", b"t/0/3"), (b"penstock-topic", b"t"),
             (b"penstock-partition", b"1"), (b"penstock-offset", b"17")],
            [(b"penstock-origin", b"t/0/3")],
        ),
    ],
)  # fmt: skip
def test_a_copy_says_where_the_record_was_at_first(
    bench: Bench, headers: list[tuple[bytes, bytes]], origin: list[tuple[bytes, bytes]]
) -> None:
    bury(bench, b"old")
    records = Records([b"a"], [b"k"], [[(b"trace", b"1"), *headers]])
    token = bench.broker.publish(ANYBODY, "t.dlq", 0, records)
    bench.wait_for(lambda: token.done)
    replay(bench, "0-1")
    (record,) = bench.read("t").views[0].records()
    assert record.headers == [(b"trace", b"1"), *origin]


def test_a_replay_publishes_once_and_marks(bench: Bench) -> None:
    bury(bench, b"a", b"b")
    replay(bench, "0-1")
    (record,) = bench.read("t").views[0].records()
    assert (record.value, record.key, record.headers) == (b"b", b"k", [(b"trace", b"1")])
    assert [one.replays for one in listed(bench)] == [0, 1]
    assert refused(bench, "0-1") is Code.REPLAYED_ALREADY
    assert bench.values("t") == [b"b"]
    replay(bench, "0-1", force=True)
    replay(bench, "0-0")
    assert bench.values("t") == [b"b", b"b", b"a"]
    assert [one.replays for one in listed(bench)] == [1, 2]


@pytest.mark.parametrize(
    "letter_id", ["0-1", "1-0", "", "0", "0-", "-1", "a-b", "0-0-0", "9" * 30, f"0-{2**63}"]
)
def test_no_such_entry(bench: Bench, letter_id: str) -> None:
    assert refused(bench, letter_id) is Code.UNKNOWN_DEAD_LETTER
    bury(bench, b"a")
    assert refused(bench, letter_id) is Code.UNKNOWN_DEAD_LETTER
    assert bench.engine.topic("t") is None


def test_a_replay_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    """The copy is durable, and the note is not: the next replay writes the note alone."""
    directory = str(tmp_path / "data")
    bench = threaded(directory)
    bury(bench, b"a")

    def fail(*_: object) -> Pending[int]:
        raise LogError()

    queue = bench.broker.dead_letter_queue
    engine = bench.broker.engine
    metadata = Overriding(engine.metadata, change=fail)
    bench.broker.engine = Overriding(engine, metadata=metadata)  # type: ignore[assignment]  # a stand-in
    with pytest.raises(LogError):
        finish(bench, lambda: queue.replay(ANYBODY, "t", "0-0"))
    bench.broker.engine = engine
    bench.close()
    again = threaded(directory)
    replay(again, "0-0")
    assert again.values("t") == [b"a"]
    assert refused(again, "0-0") is Code.REPLAYED_ALREADY
    again.close()


def test_a_purge_removes_entries_and_keeps_the_topic(bench: Bench) -> None:
    queue = bench.broker.dead_letter_queue
    assert finish(bench, lambda: queue.purge(ANYBODY, "t")) == 0
    bury(bench, b"a")
    replay(bench, "0-0")
    finish(bench, lambda: queue.purge(ANYBODY, "t"))
    bench.settle()
    assert listed(bench) == [] and bench.engine.topic("t.dlq") is not None
    assert refused(bench, "0-0") is Code.UNKNOWN_DEAD_LETTER
    assert bench.engine.metadata.list(REPLAYED) == []
    bury(bench, b"next")
    assert [one.id for one in listed(bench)] == ["0-1"]


def test_notes_go_with_the_topic(bench: Bench) -> None:
    bury(bench, b"a")
    replay(bench, "0-0")
    finish(bench, lambda: bench.broker.delete_topic(ANYBODY, "t.dlq"))
    bench.settle()
    assert bench.engine.metadata.list(REPLAYED) == []


def test_who_may(bench: Bench) -> None:
    queue = bench.broker.dead_letter_queue
    user = Principal("user", "user")
    queue.page(user, "t", 1)
    with pytest.raises(BrokerError) as caught:
        queue.replay(user, "t", "0-0")
    assert caught.value.code is Code.NOT_AUTHORIZED
    with pytest.raises(BrokerError) as caught:
        queue.purge(user, "t")
    assert caught.value.code is Code.NOT_AUTHORIZED
