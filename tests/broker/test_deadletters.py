"""Dead letters: what was delivered as often as allowed goes to `<topic>.dlq`, once it is durable."""

import errno
from pathlib import Path

from broker.bench import ANYBODY, Bench, numbered
from kit.faulty_files import FaultyFiles
from kit.records import Row, build

from penstock.broker.options import BrokerOptions
from penstock.broker.subscription import Subscription
from penstock.log.files import RealFiles


def give_up(bench: Bench, one: Subscription, most: int = 1_000) -> None:
    """Delivered three times, acknowledged never."""
    for wait_ms in (100, 200, 400):
        bench.take(one, most)
        bench.advance(wait_ms)
    bench.advance(100)
    bench.settle()


def test_three_deliveries_then_the_dead_letter_topic(bench: Bench) -> None:
    one = bench.subscribe("t")
    row = Row(b"poison", key=b"k", headers=((b"trace", b"1"),))
    bench.broker.append_batch("t", build([Row(b"fine"), row]))
    bench.settle()
    assert one.settled[0].floor == 0
    bench.take(one)
    one.acknowledge(1, 2)
    bench.advance(100)
    give_up(bench, one)
    (record,) = bench.read("t.dlq").views[0].records()
    assert (record.value, record.key) == (b"poison", b"k")
    assert dict(record.headers) == {
        b"trace": b"1",
        b"penstock-reason": b"max deliveries reached",
        b"penstock-topic": b"t",
        b"penstock-partition": b"0",
        b"penstock-deliveries": b"3",
        b"penstock-offset": b"1",
    }
    assert one.settled[0].open_ranges(2) == []
    assert bench.take(one) == {}
    assert one.acknowledge(2, 3) == [(2, 3)]
    assert bench.broker.subscriptions.counters.dead_lettered == 1


def test_each_subscription_gives_up_on_its_own(bench: Bench) -> None:
    first, second = bench.subscribe("t"), bench.subscribe("t")
    bench.publish("t", b"x")
    bench.take(second)
    second.acknowledge(1, 2)
    give_up(bench, first)
    assert bench.values("t.dlq") == [b"x"]


def test_a_dead_letter_is_not_copied_onto_itself(bench: Bench) -> None:
    one = bench.subscribe("t.dlq")
    bench.publish("t.dlq", b"x")
    give_up(bench, one)
    assert bench.values("t.dlq") == [b"x"]
    assert bench.engine.topic("t.dlq.dlq") is None
    assert one.settled[0].open_ranges(1) == []


def test_while_the_disk_is_full_the_message_is_offered_again(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    bench = Bench(str(tmp_path / "data"), files=files)
    one = bench.subscribe("t")
    bench.publish("t", b"a", b"b")
    bench.broker.ensure_topic("t.dlq")
    bench.settle()
    files.fail("create", errno.ENOSPC, times=None, suffix=".log")
    give_up(bench, one)
    assert one.settled[0].open_ranges(2) == [(0, 2)]
    assert bench.take(one) == {1: b"a", 2: b"b"}
    files.clear()
    assert one.acknowledge(1, 2) == []
    bench.advance(900)
    bench.settle()
    assert bench.values("t.dlq") == [b"b"]
    assert one.settled[0].open_ranges(2) == []
    bench.close()


def test_large_runs_go_out_in_several_batches_and_are_counted_once(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"))
    one = bench.subscribe("t")
    values = [bytes([number]) * 400_000 for number in range(7)]
    bench.publish("t", *values)
    give_up(bench, one)
    assert bench.values("t.dlq") == values
    assert len(bench.read("t.dlq").views) > 1
    assert bench.broker.subscriptions.counters.dead_lettered == 7
    bench.close()


def test_a_stopping_server_keeps_what_it_cannot_bury(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"))
    one = bench.subscribe("t")
    bench.publish("t", b"x")
    bench.broker.stopping = True
    give_up(bench, one)
    bench.close()
    bench = Bench(str(tmp_path / "data"))
    assert bench.engine.topic("t.dlq") is None
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {1: b"x"}
    bench.close()


def test_a_deleted_topic_has_no_dead_letters(bench: Bench) -> None:
    one = bench.subscribe("t")
    bench.publish("t", *numbered(range(3)))
    bench.take(one)
    bench.broker.delete_topic(ANYBODY, "t")
    bench.advance(1_000)
    bench.settle()
    assert bench.engine.topic("t.dlq") is None
    assert bench.broker.subscriptions.counters.dead_lettered == 0


def test_a_single_delivery_when_none_may_be_repeated(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), BrokerOptions(max_deliveries=0))
    one = bench.subscribe("t")
    bench.publish("t", b"x")
    assert bench.take(one) == {1: b"x"}
    bench.advance(200)
    bench.settle()
    assert bench.take(one) == {}
    assert bench.values("t.dlq") == [b"x"]
    bench.close()
