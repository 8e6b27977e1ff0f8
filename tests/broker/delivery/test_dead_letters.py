"""Dead letters: what was delivered as often as allowed goes to `<topic>.dlq`, once it is durable."""

import errno
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered
from kit.faulty_files import FaultyFiles
from kit.records import Row, build

from penstock.broker.delivery.subscription import Subscription
from penstock.broker.options import BrokerOptions
from penstock.log.batch.format import MAX_BATCH_BYTES
from penstock.log.settings import DEFAULT_RECORD_BYTES, TopicSettings
from penstock.log.storage.files import RealFiles


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
    bench.publish_batch("t", build([Row(b"fine"), row]))
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
        b"penstock-protocol": b"",
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
    bench.broker.ensure_topic("t.dlq", ANYBODY)
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


def test_a_stop_says_nothing_of_dead_letters(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    one = bench.subscribe("t")
    bench.publish("t", b"x")
    bench.broker.stopping = True
    give_up(bench, one)
    assert bench.take(one) == {}, "no delivery beyond the last one"
    assert one.settled[0].open_ranges(1) == [(0, 1)]
    assert not caplog.records


@pytest.mark.parametrize("length", [245, 246, 249])
def test_a_topic_name_that_leaves_no_room_for_the_suffix(
    bench: Bench, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    topic = "t" * length
    one = bench.subscribe(topic)
    bench.publish(topic, b"a", b"b")
    give_up(bench, one)
    counters = bench.broker.subscriptions.counters
    assert one.settled[0].open_ranges(2) == []
    assert bench.take(one) == {}
    assert bench.values(topic) == [b"a", b"b"], "they stay where they are"
    if length == 245:
        assert bench.values(topic + ".dlq") == [b"a", b"b"]
        assert (counters.dead_lettered, counters.dead_letters_refused) == (2, 0)
    else:
        assert (counters.dead_lettered, counters.dead_letters_refused) == (0, 2)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(
            f"topic {topic}: 2 messages given up that cannot become dead letters"
        )
        assert line.endswith(f"it has {length + 4} bytes in UTF-8, at most 249 are allowed")


@pytest.mark.parametrize("record_bytes", [DEFAULT_RECORD_BYTES, 20 * 1024 * 1024])
def test_the_largest_message_of_a_topic_becomes_a_dead_letter(
    bench: Bench, record_bytes: int
) -> None:
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=record_bytes))
    one = bench.subscribe("t")
    bench.publish("t", b"small", bytes(record_bytes))
    give_up(bench, one)
    assert bench.values("t.dlq") == [b"small", bytes(record_bytes)]
    assert one.settled[0].open_ranges(2) == []


def test_what_a_dead_letter_topic_cannot_hold_does_not_hold_back_the_rest(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Made by somebody else, with a limit of its own."""
    bench.engine.create_topic("t.dlq", 1, TopicSettings(record_bytes=1_000))
    one = bench.subscribe("t")
    values = [bytes(2_000) if number in (0, 3, 8) else b"%d" % number for number in range(9)]
    for _ in range(2):
        bench.publish("t", *values)
        give_up(bench, one)
    kept = [value for value in values if len(value) < 1_000]
    assert bench.values("t.dlq") == kept * 2
    counters = bench.broker.subscriptions.counters
    assert (counters.dead_lettered, counters.dead_letters_refused) == (12, 6)
    assert one.settled[0].open_ranges(18) == []
    assert bench.take(one) == {}
    assert len(caplog.records) == 1, "one line for each topic and minute"
    bench.advance(60_000)
    bench.publish("t", bytes(2_000))
    give_up(bench, one)
    assert "topic t: 6 messages given up" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_message_that_no_batch_can_hold_with_its_headers(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"), BrokerOptions(capacity_bytes=2 * MAX_BATCH_BYTES))
    bench.engine.create_topic("t", 1, TopicSettings(record_bytes=MAX_BATCH_BYTES))
    one = bench.subscribe("t")
    bench.publish("t", b"small")
    bench.publish("t", bytes(MAX_BATCH_BYTES - 64))
    # No cache keeps as much: it is read from the disk, by a thread.
    bench.wait_for(lambda: one.queued_messages == 2)
    give_up(bench, one)
    bench.wait_for(lambda: bench.broker.subscriptions.counters.dead_letters_refused)
    bench.settle()
    assert bench.values("t.dlq") == [b"small"]
    assert bench.broker.subscriptions.counters.dead_letters_refused == 1
    assert one.settled[0].open_ranges(2) == []
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
