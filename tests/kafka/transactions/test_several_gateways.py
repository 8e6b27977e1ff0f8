"""Two gateways on the same names: any call to any of them, and races that end exactly once."""

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Message, TopicPartition
from kit.engines import batch
from kit.kafka_steps import ALL, at_once, stage, stage_and_commit
from kit.kafka_transactions import Gateways
from kit.limits import HANG_S
from kit.transactions import HOUR_US

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.cluster import Cluster
from penstock.kafka.transactions.journal import Mark
from penstock.kafka.transactions.once import NotApplied, Once
from penstock.kafka.transactions.own_topics import STAGED_PARTITIONS, STAGED_TOPIC
from penstock.kafka.transactions.transactions import KafkaTransactions
from penstock.log.batch.builder import BatchBuilder
from penstock.log.engine import TopicInfo
from penstock.log.errors import (
    CommitUnfinished,
    StagingDamaged,
    StagingGap,
    TopicReplaced,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.settings import TopicSettings


def at_the_same_time(*works: Callable[[], object]) -> None:
    start = threading.Barrier(len(works), timeout=HANG_S)
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert errors == []


def test_every_call_to_another_gateway(gateways: Gateways) -> None:
    """Each of them sees at once what the one before has answered."""
    first, second = gateways.open(), gateways.open()
    q = gateways.name("q")
    target = (gateways.name("a"), 0, batch(b"v"))
    assert first.begin(q, HOUR_US) == "open"
    assert second.stage_groups(q, 1, [[target]], 0) == 0
    assert first.stage_groups(q, 1, [[target], [target]], 0) == 1
    assert second.stage_groups(q, 1, [[target]], 2) == 0
    with pytest.raises(StagingGap, match="expected 3"):
        first.stage_groups(q, 1, [[target]], 4)
    second.commit(q, {1: 3}, 7)
    first.commit(q, {1: 3}, 7)
    assert first.begin(q, HOUR_US) == second.begin(q, HOUR_US) == "committed"
    assert first.rows_of(q) == second.rows_of(q) == 7
    assert gateways.everything() == {"a/0": [b"v"] * 3, "a/1": [], "b/0": []}
    r = gateways.name("r")
    first.begin(r, HOUR_US)
    second.abort(r)
    with pytest.raises(TransactionNotOpen, match="is unknown"):
        first.stage_groups(r, 1, [[target]], 0)


@pytest.mark.parametrize("kind", ["staged", "once"])
def test_the_same_one_at_the_same_time(gateways: Gateways, kind: str) -> None:
    both = [gateways.open(), gateways.open()]

    def run(one: KafkaTransactions) -> Callable[[], None]:
        def work() -> None:
            if kind == "once":
                at_once(gateways, one)
            else:
                one.commit(gateways.name("q"), {1: 2, 2: 2})

        return work

    if kind == "staged":
        stage(gateways, both[0])
        q = gateways.name("q")
        groups = [
            [(gateways.name(topic), 0, batch(value))]
            for topic, value in (("a", b"2.0"), ("b", b"2.1"))
        ]
        both[0].stage_groups(q, 2, groups, 0)
    at_the_same_time(*[run(one) for one in both * 2])
    assert gateways.everything() == ALL


def test_many_names_at_two_gateways(gateways: Gateways) -> None:
    """Each name is tried by both, in the same order: they meet again and again."""
    both = [gateways.open(), gateways.open()]
    names = [gateways.name(f"n{number}") for number in range(12)]

    def work(one: KafkaTransactions) -> Callable[[], None]:
        def run() -> None:
            for number, name in enumerate(names):
                value = b"%d" % number
                one.commit_at_once(
                    name, [(gateways.name(topic), 0, batch(value)) for topic in "ab"]
                )

        return run

    at_the_same_time(*[work(one) for one in both])
    found = gateways.everything()
    expected = sorted(b"%d" % number for number in range(12))
    for place in ("a/0", "b/0"):
        assert sorted(value or b"" for value in found[place]) == expected


def test_decided_and_not_finished(gateways: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that decided cannot apply it now: it says so, and any repeat finishes it."""
    first, second = gateways.open(), gateways.open()
    stage(gateways, first)

    def fail(*_: object) -> bool:
        raise NotApplied("Kafka is away", False)

    with monkeypatch.context() as patch:
        patch.setattr(Once, "apply", fail)
        with pytest.raises(CommitUnfinished, match="Kafka is away"):
            stage_and_commit(gateways, first)
    assert first.state(gateways.name("q")) == "committing"
    assert first.unfinished == 1
    with pytest.raises(TransactionNotOpen, match="is committing"):
        second.abort(gateways.name("q"))
    assert second.begin(gateways.name("q"), HOUR_US) == "committed"
    assert gateways.everything() == ALL


def test_a_topic_that_is_another_one_by_now(gateways: Gateways) -> None:
    one = gateways.open()
    stage(gateways, one)
    q, a = gateways.name("q"), gateways.name("a")
    known = gateways.topics[a]
    del gateways.topics[a]
    with pytest.raises(UnknownTopic):
        one.commit(q, {1: 2})
    gateways.topics[a] = TopicInfo(99, a, 2, TopicSettings(), 0)
    with pytest.raises(TopicReplaced):
        one.commit(q, {1: 2})
    gateways.topics[a] = TopicInfo(known.id, a, 1, TopicSettings(), 0)
    with pytest.raises(UnknownPartition):
        one.commit(q, {1: 2})
    gateways.topics[a] = known
    one.commit(q, {1: 2})
    assert gateways.everything() == {"a/0": [b"1.0"], "a/1": [b"1.1"], "b/0": []}


def test_staged_records_that_are_gone_roll_it_back(gateways: Gateways) -> None:
    one = gateways.open()
    stage(gateways, one)
    q = gateways.name("q")
    cluster = Cluster(Clients(KafkaOptions(gateways.brokers)))
    places = [(STAGED_TOPIC, number) for number in range(STAGED_PARTITIONS)]
    cluster.purge(cluster.latest(places))
    with pytest.raises(StagingDamaged, match=r"_penstock.staged/\d, message \d+") as caught:
        one.commit(q, {1: 2})
    assert caught.value.rolled_back
    assert one.state(q) == "unknown"
    assert gateways.everything() == {"a/0": [], "a/1": [], "b/0": []}
    stage(gateways, one)
    stage_and_commit(gateways, one)
    assert gateways.everything() == ALL


def test_a_mark_that_is_not_read_yet(gateways: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gateway has read the claim of the first, not that it is done: it asks before it acts."""
    first, second = gateways.open(), gateways.open()
    journal = second._journal
    unread: list[tuple[str, Mark]] = []
    note, barrier = journal._note, journal.barrier

    def read_and_ask(ends_s: float) -> None:
        monkeypatch.setattr(journal, "_note", note)
        for name, mark in unread:
            journal.note(name, mark)
        barrier(ends_s)

    monkeypatch.setattr(journal, "_note", lambda name, mark: unread.append((name, mark)))
    monkeypatch.setattr(journal, "barrier", read_and_ask)
    at_once(gateways, first)
    at_once(gateways, second)
    assert gateways.everything() == ALL


def test_what_a_dead_gateway_left_open_is_ended(gateways: Gateways) -> None:
    """Nobody repeats its transaction; readers see what others wrote behind it nevertheless."""
    first, second = gateways.open(), gateways.open()
    a = gateways.name("a")
    with first._quick.lend(time.monotonic() + HANG_S) as lent:
        claim, _ = first._journal.claim(gateways.name("q"), lent.id, time.monotonic() + HANG_S)
        lent.producer.begin_transaction()
        lent.producer.produce(a, b"never seen", partition=0)
        lent.producer.flush(HANG_S)
        second.commit_at_once(gateways.name("r"), [(a, 0, batch(b"behind it"))])
        assert gateways.everything()["a/0"] == []
        while gateways.everything()["a/0"] != [b"behind it"]:
            second.expire()
        assert [one.id for one in second._journal.claims(gateways.name("q"))] == [claim.id]


def test_all_that_a_record_can_have(gateways: Gateways) -> None:
    """Keys, nulls, headers and times are as they were; large ones are read in several windows."""
    one = gateways.open()
    builder = BatchBuilder()
    builder.add(b"v", 5_000, b"k", [(b"h", b"1"), (b"h", b"2")], 77_000_000)
    builder.add(None, 6_000, b"gone")
    plain = BatchBuilder()
    plain.add(None, 7_000, b"gone")
    plain.add(b"", 8_000)
    a, b, q = gateways.name("a"), gateways.name("b"), gateways.name("q")
    large = [(b, 0, batch(bytes([number]) * 700_000 * 9)) for number in range(8)]
    one.begin(q, HOUR_US)
    one.stage_groups(q, 2, [large[4:]], 0)
    one.stage_groups(q, 1, [[(a, 0, builder.build())], [(a, 0, plain.build())], large[:4]], 0)
    make_room(gateways, b)
    one.commit(q, {1: 3, 2: 1})
    assert gateways.everything()["b/0"] == [bytes([n]) * 700_000 * 9 for n in range(8)]
    found = [
        (one.key(), one.value(), one.timestamp()[1], one.headers())
        for one in messages_of(gateways.brokers, a, 4)
    ]
    assert found == [
        (b"k", b"v", 5, [("h", b"1"), ("h", b"2"), ("penstock-expires-us", b"77000000")]),
        (b"gone", None, 6, None),
        (b"gone", None, 7, None),
        (None, b"", 8, None),
    ]


def make_room(gateways: Gateways, topic: str) -> None:
    Cluster(Clients(KafkaOptions(gateways.brokers))).configure(
        topic, {"max.message.bytes": str(16 * 1024 * 1024)}
    )


def messages_of(brokers: str, topic: str, count: int) -> list[Message]:
    consumer = Clients(KafkaOptions(brokers)).consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(HANG_S)
        assert message is not None and message.error() is None
        found.append(message)
    consumer.close()
    return found
