"""Groups over several gateways: two engines on one Kafka share the partitions of a topic by Kafka's own
protocol, with each other and with Kafka's own clients."""

import threading
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka.admin import AdminClient
from kit.engines import WAIT_S
from kit.outside_servers import KafkaServer

from penstock.log.engine import Engine, Pending
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


@pytest.fixture
def members(kafka_server: KafkaServer) -> Callable[[str], dict[str, set[tuple[str, int]]]]:
    """What Kafka's tools show of a group: partitions by the client that has them."""
    admin = AdminClient({"bootstrap.servers": kafka_server.brokers, "log_level": 0})

    def described(group: str) -> dict[str, set[tuple[str, int]]]:
        found = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return {
            member.client_id: {
                (place.topic, place.partition) for place in member.assignment.topic_partitions
            }
            for member in found.members
        }

    return described


def test_two_gateways_have_all_partitions_and_none_together(
    kafka_engine: Engine, other_engine: Engine, topic: str, named: Named, members
) -> None:
    group = named("group")
    one = Part(kafka_engine, group, topic)
    assert one.held == [0, 1, 2, 3]
    other = Part(other_engine, group, topic)
    assert one.given_away == 1
    one.until(lambda: len(one.held) == 2)
    assert sorted(one.held + other.held) == [0, 1, 2, 3]
    print(members(group))
    one.leave(kafka_engine)
    other.until_held(0, 1, 2, 3)
    other.leave(other_engine)
