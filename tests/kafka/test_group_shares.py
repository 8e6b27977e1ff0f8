"""Groups over several gateways: two engines on one Kafka share the partitions of a topic by Kafka's own
protocol, with each other and with Kafka's own clients."""

import threading
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from kit.engine_page import kafka_page
from kit.engines import WAIT_S, put
from kit.outside_servers import KafkaServer

from penstock.kafka.groups import GroupHasMembers
from penstock.kafka.names import to_kafka
from penstock.log.engine import Engine, Pending
from penstock.log.errors import InvalidGroupName, TooManyGroups, UnknownTopic
from penstock.log.settings import TopicSettings

Named = Callable[[str], str]
PARTITIONS = 4


@pytest.fixture
def topic(kafka_engine: Engine, other_engine: Engine, named: Named) -> str:
    """Known to both gateways."""
    return made(named("shared/topic"), kafka_engine, other_engine)


def made(name: str, *engines: Engine) -> str:
    known = threading.Event()
    engines[-1].watch_topics(lambda told: known.set() if told == name else None)
    engines[0].create_topic(name, PARTITIONS, TopicSettings())
    durable = engines[0].topic_durable(name)
    assert durable is not None
    durable.result(WAIT_S)
    if engines[-1].topic(name) is None:
        assert known.wait(WAIT_S)
    return name


class Part:
    """What one engine may hand out for a group. `last`: commits of the moment before some of it goes."""

    def __init__(
        self,
        engine: Engine,
        group: str,
        topic: str,
        last: Callable[[], Sequence[Pending[object]]] = lambda: (),
    ) -> None:
        self._changes = threading.Condition()
        self.seen: list[list[int]] = []
        self._last = last
        self.given_away = 0
        self.share = engine.share(group, topic, self._changed, self._giving_away)
        ready = self.share.ready
        if ready is not None:
            ready.result(WAIT_S)

    def _changed(self) -> None:
        with self._changes:
            self.seen.append(self.held)
            self._changes.notify_all()

    def _giving_away(self) -> Sequence[Pending[object]]:
        self.given_away += 1
        return self._last()

    @property
    def held(self) -> list[int]:
        return list(self.share.held(PARTITIONS))

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changes:
            assert self._changes.wait_for(condition, WAIT_S), self.seen

    def until_held(self, *partitions: int) -> None:
        self.until(lambda: self.held == list(partitions))

    def leave(self, engine: Engine) -> None:
        engine.post(self.share.leave)


Members = Callable[[str], dict[str, set[int]]]


@pytest.fixture
def members(kafka_server: KafkaServer) -> Members:
    """What Kafka's tools show of a group: partitions by the client that has them."""
    admin = AdminClient({"bootstrap.servers": kafka_server.brokers, "log_level": 0})

    def described(group: str) -> dict[str, set[int]]:
        found = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return {
            member.client_id: {place.partition for place in member.assignment.topic_partitions}
            for member in found.members
        }

    return described


def test_two_gateways_have_all_partitions_and_none_together(
    kafka_engine: Engine, other_engine: Engine, topic: str, named: Named, members: Members
) -> None:
    group = named("group")
    one = Part(kafka_engine, group, topic)
    one.until_held(0, 1, 2, 3)
    assert not one.share.had_others
    other = Part(other_engine, group, topic)
    one.until(lambda: len(one.held) == 2)
    assert one.given_away >= 1 and other.share.had_others
    assert sorted(one.held + other.held) == [0, 1, 2, 3]
    # As Kafka's own tools see it: each gateway is a member.
    assert members(group) == {
        kafka_engine.cluster().this: set(one.held),
        other_engine.cluster().this: set(other.held),
    }
    one.leave(kafka_engine)
    other.until_held(0, 1, 2, 3)
    other.leave(other_engine)


def test_a_topic_that_is_left_and_joined_again_at_once(
    kafka_engine: Engine, topic: str, named: Named
) -> None:
    """Nothing is shared out anew then, and whoever joins hears what is held all the same."""
    group, second = named("group"), made(named("second"), kafka_engine)
    stays, goes = Part(kafka_engine, group, second), Part(kafka_engine, group, topic)
    goes.until_held(0, 1, 2, 3)
    again: list[Pending[object]] = []
    done = threading.Event()

    def leave_and_join() -> None:
        goes.share.leave()
        share = kafka_engine.share(group, topic, lambda: None, lambda: ())
        again.append(share.ready or Pending())
        done.set()

    kafka_engine.post(leave_and_join)
    assert done.wait(WAIT_S)
    again[0].result(WAIT_S)
    stays.leave(kafka_engine)


