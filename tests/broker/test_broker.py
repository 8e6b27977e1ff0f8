"""The broker's calls: access, topics on demand, limits, lifetime of subscriptions."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered
from kit.limits import HANG_S
from kit.partitions import Clock

from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.group_offsets import MAX_LOOSE_OFFSETS
from penstock.broker.options import BrokerOptions
from penstock.broker.records import Records
from penstock.log.feeds import FED_AT_ONCE
from penstock.log.settings import TopicSettings

READER = Principal("reader", "reader", ("allowed*",), None)


def code_of(caught: pytest.ExceptionInfo[BrokerError]) -> Code:
    return caught.value.code


def test_publish_and_subscribe_make_the_topic(bench: Bench) -> None:
    bench.publish("by publish", b"x")
    bench.subscribe("by subscribe")
    assert [info.name for info in bench.engine.topics()] == ["by publish", "by subscribe"]


def test_who_may_not_gets_no_topic_either(bench: Bench) -> None:
    with pytest.raises(BrokerError) as caught:
        bench.broker.publish(READER, "allowed", None, Records([b"x"]))
    assert code_of(caught) is Code.NOT_AUTHORIZED
    with pytest.raises(BrokerError) as caught:
        bench.broker.subscribe(READER, "other", 1, "user")
    assert code_of(caught) is Code.NOT_AUTHORIZED
    with pytest.raises(BrokerError) as caught:
        bench.broker.subscribe(READER, "allowed too", 1, "user")
    assert code_of(caught) is Code.UNKNOWN_TOPIC
    assert bench.engine.topics() == []
    bench.engine.create_topic("allowed too")
    assert bench.broker.subscribe(READER, "allowed too", 1, "user").id == 1


def test_records_without_a_partition_go_to_each_in_turn_and_in_runs(bench: Bench) -> None:
    bench.engine.create_topic("t", 3)
    padding = bytes(1_000)
    for number in range(600):
        bench.publish_soon("t", b"%06d" % number + padding)
    bench.settle()
    found = [[int(value[:6]) for value in bench.values("t", p)] for p in range(3)]
    assert sorted(number for one in found for number in one) == list(range(600))
    for one in found:
        assert one == sorted(one), "the order within a partition is that of the publishes"
        assert len(one) > 120, "no partition is left out"
        neighbours = sum(later == earlier + 1 for earlier, later in itertools.pairwise(one))
        assert neighbours > 0.9 * len(one), "in runs, not message by message"


def test_a_record_over_the_limit_of_the_topic(bench: Bench) -> None:
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=10))
    for partition in (None, 0):
        with pytest.raises(RecordTooLarge) as caught:
            bench.broker.publish(ANYBODY, "t", partition, Records([b"x", b"y" * 11]))
        assert caught.value.limit == 10
        assert from_exception(caught.value).code is Code.RECORD_TOO_LARGE
    bench.settle()
    assert bench.values("t") == []


def test_while_stopping_nothing_durable_begins(bench: Bench) -> None:
    bench.publish("t", b"x")
    bench.broker.stopping = True
    for topic in ("t", "new"):
        with pytest.raises(BrokerError) as caught:
            bench.broker.publish(ANYBODY, topic, None, Records([b"y"]))
        assert code_of(caught) is Code.SHUTTING_DOWN
    assert bench.engine.topic("new") is None


def test_reads_that_need_the_disk_keep_the_order(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), cache_bytes=0)
    bench.engine.create_topic("t", 2)
    one = bench.subscribe("t")
    bench.settle()
    for number in range(10):
        bench.publish("t", *[b"%d" % number] * 3, partition=number % 2)
        bench.wait_for(lambda last=number: one.queued_messages == 3 * last + 3)  # type: ignore[misc]  # mypy/12557
    assert list(bench.take(one).values()) == [v for v in numbered(range(10)) for _ in range(3)]
    bench.close()


def test_an_orphan_lives_on_for_a_while(bench: Bench) -> None:
    one = bench.subscribe("t", user="a")
    subscriptions = bench.broker.subscriptions
    bench.settle()
    assert subscriptions.use(one.id, ANYBODY, "b") is one
    subscriptions.leave("a")
    bench.advance(70_000)
    assert len(subscriptions) == 1, "somebody else uses it"
    subscriptions.leave("b")
    bench.publish("t", b"kept")
    bench.advance(59_800)
    assert subscriptions.use(one.id, ANYBODY, "c") is one
    assert bench.take(one) == {1: b"kept"}
    subscriptions.leave("c")
    bench.advance(60_200)
    assert subscriptions.use(one.id, ANYBODY, "d") is None
    assert subscriptions.counters.orphans_expired == 1
    bench.settle()
    assert bench.engine.metadata.list("settled") == []


def test_ids_start_at_1_and_are_not_used_again(bench: Bench) -> None:
    first = bench.subscribe("t")
    bench.broker.subscriptions.remove(first)
    assert (first.id, bench.subscribe("t").id) == (1, 2)


@pytest.mark.parametrize("owned", [False, True])
def test_who_may_use_a_subscription(tmp_path: Path, owned: bool) -> None:
    bench = Bench(str(tmp_path / "data"), BrokerOptions(owned_subscriptions=owned))
    one = bench.subscribe("t")
    found = bench.broker.subscriptions.use(one.id, READER, "other")
    assert (found is None) == owned
    assert bench.broker.subscriptions.use(one.id, ANYBODY, "same") is one
    bench.close()


@dataclass(slots=True)
class FailingClock(Clock):
    failing: bool = False

    def __call__(self) -> int:
        if self.failing:
            raise RuntimeError("a defect")
        return self.now_us


def test_time_goes_on_after_a_defect(tmp_path: Path) -> None:
    """An error in one tick must not end retries and expiry for good."""
    clock = FailingClock()
    bench = Bench(str(tmp_path / "data"), clock=clock)
    one = bench.subscribe("t")
    bench.publish("t", b"x")
    bench.take(one)
    clock.failing = True
    with pytest.raises(RuntimeError):
        bench.advance(100)
    clock.failing = False
    bench.advance(100)
    assert one.inflight_messages == 0
    bench.close()


def test_offsets_of_partitions_that_do_not_exist_stay_bounded(bench: Bench) -> None:
    for number in range(MAX_LOOSE_OFFSETS + 1):
        assert bench.broker.commit_offset(ANYBODY, "g", "nowhere", number, 7) is None
    kept = bench.broker.committed_offset
    assert kept("g", "nowhere", 0, anywhere=True) is None
    assert kept("g", "nowhere", MAX_LOOSE_OFFSETS, anywhere=True) == 7
    assert kept("g", "nowhere", MAX_LOOSE_OFFSETS) is None


def test_a_change_right_behind_the_creation_counts(bench: Bench) -> None:
    """The creation is durable, and its callbacks have not run yet."""
    bench.engine.create_topic("t", 1)
    creation = bench.engine.topic_durable("t")
    assert creation is not None
    creation.result(HANG_S)
    change = bench.broker.change_topic(ANYBODY, "t", {}, 2)
    bench.settle()
    assert change.done and change.error is None
    info = bench.engine.topic("t")
    assert info is not None and info.partitions == 2


def test_a_topic_of_many_groups_is_deleted_in_many_turns(bench: Bench) -> None:
    """And takes all their offsets with it; those of other topics stay."""
    for topic in ("busy", "other"):
        bench.engine.create_topic(topic)
    count = 4 * FED_AT_ONCE
    for number in range(count):
        bench.broker.commit_offset(ANYBODY, f"g{number:04}", "busy", 0, 1)
    bench.broker.commit_offset(ANYBODY, "g0000", "other", 0, 7)
    bench.settle()
    assert bench.engine.sizes().groups == count
    deleted: list[int] = []
    bench.broker.delete_topic(ANYBODY, "busy").on_done(
        lambda _: deleted.append(bench.engine.sizes().groups)
    )
    left: list[int] = []
    while not deleted:
        left.append(bench.engine.sizes().groups)
        bench.run_one()
    assert len(set(left)) >= 4, "all in one turn"
    assert deleted == [1] and bench.engine.group_names(None, 10) == ["g0000"]
    assert dict(bench.engine.group("g0000")) == {("other", 0): 7}
    bench.engine.create_topic("busy")
    bench.settle()
    assert bench.engine.committed_offset("g0000", "busy", 0) is None
