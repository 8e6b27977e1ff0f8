"""What is deleted leaves no cycle of objects: the collector freezes what is old (server/memory.py), and a
cycle among frozen objects would never be found."""

import gc
from collections.abc import Callable

import pytest
from broker.bench import ANYBODY, Bench

ORPHAN_MS = 11 * 60 * 1000


def topics(bench: Bench) -> None:
    for number in range(3):
        bench.publish(f"t{number}", b"a", b"b")
        bench.values(f"t{number}")
        bench.broker.delete_topic(ANYBODY, f"t{number}")
        bench.settle()


def changed_topics(bench: Bench) -> None:
    bench.engine.create_topic("t", 2)
    bench.broker.change_topic(ANYBODY, "t", {"retention_ms": 5_000}, 3)
    bench.settle()
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()


def groups(bench: Bench) -> None:
    bench.publish("t", b"a")
    for number in range(3):
        bench.broker.commit_offset(ANYBODY, f"g{number}", "t", 0, 1)
        bench.settle()
        bench.broker.delete_group(ANYBODY, f"g{number}")
        bench.settle()


def subscriptions(bench: Bench) -> None:
    for qos in (0, 1):
        user = object()
        subscription = bench.subscribe("t", qos, user)
        bench.publish("t", b"a", b"b", b"c")
        bench.take(subscription, 2)
        bench.broker.leave(user)
        bench.advance(ORPHAN_MS)
        bench.settle()
    assert not len(bench.broker.subscriptions)


def subscriptions_of_deleted_topics(bench: Bench) -> None:
    for qos in (0, 1):
        user = object()
        bench.subscribe("t", qos, user)
        bench.publish("t", b"a", b"b")
        bench.broker.delete_topic(ANYBODY, "t")
        bench.settle()
        bench.broker.leave(user)
        bench.advance(ORPHAN_MS)
        bench.settle()
    assert not len(bench.broker.subscriptions)


@pytest.mark.parametrize(
    "come_and_go",
    [topics, changed_topics, groups, subscriptions, subscriptions_of_deleted_topics],
)
def test_nothing_waits_for_the_collector(
    bench: Bench, collected: list[object], come_and_go: Callable[[Bench], None]
) -> None:
    come_and_go(bench)
    gc.collect()
    left = {type(one) for one in collected if type(one).__module__.startswith("penstock.")}
    assert left == set()
