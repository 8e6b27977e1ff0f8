"""Delayed messages on a real log: order, due times, cancels, restarts, hours that go."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from kit.encryption import SECRET, files_with, keys
from kit.partitions import Clock

from penstock.broker.access.access import Principal
from penstock.broker.delayed import targets
from penstock.broker.delayed.firing import FIRED_AT_ONCE
from penstock.broker.delayed.hour import HOUR_MS, MARKS, PREFIX
from penstock.broker.delayed.marks import Mark
from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.log.batch.format import Batch, encode_values
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import MAX_RECORD_BYTES, TopicSettings

START_US = 1_700_000_000_000_000
DAY_MS = 24 * HOUR_MS


def open_bench(directory: str, now_us: int = START_US, **options: int) -> Bench:
    clock = Clock()
    clock.now_us = now_us
    chosen = BrokerOptions(**options)  # type: ignore[arg-type]  # numbers
    bench = Bench(directory, chosen, clock=clock, commit_threads=1)
    bench.broker._run = lambda work: threading.Thread(target=work).start()
    return bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = open_bench(str(tmp_path / "data"))
    yield opened
    opened.close()


def until(bench: Bench, condition: Callable[[], object]) -> None:
    """Runs timers that are due and completions, and waits for the next of these."""
    while not condition():
        if not bench.run_posted():
            bench.run_one()


def produce(bench: Bench, *delays_ms: int, topic: str = "t") -> list[int]:
    """Messages named after their delays; their ids."""
    accepted = [
        bench.broker.delayed.produce(ANYBODY, topic, b"%d" % delay_ms, delay_ms)
        for delay_ms in delays_ms
    ]
    until(bench, lambda: all(one.done for one in accepted))
    return [one.result() for one in accepted]


def cancel(bench: Bench, number: int, principal: Principal = ANYBODY) -> None:
    done = bench.broker.delayed.cancel(principal, number)
    until(bench, lambda: done.done)
    done.result()


def code_of(call: Callable[[], object]) -> Code:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code


def values(bench: Bench, topic: str = "t") -> list[bytes]:
    return bench.values(topic) if bench.engine.topic(topic) is not None else []


def passes(bench: Bench, milliseconds: int, delivered: int) -> None:
    """Until so many were delivered since the start."""
    bench.advance(milliseconds)
    until(bench, lambda: bench.broker.delayed.delivered >= delivered)


def later(bench: Bench, milliseconds: int, delivered: int) -> None:
    """The same where a delivery has to be tried again."""
    bench.advance(milliseconds)
    while bench.broker.delayed.delivered < delivered:
        bench.advance(1_000)
        bench.run_posted()
        bench.run_one()


def hours(bench: Bench) -> list[str]:
    return [name for name in bench.engine.topic_names(None, 100) if name.startswith(PREFIX)]


def test_they_come_when_they_are_due_in_that_order(bench: Bench) -> None:
    produce(bench, 300, 100, 200, 5_000)
    bench.advance(99)
    bench.run_posted()
    assert values(bench) == [] and bench.broker.delayed.pending == 4
    passes(bench, 1, 1)
    assert values(bench) == [b"100"]
    passes(bench, 200, 3)
    assert values(bench) == [b"100", b"200", b"300"]
    passes(bench, 4_700, 4)
    assert values(bench)[3:] == [b"5000"] and bench.broker.delayed.pending == 0


def test_a_delay_below_nothing_is_none(bench: Bench) -> None:
    produce(bench, -5, 0)
    passes(bench, 1, 2)
    assert values(bench) == [b"-5", b"0"]


class Appending:
    """The engine, with another way to append."""

    def __init__(self, bench: Bench, append: Callable[[str, int, Batch], AppendToken]) -> None:
        self._engine = bench.engine
        self.append = append

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


def test_a_run_goes_to_its_hours(bench: Bench) -> None:
    """Its ids stand in the order of the messages, and cancel the right ones."""
    delays_ms = [HOUR_MS, 100, 50, 3 * HOUR_MS, 100, HOUR_MS]
    names = [b"%d" % number for number in range(len(delays_ms))]
    accepted = bench.broker.delayed.produce_run(ANYBODY, "t", names, delays_ms)
    until(bench, lambda: accepted.done)
    parts = accepted.in_order()
    assert [part.first_row for part in parts] == [0, 1, 3, 4, 5]
    assert sum(part.count for part in parts) == len(names)
    assert all(part.error is None for part in parts)
    cancel(bench, parts[1].first_id)  # 1
    cancel(bench, parts[4].first_id)  # 5
    passes(bench, 100, 2)
    assert values(bench) == [b"2", b"4"]
    passes(bench, HOUR_MS, 3)
    passes(bench, 2 * HOUR_MS, 4)
    assert values(bench)[2:] == [b"0", b"3"]


def test_a_run_is_taken_whole_or_not_at_all(bench: Bench) -> None:
    def run(delays_ms: list[int], found: list[bytes], who: Principal = ANYBODY) -> Code:
        return code_of(lambda: bench.broker.delayed.produce_run(who, "t", found, delays_ms))

    assert run([1, 25 * HOUR_MS], [b"a", b"b"]) is Code.INVALID_REQUEST
    assert run([1, 1], [b"a", bytes(TopicSettings().record_bytes + 1)]) is Code.RECORD_TOO_LARGE
    assert run([1], [b"a"], Principal("r", "reader")) is Code.NOT_AUTHORIZED
    assert bench.broker.delayed.pending == 0 and not hours(bench)


def test_an_append_that_fails_is_told_to_its_runs(bench: Bench) -> None:
    appended: list[object] = []

    def failing(topic: str, partition: int, batch: Batch) -> AppendToken:
        appended.append(topic)
        raise OSError(5, "broken")

    bench.broker.engine = Appending(bench, failing)  # type: ignore[assignment]  # a stand-in
    one = bench.broker.delayed.produce(ANYBODY, "t", b"a", 100)
    two = bench.broker.delayed.produce_run(ANYBODY, "t", [b"b", b"c"], [100, 2 * HOUR_MS])
    until(bench, lambda: one.done and two.done)
    bench.broker.engine = bench.engine
    assert isinstance(one.error, OSError) and len(appended) == 2
    assert [type(part.error) for part in two.in_order()] == [OSError, OSError]
    produce(bench, 200)
    passes(bench, 200, 1)
    assert values(bench) == [b"200"]


def test_nothing_passes_one_that_is_being_cancelled(bench: Bench) -> None:
    """Until its cancel is stored, or is not: then it is delivered in its turn."""
    first, _ = produce(bench, 100, 200)
    tokens: list[AppendToken] = []

    def held(topic: str, partition: int, batch: Batch) -> AppendToken:
        tokens.append(AppendToken(1))
        return tokens[-1]

    bench.broker.engine = Appending(bench, held)  # type: ignore[assignment]  # a stand-in
    done = bench.broker.delayed.cancel(ANYBODY, first)
    until(bench, lambda: tokens)
    bench.broker.engine = bench.engine
    bench.advance(300)
    bench.run_posted()
    assert values(bench) == [] and bench.broker.delayed.delivered == 0
    tokens[0].error = OSError(28, "full")
    tokens[0].complete()
    assert isinstance(done.error, OSError)
    until(bench, lambda: bench.broker.delayed.delivered == 2)
    assert values(bench) == [b"100", b"200"]


def test_an_earlier_one_goes_before_those_that_wait(bench: Bench) -> None:
    produce(bench, 60_000)
    produce(bench, 50)
    passes(bench, 50, 1)
    assert values(bench) == [b"50"]


def test_a_large_number_at_one_time(bench: Bench) -> None:
    count = 2 * FIRED_AT_ONCE + 7
    produce(bench, *[1_000] * count)
    passes(bench, 1_000, count)
    assert len(values(bench)) == count and bench.broker.delayed.pending == 0


def test_large_messages_go_in_several_runs(bench: Bench) -> None:
    sizes = [900_000 + number for number in range(12)]
    accepted = [bench.broker.delayed.produce(ANYBODY, "t", bytes(size), 1_000) for size in sizes]
    until(bench, lambda: all(one.done for one in accepted))
    passes(bench, 1_000, len(sizes))
    assert [len(value) for value in values(bench)] == sizes
    assert bench.broker.delayed.pending == 0


def test_hours_come_and_go(bench: Bench) -> None:
    produce(bench, 10, HOUR_MS, 2 * HOUR_MS, topic="a")
    produce(bench, 2 * HOUR_MS + 1, topic="b")
    assert len(hours(bench)) == 3
    passes(bench, 10, 1)
    passes(bench, HOUR_MS, 2)
    passes(bench, HOUR_MS + 10, 4)
    assert values(bench, "a") == [b"10", b"%d" % HOUR_MS, b"%d" % (2 * HOUR_MS)]
    bench.advance(HOUR_MS)
    until(bench, lambda: not hours(bench))


def test_cancelled_ones_do_not_come(bench: Bench) -> None:
    first, second, third = produce(bench, 100, 200, 300)
    cancel(bench, second)
    assert bench.broker.delayed.pending == 2
    assert code_of(lambda: cancel(bench, second)) is Code.UNKNOWN_DELAYED_MESSAGE
    passes(bench, 300, 2)
    assert values(bench) == [b"100", b"300"]
    for number in (first, second, third, 0, 1 << 63, third + 1):
        assert code_of(lambda number=number: cancel(bench, number)) is Code.UNKNOWN_DELAYED_MESSAGE  # type: ignore[misc]  # a default of a lambda
    assert bench.broker.delayed.cancelled == 1


def test_who_may_not_publish_may_not_cancel(bench: Bench) -> None:
    (number,) = produce(bench, 100)
    reader, other = Principal("r", "reader"), Principal("o", "user", ("x.*",))
    assert code_of(lambda: cancel(bench, number, reader)) is Code.NOT_AUTHORIZED
    assert code_of(lambda: cancel(bench, number, other)) is Code.UNKNOWN_DELAYED_MESSAGE
    passes(bench, 100, 1)


def test_limits(tmp_path: Path) -> None:
    bench = open_bench(str(tmp_path / "data"), max_delayed_messages=2)
    with pytest.raises(BrokerError, match="delay 25h0m0s exceeds maximum allowed delay 24h0m0s"):
        produce(bench, DAY_MS + HOUR_MS)
    produce(bench, 100, 200)
    assert code_of(lambda: produce(bench, 1)) is Code.LIMIT_REACHED
    passes(bench, 100, 1)
    produce(bench, 1)
    bench.close()


@pytest.mark.parametrize("away_ms", [0, 150, 10_000, 3 * DAY_MS])
def test_across_a_restart(tmp_path: Path, away_ms: int) -> None:
    """What was delivered is not delivered again, what is late comes at once, in order."""
    directory = str(tmp_path / "data")
    bench = open_bench(directory)
    ids = produce(bench, 100, 300, 200, HOUR_MS, 400)
    cancel(bench, ids[4])
    passes(bench, 100, 1)
    bench.close()
    again = open_bench(directory, bench.clock.now_us + away_ms * 1_000)
    until(again, lambda: again.broker.delayed.pending + again.broker.delayed.delivered == 3)
    until(again, lambda: all(hour.loaded for hour in again.broker.delayed.by_number.values()))
    produce(again, 50)
    assert code_of(lambda: cancel(again, ids[4])) in (Code.UNKNOWN_DELAYED_MESSAGE,)
    passes(again, HOUR_MS, 4)
    found = values(again)
    assert [one for one in found if one != b"50"] == [b"100", b"200", b"300", b"%d" % HOUR_MS]
    assert found.count(b"50") == 1
    again.close()


def test_an_hour_that_several_processes_have_written(tmp_path: Path) -> None:
    """Copied from Kafka: a mark tells of which messages it knew, and one that was late comes first."""
    directory = str(tmp_path / "data")
    bench = open_bench(directory)
    due_ms = [START_US // 1_000 + delay_ms for delay_ms in (100, 200, 300)]
    produce(bench, 100, 200, 300)
    mark = Mark(7, (due_ms[1], 1), 1, 0, 1)
    (hour,) = hours(bench)
    stored = bench.engine.append(hour, MARKS, encode_values([mark.encode()], START_US))
    until(bench, lambda: stored.done)
    bench.close()
    again = open_bench(directory, START_US)
    until(again, lambda: again.broker.delayed.pending == 2)
    passes(again, 1_000, 2)
    assert values(again) == [b"200", b"300"]
    again.close()


def test_a_delivery_that_fails_is_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    produce(bench, 100, 200)
    transactions = bench.engine.transactions
    failures = [OSError(5, "broken")]

    class Failing:
        def commit_at_once(self, name: str, targets: object) -> bool:
            if failures:
                raise failures.pop()
            return transactions.commit_at_once(name, targets)  # type: ignore[arg-type]  # handed on

    bench.engine.transactions = Failing()  # type: ignore[assignment]  # a stand-in
    bench.advance(200)
    until(bench, lambda: "wait" in caplog.text)
    bench.advance(1_000)
    until(bench, lambda: bench.broker.delayed.delivered == 2)
    bench.engine.transactions = transactions
    assert values(bench) == [b"100", b"200"]
    assert caplog.text.count("delayed messages that are due wait") == 1


def test_a_topic_that_is_gone_comes_back_whatever_the_limits(tmp_path: Path) -> None:
    """Its messages were accepted: those of other topics do not wait for room."""
    bench = open_bench(str(tmp_path / "data"), max_topics=3)
    produce(bench, 100, topic="gone")
    produce(bench, 200, topic="t")
    bench.broker.delete_topic(ANYBODY, "gone")
    until(bench, lambda: bench.engine.topic("gone") is None)
    bench.engine.create_topic("another", 1)
    passes(bench, 200, 2)
    assert values(bench, "gone") == [b"100"] and values(bench) == [b"200"]
    bench.close()


def test_a_partition_that_has_stopped_holds_nobody_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages become dead letters; what is due for others is delivered."""
    bench.engine.create_topic("bad", 2)
    for number in range(2):
        token = bench.publish("bad", b"a", partition=number)
        until(bench, lambda token=token: token.done)  # type: ignore[misc]  # a default of a lambda
    produce(bench, 100, topic="bad")
    produce(bench, 200, topic="t")
    partitions = bench.engine.catalogue.get("bad").partitions
    for number in range(2):
        partitions.open(number).stopped = "flush failed: Input/output error"
    passes(bench, 200, 2)
    assert values(bench) == [b"200"] and values(bench, "bad.dlq") == [b"100"]
    (view,) = bench.read("bad.dlq").views
    assert dict(view.headers(0))[b"penstock-reason"].startswith(b"the partition has stopped")


