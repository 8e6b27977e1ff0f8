"""What the broker refuses: operations without the right to them, and more of something than its limit.

Which right each operation of each door needs is walked in tests/conformance/rights.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.access import refusals
from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.broker.options import BrokerOptions
from penstock.log.errors import InvalidGroupName, TopicExists

READER = Principal("reader", "reader")
WRITER = Principal("writer", "writer")
ADMIN_OF_A = Principal("limited", "admin", ("a.*",))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    options = BrokerOptions(max_topics=2, max_partitions=4, max_groups=1, max_subscriptions=2)
    bench = Bench(str(tmp_path / "data"), options)
    yield bench
    bench.close()


def refused(call: Callable[[], object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value


# --- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Operation.POLL, Operation.ACKNOWLEDGE])
def test_a_subscription_is_used_by_who_may_read_its_topic(
    bench: Bench, operation: Operation
) -> None:
    one = bench.subscribe("b.x")
    use = bench.broker.subscription
    for stranger in (WRITER, ADMIN_OF_A, Principal("of a", "reader", ("a.*",))):
        assert use(stranger, operation, one.id, "stranger") is None
    assert use(READER, operation, one.id, "other") is one
    assert use(ANYBODY, operation, one.id, "other") is one
    assert use(ANYBODY, operation, one.id + 1, "other") is None
    assert bench.broker.refusals.counts == {operation.name: 3}


def test_reading_never_makes_a_topic(bench: Bench) -> None:
    error = refused(lambda: bench.broker.subscribe(READER, "typo", 1, "user"))
    assert error.code is Code.UNKNOWN_TOPIC
    assert str(error) == "no topic named 'typo', and reader may not create it"
    assert bench.engine.topics() == []
    # Who may publish to it may make it.
    bench.broker.subscribe(Principal("u", "user"), "typo", 1, "user")
    bench.broker.subscribe(READER, "typo", 1, "user")


def test_internal_topics(bench: Bench) -> None:
    bench.engine.create_topic("_audit")
    bench.settle()
    error = refused(lambda: bench.publish("_audit", b"x"))
    assert error.code is Code.NOT_AUTHORIZED
    assert str(error) == (
        "anybody may not publish to topic '_audit': that needs another name,"
        " those that begin with _ belong to the server"
    )
    assert refused(lambda: bench.broker.create_topic(ANYBODY, "_mine", 1)).code is error.code
    for role in ("reader", "user", "writer"):
        who = Principal(role, role)
        refused(lambda who=who: bench.broker.read(who, "_audit", 0, 0, 1))  # type: ignore[misc]  # mypy/12557
        assert not bench.access.shows(who, "_audit")
    bench.broker.read(ANYBODY, "_audit", 0, 0, 1)
    assert not bench.access.shows(ANYBODY, "_audit")
    # What the server keeps there it alone removes.
    for remove in (bench.broker.delete_topic, bench.broker.purge_topic):
        error = refused(lambda remove=remove: remove(ANYBODY, "_audit"))  # type: ignore[misc]  # mypy/12557
        assert error.code is Code.NOT_AUTHORIZED and "belong to the server" in str(error)


def test_a_refusal_says_who_what_on_what_and_what_is_needed(bench: Bench) -> None:
    for call, words in (
        (
            lambda: bench.broker.delete_topic(READER, "t"),
            "reader may not delete topic 't': that needs the right admin on the topic",
        ),
        (
            lambda: bench.broker.delete_group(READER, "g"),
            "reader may not delete group 'g': that needs the right admin on every topic of the group",
        ),
        (
            lambda: bench.broker.require(ADMIN_OF_A, Operation.LIST_KEYS),
            "limited may not list API keys: that needs the right admin on all topics",
        ),
        (
            lambda: bench.broker.require(READER, Operation.USE_TRANSACTIONS),
            "reader may not use transactions: that needs an API key and the right write on any topic",
        ),
    ):
        error = refused(call)
        assert (error.code, str(error)) == (Code.NOT_AUTHORIZED, words)


def test_a_transaction_belongs_to_somebody(bench: Bench) -> None:
    """All strangers are the same principal, whatever it may do."""
    strangers = bench.access.anonymous
    assert strangers.role == "admin"
    error = refused(lambda: bench.broker.require(strangers, Operation.USE_TRANSACTIONS))
    assert error.code is Code.NOT_AUTHENTICATED
    bench.broker.require(Principal("key", "writer", ("a",)), Operation.USE_TRANSACTIONS)


def test_refusals_are_counted_and_logged_once_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, refusals.__name__)
    for _ in range(50):
        refused(lambda: bench.broker.delete_topic(READER, "t"))
    refused(lambda: bench.broker.delete_topic(WRITER, "t"))
    assert bench.broker.refusals.counts == {"DELETE_TOPIC": 51}
    assert [record.args[0] for record in caplog.records if record.args] == [1, 1]  # type: ignore[index]  # a tuple
    bench.advance(60_000)
    refused(lambda: bench.broker.delete_topic(READER, "t"))
    assert (
        caplog.records[-1].getMessage().startswith("refused, 50 since the last such line: reader")
    )


# --- limits --------------------------------------------------------------------------------------


def test_topics_and_partitions_have_limits(small: Bench) -> None:
    broker = small.broker
    error = refused(lambda: broker.create_topic(ANYBODY, "wide", 5))
    assert (error.code, str(error)) == (
        Code.LIMIT_REACHED,
        "there are 0 partitions and 5 more are over limits.partitions = 4;"
        " delete some, or raise the limit",
    )
    broker.create_topic(ANYBODY, "a", 3)
    small.publish("b", b"x")
    for call in (
        lambda: broker.create_topic(ANYBODY, "c", 1),
        lambda: small.publish("c", b"x"),
        lambda: small.subscribe("c"),
        lambda: broker.change_topic(ANYBODY, "b", {}, 2),
    ):
        assert refused(call).code is Code.LIMIT_REACHED
    with pytest.raises(TopicExists):  # said before the limit
        broker.create_topic(ANYBODY, "a", 1)
    broker.change_topic(ANYBODY, "b", {"durability": "none"}, 1)
    broker.delete_topic(ANYBODY, "a")
    small.settle()
    assert small.engine.sizes().partitions == 1
    broker.create_topic(ANYBODY, "c", 3)


def test_subscriptions_have_a_limit(small: Bench) -> None:
    first = small.subscribe("t")
    small.subscribe("t")
    assert refused(lambda: small.subscribe("t")).code is Code.LIMIT_REACHED
    small.broker.subscriptions.remove(first)
    small.subscribe("t")


def test_groups_have_a_limit_and_can_be_deleted(small: Bench) -> None:
    broker = small.broker
    small.publish("a.t", b"x")
    broker.commit_offset(READER, "one", "a.t", 0, 1)
    small.settle()
    assert refused(lambda: broker.commit_offset(READER, "two", "a.t", 0, 1)).code is (
        Code.LIMIT_REACHED
    )
    broker.commit_offset(READER, "one", "a.t", 0, 0)
    small.settle()
    broker.delete_group(ADMIN_OF_A, "one")
    small.settle()
    assert small.engine.groups() == {}
    assert refused(lambda: broker.delete_group(ANYBODY, "one")).code is Code.UNKNOWN_GROUP
    broker.commit_offset(READER, "two", "a.t", 0, 1)


def test_a_group_is_deleted_by_an_admin_of_all_its_topics(bench: Bench) -> None:
    for topic in ("a.t", "b.t"):
        bench.publish(topic, b"x")
        bench.broker.commit_offset(READER, "g", topic, 0, 1)
    bench.settle()
    error = refused(lambda: bench.broker.delete_group(ADMIN_OF_A, "g"))
    assert error.code is Code.NOT_AUTHORIZED
    assert len(bench.engine.group("g")) == 2


@pytest.mark.parametrize("name", ["", "a\nb", "\0", "g" * 250, "\ud800"])
def test_group_names_follow_the_rules_of_topic_names(bench: Bench, name: str) -> None:
    bench.publish("t", b"x")
    for call in (bench.broker.commit_offset, bench.broker.reset_offset):
        with pytest.raises(InvalidGroupName, match=r"^group name .* is not allowed: ") as caught:
            call(ANYBODY, name, "t", 0, 0)
        assert from_exception(caught.value).code is Code.INVALID_REQUEST


def test_a_reset_needs_more_than_a_commit(bench: Bench) -> None:
    bench.publish("t", b"x")
    bench.broker.commit_offset(READER, "g", "t", 0, 1)
    assert refused(lambda: bench.broker.reset_offset(READER, "g", "t", 0, 0)).code is (
        Code.NOT_AUTHORIZED
    )
    refused(lambda: bench.broker.commit_offset(WRITER, "g", "t", 0, 1))


def test_a_purged_topic_goes_on(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    refused(lambda: bench.broker.purge_topic(Principal("u", "user"), "t"))
    token = bench.broker.purge_topic(ANYBODY, "t")
    bench.wait_for(lambda: token.done)
    assert token.result() > 0
    assert bench.engine.offsets("t", 0) == (2, 2)
    bench.publish("t", b"c")
    assert bench.read("t", offset=2).next_offset == 3
