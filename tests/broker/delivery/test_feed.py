"""Feeds: what becomes visible reaches every subscription once, from where it began."""

import errno
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered
from kit.faulty_files import FaultyFiles
from kit.partitions import DOOMSDAY_US
from kit.records import Row, build

from penstock.broker.delivery import feed as feed_module
from penstock.broker.delivery.feed import RETRY_READ_S
from penstock.broker.options import BrokerOptions
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles


def test_sees_what_comes_after_and_nothing_before(bench: Bench) -> None:
    bench.publish("t", b"before")
    one = bench.subscribe("t")
    bench.publish("t", b"first", b"second")
    assert bench.take(one) == {1: b"first", 2: b"second"}


def test_begins_behind_what_is_published_and_not_yet_written(bench: Bench) -> None:
    bench.publish("t", b"old")
    bench.publish_soon("t", b"on its way")
    one = bench.subscribe("t")
    bench.publish_soon("t", b"behind")
    bench.settle()
    assert bench.take(one) == {1: b"behind"}


def test_begins_where_it_was_when_the_write_before_it_fails(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    bench.publish("t", b"old")
    files.fail("write", errno.ENOSPC, suffix=".log")
    refused = bench.publish_soon("t", b"refused")
    one = bench.subscribe("t")
    bench.settle()
    assert refused.error is not None
    bench.publish("t", b"new")
    assert bench.take(one) == {1: b"new"}
    bench.close()


def test_one_read_serves_all_and_each_has_its_own_tags(bench: Bench) -> None:
    first = bench.subscribe("t")
    bench.publish("t", b"a")
    others = [bench.subscribe("t", qos) for qos in (0, 1)]
    bench.publish("t", b"b", b"c")
    assert bench.take(first) == {1: b"a", 2: b"b", 3: b"c"}
    for other in others:
        assert bench.take(other) == {1: b"b", 2: b"c"}


def test_tags_rise_over_all_partitions_of_a_topic(bench: Bench) -> None:
    bench.engine.create_topic("t", 3)
    one = bench.subscribe("t")
    for number in range(9):
        bench.publish("t", b"%d" % number, partition=number % 3)
    found = bench.take(one)
    assert list(found) == list(range(1, 10))
    assert sorted(found.values()) == numbered(range(9))


def test_a_partition_that_is_added_is_followed_from_its_beginning(bench: Bench) -> None:
    bench.engine.create_topic("t", 1)
    one = bench.subscribe("t")
    bench.engine.change_topic("t", {}, 2)
    bench.settle()
    bench.publish("t", b"there", partition=1)
    bench.advance(100)
    bench.settle()
    assert bench.take(one) == {1: b"there"}


@pytest.mark.parametrize("cache_bytes", [0, 1 << 26])
def test_many_small_reads_neither_nest_nor_lose_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    """Each read brings one record: nested callbacks would end in a recursion error."""
    monkeypatch.setattr(feed_module, "FEED_READ_BYTES", 1)
    bench = Bench(str(tmp_path / "data"), cache_bytes=cache_bytes)
    one = bench.subscribe("t")
    values = numbered(range(1_500))
    bench.publish("t", *values)
    bench.wait_for(lambda: bench.run_posted() == 0 and one.queued_messages == len(values))
    assert list(bench.take(one, 2_000).values()) == values
    bench.close()


def test_a_late_follower_catches_up_while_more_comes(tmp_path: Path) -> None:
    """Its start is known only when others have read past it."""
    bench = Bench(str(tmp_path / "data"))
    first = bench.subscribe("t")
    bench.settle()
    for number in range(20):
        bench.publish_soon("t", b"%d" % number)
    late = bench.subscribe("t")
    for number in range(20, 40):
        bench.publish_soon("t", b"%d" % number)
    bench.settle()
    assert list(bench.take(first).values()) == numbered(range(40))
    assert list(bench.take(late).values()) == numbered(range(20, 40))
    bench.close()


def test_records_that_compaction_took_from_a_queued_run(tmp_path: Path) -> None:
    """The tags of the others stay what they were, and nothing of the run is owed at the end."""
    bench = Bench(str(tmp_path / "data"), cache_bytes=0)
    bench.engine.create_topic("t", 1, TopicSettings(cleanup="compact"))
    one = bench.subscribe("t")
    bench.settle()
    rows = [Row(b"%d" % number, key=key) for number, key in enumerate([b"a", b"b", b"b", b"c"])]
    bench.publish_batch("t", build(rows))
    bench.settle()
    bench.wait_for(lambda: one.queued_messages == 4)
    partition = bench.engine.catalogue.partition("t", 0)
    partition.roll(DOOMSDAY_US)
    bench.publish_batch("t", build([Row(b"4", key=b"d")]))
    bench.settle()
    bench.wait_for(lambda: one.queued_messages == 5)
    bench.engine.maintain()
    assert bench.values("t") == [b"0", b"2", b"3", b"4"]
    assert bench.take(one) == {1: b"0", 3: b"2", 4: b"3", 5: b"4"}
    assert one.acknowledge(3, 6) == []
    assert one.settled[0].open_ranges(5) == [(0, 2)]
    bench.close()


def test_expired_records_are_settled_and_not_delivered(bench: Bench) -> None:
    bench.engine.create_topic("t")
    one = bench.subscribe("t")
    past, future = bench.clock.now_us - 1, bench.clock.now_us + 10**9
    rows = [Row(b"old", expiry_us=past), Row(b"new", expiry_us=future), Row(b"o", expiry_us=past)]
    bench.publish_batch("t", build(rows))
    bench.settle()
    assert bench.take(one) == {1: b"new"}
    one.acknowledge(1, 2)
    assert one.settled[0].open_ranges(3) == []


def test_a_disk_that_cannot_be_read_is_asked_again(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files, cache_bytes=0)
    one = bench.subscribe("t")
    bench.settle()
    files.fail("read", errno.EIO, suffix=".log")
    bench.publish_soon("t", b"hi")
    bench.settle()
    bench.wait_for(lambda: files.calls["read"] > 0)
    bench.settle()
    assert bench.take(one) == {}
    bench.advance(RETRY_READ_S * 1_000)
    bench.wait_for(lambda: one.queued_messages)
    assert bench.take(one) == {1: b"hi"}
    bench.close()


def test_what_retention_took_is_passed_over(tmp_path: Path) -> None:
    """Records that go before they were handed on are settled; the rest of a run is delivered."""
    bench = Bench(str(tmp_path / "data"))
    one = bench.subscribe("t")
    bench.publish("t", *numbered(range(5)))
    bench.engine.catalogue.partition("t", 0).trim(3)
    assert bench.take(one) == {4: b"3", 5: b"4"}
    bench.close()


def test_a_removed_subscription_gets_nothing_and_the_last_ends_the_feed(bench: Bench) -> None:
    one, two = bench.subscribe("t", user="a"), bench.subscribe("t", user="b")
    bench.settle()
    bench.broker.subscriptions.remove(one)
    bench.publish("t", b"x")
    assert (one.queued_messages, two.queued_messages) == (0, 1)
    bench.broker.subscriptions.remove(two)
    bench.publish("t", b"y")
    assert two.queued_messages == 1
    assert len(bench.broker.subscriptions) == 0


def test_a_topic_that_is_deleted_and_made_again_is_followed_again(bench: Bench) -> None:
    """Even within the same microsecond; old places must not show new records."""
    one = bench.subscribe("t")
    bench.publish("t", b"a", b"b", b"c")
    assert bench.take(one, 1) == {1: b"a"}
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    assert bench.take(one) == {}
    bench.publish("t", b"new")
    bench.advance(100)
    bench.settle()
    assert bench.take(one) == {4: b"new"}
    assert one.acknowledge(1, 4) == [(1, 4)]
    assert one.acknowledge(4, 5) == []


def test_a_topic_deleted_before_the_start_is_known(bench: Bench) -> None:
    bench.publish("t", b"a")
    bench.publish_soon("t", b"on its way")
    one = bench.subscribe("t")
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    bench.publish("t", b"new")
    bench.advance(100)
    bench.settle()
    assert bench.take(one) == {1: b"new"}


def test_capacity_counts_what_is_dropped(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), BrokerOptions(capacity_messages=1_024))
    one = bench.subscribe("t", qos=0)
    bench.publish("t", *numbered(range(1, 1_026)), at_most_once=True)
    assert bench.take(one, 1) == {2: b"2"}
    assert bench.broker.subscriptions.counters.dropped_capacity == 1
    bench.close()
