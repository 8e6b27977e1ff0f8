"""What is deleted leaves no cycle of objects: the collector freezes what is old (server/memory.py), and a
cycle among frozen objects would never be found."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.delayed.accepting import Accepted

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


HOUR_MS = 3_600_000


def test_delayed_messages_wait_for_no_collector(tmp_path: Path, collected: list[object]) -> None:
    """Ten million of them are ten million runs: whatever waits for the collector is never freed."""
    bench = Bench(str(tmp_path / "data"), commit_threads=1)
    bench.broker._run = lambda work: threading.Thread(target=work).start()
    accept_cancel_deliver(bench)
    gc.collect()
    left = {type(one).__name__ for one in collected if type(one).__module__.startswith("penstock.")}
    assert left == set()
    bench.close()


def accept_cancel_deliver(bench: Bench) -> None:
    delayed = bench.broker.delayed
    done: list[object] = []

    def until(condition: Callable[[], object]) -> None:
        while not condition():
            if not bench.run_posted():
                bench.run_one()

    runs: list[Accepted] = []
    for number in range(4):
        delays_ms = [number, 100, HOUR_MS, 100]
        delayed.produce_run(ANYBODY, "t", [b"v"] * 4, delays_ms).on_done(runs.append)
    until(lambda: len(runs) == 4)
    delayed.produce(ANYBODY, "t", b"v", 50).on_done(done.append)
    until(lambda: done)
    delayed.cancel(ANYBODY, runs[0].in_order()[-1].first_id).on_done(done.append)
    until(lambda: len(done) == 2)
    bench.advance(100)
    until(lambda: delayed.delivered == 12)
