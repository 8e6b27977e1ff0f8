"""What the Flight process asks of the broker: long answers are made in a thread."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench
from kit.overriding import Overriding

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.server.flight.calls import FlightCalls
from penstock.server.flight.link import Answer, Describe, Failure, TopicFacts, TopicList, Topics

NOBODY = Principal("nobody", "nobody")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    made.engine.create_topic("wide", DESCRIBED_AT_ONCE + 1)
    made.engine.create_topic("narrow", DESCRIBED_AT_ONCE)
    made.settle()
    yield made
    made.close()


@pytest.fixture
def work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What threads are asked to do."""
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(bench.broker, "_run", jobs.append)
    return jobs


def calls_of(bench: Bench) -> FlightCalls:
    return FlightCalls(bench.broker, bench.engine, lambda address, peer: None)


def describe(topic: str, who: Principal = ANYBODY) -> Describe:
    return Describe(who, topic, Operation.DESCRIBE_TOPIC.name)


def test_a_list_and_a_wide_topic_are_made_in_a_thread(
    bench: Bench, work: list[Callable[[], None]]
) -> None:
    given: list[Answer] = []
    calls = calls_of(bench)
    calls.answer(describe("narrow"), b"", given.append)
    assert len(given) == 1 and not work
    calls.answer(describe("wide"), b"", given.append)
    calls.answer(Topics(ANYBODY), b"", given.append)
    assert len(given) == 1 and len(work) == 2
    for job in work:
        job()
    bench.run_posted()
    _, wide, topics = given
    assert isinstance(wide, TopicFacts) and len(wide.partitions) == DESCRIBED_AT_ONCE + 1
    assert isinstance(topics, TopicList)
    assert sorted(one.name for one in topics.topics) == ["narrow", "wide"]


def test_who_may_not_look_is_refused_before_any_work(
    bench: Bench, work: list[Callable[[], None]]
) -> None:
    given: list[Answer] = []
    calls_of(bench).answer(describe("wide", NOBODY), b"", given.append)
    assert [type(one) for one in given] == [Failure] and not work


def test_a_topic_that_is_deleted_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, work: list[Callable[[], None]]
) -> None:
    """It is refused to who asks for it, and a list goes on without it."""
    given: list[Answer] = []
    calls = calls_of(bench)
    calls.answer(describe("wide"), b"", given.append)
    calls.answer(Topics(ANYBODY), b"", given.append)
    listed = bench.engine.topics()
    bench.broker.delete_topic(ANYBODY, "wide")
    bench.settle()
    engine = Overriding(bench.engine, topics=lambda: listed)
    for owner, name in ((bench.broker, "engine"), (calls._describing, "_engine")):
        monkeypatch.setattr(owner, name, engine)
    for job in work:
        job()
    bench.run_posted()
    refusal, topics = given
    assert isinstance(refusal, Failure) and isinstance(topics, TopicList)
    assert [one.name for one in topics.topics] == ["narrow"]