def test_who_begins_later_begins_behind_what_was_committed_here(
    kafka_engine: Engine, topic: str, named: Named
) -> None:
    group = named("group")
    one = Part(kafka_engine, group, topic)
    one.until_held(0, 1, 2, 3)
    kafka_engine.commit_offset(group, topic, 1, 5).result(WAIT_S)
    other = Part(kafka_engine, group, topic)
    assert other.share.committed(1) == 5
    for part in (one, other):
        part.leave(kafka_engine)


def test_who_holds_a_partition_commits_it_and_nobody_else(
    kafka_engine: Engine, other_engine: Engine, topic: str, named: Named
) -> None:
    group = named("group")
    engines = kafka_engine, other_engine
    parts = [Part(engine, group, topic) for engine in engines]
    parts[0].until(lambda: len(parts[0].held) == 2)
    for engine, part, stranger in zip(engines, parts, engines[::-1], strict=True):
        partition = part.held[0]
        refused = stranger.commit_offset(group, topic, partition, 9)
        taken = [engine.commit_offset(group, topic, one, 5 + one) for one in part.held]
        for pending in taken:
            pending.result(WAIT_S)
        with pytest.raises(GroupHasMembers, match=f"does not hold partition {partition} of"):
            refused.result(WAIT_S)
        assert engine.committed_offset(group, topic, partition) == 5 + partition
    for engine, part in zip(engines, parts, strict=True):
        part.leave(engine)
    # Without members any gateway may: the call waits until its own client has left.
    while True:
        try:
            kafka_engine.commit_offset(group, topic, 0, 9).result(WAIT_S)
            return
        except GroupHasMembers:  # the client of the other one is leaving still
            continue


def test_what_is_settled_is_committed_before_a_partition_goes(
    kafka_engine: Engine, other_engine: Engine, topic: str, named: Named
) -> None:
    group = named("group")

    def last() -> list[Pending[object]]:
        return [
            kafka_engine.commit_offset(group, topic, number, 10 + number) for number in range(4)
        ]

    one = Part(kafka_engine, group, topic, last)
    other = Part(other_engine, group, topic)
    assert len(other.held) == 2
    assert [other.share.committed(number) for number in other.held] == [
        10 + number for number in other.held
    ]
    for engine, part in ((kafka_engine, one), (other_engine, other)):
        part.leave(engine)


def test_a_gateway_shares_with_kafkas_own_client(
    kafka_engine: Engine, kafka_server: KafkaServer, topic: str, named: Named
) -> None:
    group, kafka_name = named("group"), to_kafka(topic)
    part = Part(kafka_engine, group, topic)
    for number in range(PARTITIONS):
        put(kafka_engine, topic, b"%d" % number, partition=number)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_server.brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([kafka_name])
    found: set[int] = set()
    while len(found) < 2:
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None
        found.add(message.partition() or 0)
    part.until(lambda: len(part.held) == 2)
    assert found.isdisjoint(part.held)
    kafka_engine.commit_offset(group, topic, part.held[0], 1).result(WAIT_S)
    with pytest.raises(GroupHasMembers):
        kafka_engine.commit_offset(group, topic, found.pop(), 1).result(WAIT_S)
    consumer.close()
    part.until_held(0, 1, 2, 3)
    part.leave(kafka_engine)


def test_one_client_for_all_shares_of_a_group_and_no_more_groups_than_allowed(
    kafka_server: KafkaServer, kafka_engine: Engine, named: Named, members: Members
) -> None:
    with kafka_page(kafka_server.brokers, group_clients=1) as page:
        engine = page.engine
        topics = [made(named(short), engine) for short in ("first", "second")]
        group, more = named("group"), named("more")
        parts = [Part(engine, group, topic) for topic in (*topics, topics[0])]
        for part in parts:
            part.until_held(0, 1, 2, 3)
        assert list(members(group)) == [engine.cluster().this]
        with pytest.raises(TooManyGroups, match=r"1 groups, the most that kafka\.group_clients"):
            Part(engine, more, topics[0])
        with pytest.raises(UnknownTopic):
            Part(engine, group, named("unknown"))
        with pytest.raises(InvalidGroupName):
            Part(engine, "", topics[0])
        for part in parts:
            part.leave(engine)
        # Deleting waits until the client has left, which makes room for another group.
        engine.delete_group(group).result(WAIT_S)
        Part(engine, more, topics[0]).until_held(0, 1, 2, 3)


def test_a_gateway_that_closes_hands_its_partitions_over(
    kafka_server: KafkaServer, kafka_engine: Engine, named: Named
) -> None:
    group = named("group")
    with kafka_page(kafka_server.brokers) as page:
        topic = made(named("topic"), page.engine, kafka_engine)
        one = Part(page.engine, group, topic)
        other = Part(kafka_engine, group, topic)
        other.until(lambda: len(other.held) == 2)
    assert one.given_away >= 2
    other.until_held(0, 1, 2, 3)
    other.leave(kafka_engine)
