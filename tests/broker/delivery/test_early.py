"""Messages at most once reach subscriptions at most once when they are written; nobody else sees them
before they are durable."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker.bench import Bench
from kit.faulty_files import FaultyFiles

from penstock.broker.delivery.subscription import Subscription
from penstock.log.storage.files import RealFiles


def call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


class Slow:
    """A bench whose flushes fail from some moment on: what is seen then is not durable."""

    def __init__(self, directory: Path) -> None:
        self.files = FaultyFiles(RealFiles())
        self.bench = Bench(str(directory / "data"), files=self.files)
        self.bench.publish("t", b"first")
        # Before the flush, as on an event loop that runs while a thread flushes.
        self.bench.engine.catalogue.partition("t", 0).wake_early = call_all

    def break_flushes(self) -> None:
        self.files.fail("sync", errno.EIO, suffix=".log")

    def taken(self, subscription: Subscription) -> list[bytes]:
        return list(self.bench.take(subscription).values())


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    made = Slow(tmp_path)
    yield made
    made.bench.close()


def seen_by_readers(bench: Bench) -> int:
    return bench.engine.offsets("t", 0)[1]


def test_only_those_at_most_once_see_what_is_not_durable(slow: Slow) -> None:
    bench = slow.bench
    once, least = bench.subscribe("t", qos=0), bench.subscribe("t", qos=1)
    slow.break_flushes()
    token = bench.publish("t", b"lost in a crash", at_most_once=True)
    assert token.error is not None
    assert slow.taken(once) == [b"lost in a crash"]
    assert slow.taken(least) == []
    assert seen_by_readers(bench) == 1


def test_what_must_be_acknowledged_waits_for_the_disk(slow: Slow) -> None:
    bench = slow.bench
    once = bench.subscribe("t", qos=0)
    slow.break_flushes()
    bench.publish("t", b"at least once")
    assert slow.taken(once) == []


def test_nothing_overtakes_what_waits_for_the_disk(slow: Slow) -> None:
    bench = slow.bench
    once = bench.subscribe("t", qos=0)
    slow.break_flushes()
    bench.publish_soon("t", b"at least once")
    bench.publish("t", b"at most once", at_most_once=True)
    assert slow.taken(once) == []


def test_nothing_is_delivered_twice_or_out_of_order(bench: Bench) -> None:
    bench.publish("t", b"first")
    once = bench.subscribe("t", qos=0)
    least = bench.subscribe("t", qos=1)
    sent = []
    for number in range(20):
        value = b"%d" % number
        sent.append(value)
        bench.publish("t", value, at_most_once=number % 3 != 0)
    late = bench.subscribe("t", qos=0)
    for number in range(20, 30):
        value = b"%d" % number
        sent.append(value)
        bench.publish("t", value, at_most_once=True)
    assert list(bench.take(once).values()) == sent
    assert list(bench.take(least).values()) == sent
    assert list(bench.take(late).values()) == sent[20:]


def test_a_transaction_that_is_being_shown_holds_them_back(bench: Bench) -> None:
    bench.publish("t", b"first")
    once = bench.subscribe("t", qos=0)
    partition = bench.engine.catalogue.partition("t", 0)
    partition.hold(7)
    bench.publish("t", b"behind it", at_most_once=True)
    assert list(bench.take(once).values()) == []
