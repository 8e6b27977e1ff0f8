"""What a gateway makes of looks at Kafka: a broker that is behind the others makes no topic come or go.

The answers are given by hand: a real broker that lags cannot be had at will.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from kit.limits import HANG_S

from penstock.kafka.clients import Clients, KafkaOptions
from penstock.kafka.cluster import Cluster, Seen
from penstock.kafka.topics import KafkaTopics
from penstock.log.metadata.store import MetadataStore
from penstock.log.settings import TopicSettings

P = ParamSpec("P")
T = TypeVar("T")


class Told(Cluster):
    """Topics by name, with their ids, as one broker tells them."""

    def __init__(self) -> None:
        super().__init__(Clients(KafkaOptions("127.0.0.1:1")))
        self.ids: dict[str, int] = {}

    def partition_counts(self) -> dict[str, int]:
        return dict.fromkeys(self.ids, 1)

    def describe(self, names: Sequence[str]) -> dict[str, Seen]:
        return {name: Seen(self.ids[name], 1) for name in names if name in self.ids}

    def configurations(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in names if name in self.ids}

    def earliest(self, places: object) -> dict[tuple[str, int], int]:
        return {}

    def latest(self, places: object) -> dict[tuple[str, int], int]:
        return {}

    def create(self, name: str, partitions: int, configuration: Mapping[str, str]) -> None:
        self.ids[name] = len(self.ids) + 1

    def delete(self, name: str) -> None:
        del self.ids[name]


class AtOnce(Executor):
    """Without a thread: what is asked for is done when the call returns."""

    def submit(self, fn: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> "Future[T]":
        done: Future[T] = Future()
        done.set_result(fn(*arguments, **named))
        return done


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def topics(told: Told, tmp_path: Path) -> Iterator[KafkaTopics]:
    metadata = MetadataStore(str(tmp_path / "metadata"))
    yield KafkaTopics(told, metadata, AtOnce(), lambda work: work(), TopicSettings(), lambda: 1_000)
    metadata.close()


def look(topics: KafkaTopics) -> None:
    topics.refresh(settings_too=False)()


def test_one_look_without_a_topic_does_not_end_it(told: Told, topics: KafkaTopics) -> None:
    gone: list[str] = []
    topics.gone = lambda topic: gone.append(topic.info.name)
    told.ids["a"] = 7
    look(topics)
    for _ in range(2):
        before, told.ids = told.ids, {}
        look(topics)
        assert topics.get("a").info.id == 7
        told.ids = before
        look(topics)
    told.ids = {}
    look(topics)
    assert gone == []
    look(topics)
    assert gone == ["a"]
    assert topics.names(None, 9) == []


def test_a_topic_that_was_deleted_here_does_not_come_back(told: Told, topics: KafkaTopics) -> None:
    topics.create("a", 1, TopicSettings())
    before = dict(told.ids)
    topics.delete("a").result(HANG_S)
    told.ids = before  # a broker that has not heard of it
    look(topics)
    assert topics.names(None, 9) == []
    told.ids = {"a": 99}  # made anew by others
    look(topics)
    assert topics.get("a").info.id == 99


def test_one_that_was_missed_may_be_another_one_of_its_name(
    told: Told, topics: KafkaTopics
) -> None:
    for ids in ({"a": 7}, {}, {"a": 8}):
        told.ids = dict(ids)
        look(topics)
    assert topics.get("a").info.id == 8
