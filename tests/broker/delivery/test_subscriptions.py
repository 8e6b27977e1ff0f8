"""What the tick looks at: only subscriptions that something has happened to, or whose time has come."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import Bench

from penstock.broker.delivery import subscriptions as module
from penstock.broker.delivery.subscriptions import LOOKED_AT_ONCE
from penstock.broker.options import BrokerOptions

SECOND_US = 1_000_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    options = BrokerOptions(
        message_ttl_us=60 * SECOND_US, retry_backoff_us=SECOND_US, orphan_time_us=10 * SECOND_US
    )
    bench = Bench(str(tmp_path / "data"), options)
    yield bench
    bench.close()


def test_an_idle_subscription_is_never_looked_at(bench: Bench) -> None:
    subscriptions = bench.broker.subscriptions
    idle = [bench.subscribe("t") for _ in range(50)]
    busy = bench.subscribe("busy")
    subscriptions.tick()
    assert subscriptions.tick() == []
    bench.publish("busy", b"x")
    assert subscriptions.tick() == [busy]
    assert subscriptions.tick() == []
    for one in idle:
        assert bench.take(one) == {}
    assert subscriptions.tick() == []


def test_a_deadline_brings_it_back_when_it_has_passed(bench: Bench) -> None:
    subscriptions = bench.broker.subscriptions
    one = bench.subscribe("t")
    bench.publish("t", b"x")
    assert bench.take(one) == {1: b"x"}
    subscriptions.tick()
    bench.clock.now_us += SECOND_US - 1
    assert subscriptions.tick() == []
    bench.clock.now_us += 1
    assert subscriptions.tick() == [one]
    assert one.queued_messages == 1
    # The next deadline is that of its time to live.
    subscriptions.tick()
    bench.clock.now_us += 59 * SECOND_US
    assert subscriptions.tick() == [one]
    assert (one.queued_messages, subscriptions.counters.expired) == (0, 1)
    subscriptions.tick()
    bench.clock.now_us += 600 * SECOND_US
    assert subscriptions.tick() == []


def test_many_are_looked_at_in_parts(bench: Bench) -> None:
    subscriptions = bench.broker.subscriptions
    for _ in range(LOOKED_AT_ONCE + 5):
        bench.subscribe("t")
    bench.publish("t", b"x")
    assert subscriptions.overdue()
    first = subscriptions.tick(LOOKED_AT_ONCE)
    assert len(first) == LOOKED_AT_ONCE and not subscriptions.overdue()
    assert len(subscriptions.tick(LOOKED_AT_ONCE)) == 5


def test_many_orphans_end_in_parts(bench: Bench) -> None:
    subscriptions = bench.broker.subscriptions
    user = object()
    for _ in range(LOOKED_AT_ONCE + 5):
        bench.subscribe("t", user=user)
    subscriptions.leave(user)
    bench.clock.now_us += 10 * SECOND_US - 1
    subscriptions.tick(LOOKED_AT_ONCE)
    assert len(subscriptions) == LOOKED_AT_ONCE + 5
    bench.clock.now_us += 1
    subscriptions.tick(LOOKED_AT_ONCE)
    assert len(subscriptions) == 5
    subscriptions.tick(LOOKED_AT_ONCE)
    assert len(subscriptions) == 0
    assert subscriptions.counters.orphans_expired == LOOKED_AT_ONCE + 5


def test_a_lost_connection_of_many_subscriptions_takes_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_AT_ONCE", 10)
    subscriptions = bench.broker.subscriptions
    user, other = object(), object()
    all_of_them = [bench.subscribe("t", user=user) for _ in range(25)]
    subscriptions._used_by(all_of_them[0], other)

    def orphans() -> int:
        return sum(one.orphaned_us is not None for one in subscriptions.all())

    subscriptions.leave(user)
    assert 9 <= orphans() <= 10
    # One that goes meanwhile is no hindrance.
    subscriptions.remove(next(one for one in all_of_them[1:] if one.orphaned_us is None))
    bench.run_posted()
    assert orphans() == 23 and all_of_them[0].orphaned_us is None
    bench.clock.now_us += 10 * SECOND_US
    subscriptions.tick()
    assert subscriptions.all() == [all_of_them[0]]


def test_an_orphan_that_is_used_again_begins_anew(bench: Bench) -> None:
    subscriptions = bench.broker.subscriptions
    user = object()
    bench.subscribe("t", user=user)
    subscriptions.leave(user)
    bench.clock.now_us += 5 * SECOND_US
    one = subscriptions.get(1)
    assert one is not None
    subscriptions._used_by(one, user)
    subscriptions.leave(user)
    bench.clock.now_us += 6 * SECOND_US
    subscriptions.tick()
    assert len(subscriptions) == 1
    bench.clock.now_us += 4 * SECOND_US
    subscriptions.tick()
    assert len(subscriptions) == 0