def test_a_stopped_partition_is_passed_for_another_one(bench: Bench) -> None:
    bench.engine.create_topic("half", 2)
    first = bench.publish("half", b"a", partition=0)
    until(bench, lambda: first.done)
    bench.engine.catalogue.get("half").partitions.open(0).stopped = "flush failed: broken"
    for number in range(3):
        produce(bench, 100, topic="half")
        passes(bench, 100, number + 1)
    assert values(bench, "half") == [b"a"] and bench.values("half", 1) == [b"100"] * 3


@pytest.mark.parametrize("dead", [False, True], ids=["delivered", "dead letter"])
def test_what_was_encrypted_stays_so_when_its_topic_is_gone(
    bench: Bench, tmp_path: Path, dead: bool
) -> None:
    """The topic comes back for the message, and nothing of it is on the disk in the clear."""
    bench.engine.use_keys(keys(1))
    bench.engine.create_topic("t", 1, TopicSettings(encryption=True))
    accepted = bench.broker.delayed.produce(ANYBODY, "t", SECRET, 100)
    until(bench, lambda: accepted.done)
    bench.broker.delete_topic(ANYBODY, "t")
    until(bench, lambda: bench.engine.topic("t") is None)
    if dead:
        bench.broker.options = replace(
            bench.broker.options, default_settings=TopicSettings(record_bytes=4)
        )
    later(bench, 100, 1)
    assert values(bench, "t.dlq" if dead else "t") == [SECRET]
    assert files_with(str(tmp_path)) == []


