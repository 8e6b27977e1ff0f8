"""What QoS1 subscribers owe survives a restart: a real log, opened again."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench, numbered

from penstock.broker.options import BrokerOptions
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import PRESENT, Edit, Require

Open = Callable[..., Bench]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Open]:
    """Opens the same directory again and again; the one before is closed first."""
    current: list[Bench] = []

    def again(options: BrokerOptions | None = None) -> Bench:
        while current:
            current.pop().close()
        current.append(Bench(str(tmp_path / "data"), options))
        return current[0]

    yield again
    while current:
        current.pop().close()


def test_the_first_qos1_subscriber_gets_it_once(reopen: Open) -> None:
    bench = reopen()
    one = bench.subscribe("t")
    bench.publish("t", *numbered(range(6)))
    assert len(bench.take(one, 4)) == 4
    one.acknowledge(2, 4)
    bench.broker.backlog.changed_if_settled(one)
    bench = reopen()
    nobody = bench.subscribe("t", qos=0)
    first, second = bench.subscribe("t"), bench.subscribe("t")
    bench.settle()
    # Tags begin anew, in the order of the log.
    assert bench.take(first) == {1: b"0", 2: b"3", 3: b"4", 4: b"5"}
    assert bench.take(second) == bench.take(nobody) == {}


def test_what_comes_after_the_restart_comes_behind_the_backlog(reopen: Open) -> None:
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"owed")
    bench = reopen()
    bench.publish("t", b"nobody hears this")
    one = bench.subscribe("t")
    bench.publish("t", b"new")
    assert bench.take(one) == {1: b"owed", 2: b"new"}


@pytest.mark.parametrize("times", [2, 3])
def test_it_is_owed_until_it_is_acknowledged(reopen: Open, times: int) -> None:
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"owed")
    for _ in range(times):
        bench = reopen()
        one = bench.subscribe("t")
        bench.settle()
        assert bench.take(one) == {1: b"owed"}
    assert one.acknowledge(1, 2) == []
    bench.broker.backlog.changed_if_settled(one)
    bench = reopen()
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {}


def test_replay_none(reopen: Open) -> None:
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"owed")
    bench = reopen(BrokerOptions(replay_backlog=False))
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {}
    # And it stays so: the debt is gone, not only put off.
    bench = reopen()
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {}


def test_several_subscriptions_owe_together(reopen: Open) -> None:
    """What any of them has not acknowledged is delivered, each message once."""
    bench = reopen()
    bench.engine.create_topic("t", 2)
    many = [bench.subscribe("t") for _ in range(20)]
    for number in range(8):
        bench.publish("t", b"%d" % number, partition=number % 2)
    for position, one in enumerate(many):
        bench.take(one)
        if position == 0:
            one.acknowledge(1, 7)  # all but the last two
        else:
            one.acknowledge(3, 9)  # all but the first two
        bench.broker.backlog.changed_if_settled(one)
    bench = reopen()
    one = bench.subscribe("t")
    bench.settle()
    assert sorted(bench.take(one).values()) == numbered([0, 1, 6, 7])


def test_qos0_messages_are_not_owed(reopen: Open) -> None:
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"a")
    bench.publish("t", b"gone", at_most_once=True)
    bench.publish("t", b"b")
    bench = reopen()
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {1: b"a", 2: b"b"}
    one.acknowledge(1, 3)
    assert one.settled[0].open_ranges(3) == []


def test_an_expired_orphan_owes_nothing(reopen: Open) -> None:
    bench = reopen()
    bench.subscribe("t", user="gone")
    bench.publish("t", b"owed")
    bench.broker.subscriptions.leave("gone")
    bench.advance(60_000)
    bench.settle()
    assert len(bench.broker.subscriptions) == 0
    bench = reopen()
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {}


def test_a_deleted_topic_owes_nothing(reopen: Open) -> None:
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"a", b"b")
    bench = reopen()
    bench.broker.delete_topic(ANYBODY, "t")
    bench.publish("t", b"new")
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {}


def test_a_claim_is_safe_while_the_start_is_not_known(reopen: Open, tmp_path: Path) -> None:
    """The old rows go in the commit that writes the new one, which names what was claimed."""
    bench = reopen()
    bench.subscribe("t")
    bench.publish("t", b"owed")
    bench = reopen()
    bench.publish_soon("t", b"on its way")
    bench.subscribe("t")
    done: list[object] = []
    bench.engine.metadata.submit(lambda db: None).on_done(done.append)
    bench.wait_for(lambda: done)  # the metadata is written, the batch is not
    assert [one.value for one in bench.engine.metadata.list("settled")] == [b'{"0":[0]}']


def test_a_write_that_fails_is_done_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench.subscribe("t")
    bench.publish("t", b"a", b"b")
    bench.take(one)
    bench.settle()
    change = MetadataStore.change

    def fail(store: MetadataStore, edits: Sequence[Edit]) -> object:
        return change(store, [*edits, Require("topics", "not there", PRESENT)])

    with monkeypatch.context() as patch:
        patch.setattr(MetadataStore, "change", fail)
        one.acknowledge(1, 2)
        bench.broker.backlog.changed_if_settled(one)
    bench.settle()
    bench.advance(100)
    bench.settle()
    assert [one.value for one in bench.engine.metadata.list("settled")] == [b'{"0":[1]}']


def test_the_last_acknowledgements_are_written_at_a_stop(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "data"))
    one = bench.subscribe("t")
    bench.publish("t", *numbered(range(50)))
    bench.take(one)
    for tag in range(1, 50):
        one.acknowledge(tag, tag + 1)
        bench.broker.backlog.changed_if_settled(one)
    bench.close()
    bench = Bench(str(tmp_path / "data"))
    one = bench.subscribe("t")
    bench.settle()
    assert bench.take(one) == {1: b"49"}
    bench.close()