@pytest.mark.parametrize("most", [MAX_RECORD_BYTES, 3_000_500], ids=["headers", "no room"])
def test_dead_letters_take_what_their_topic_once_took(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """It was accepted: that its topic takes less now, and the dead letters too, does not lose it."""
    monkeypatch.setattr(targets, "MAX_RECORD_BYTES", most)
    size = 3_000_000
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=MAX_RECORD_BYTES))
    accepted = bench.broker.delayed.produce(ANYBODY, "t", bytes(size), 100)
    until(bench, lambda: accepted.done)
    changed = bench.broker.change_topic(ANYBODY, "t", {"record_bytes": 1_000})
    until(bench, lambda: changed.done)
    later(bench, 100, 1)
    (view,) = bench.read("t.dlq").views
    assert len(view.value(0)) == size and bool(view.headers(0)) == (most == MAX_RECORD_BYTES)


def test_a_message_that_came_before_a_mark_of_a_later_hour_was_found(tmp_path: Path) -> None:
    """The clock went back by an hour, and the message is in before the hours of the log are read."""
    directory = str(tmp_path / "data")
    bench = open_bench(directory)
    produce(bench, 100)
    passes(bench, 100, 1)
    bench.close()
    again = open_bench(directory, START_US - HOUR_MS * 1_000)
    accepted = again.broker.delayed.produce(ANYBODY, "t", b"early", 60_000)
    until(again, lambda: accepted.done)
    assert accepted.result()
    for _ in range(5):
        again.advance(1_000)
        again.run_posted()
    passes(again, 2 * HOUR_MS, 1)
    assert values(again) == [b"100", b"early"]
    again.close()
