"""Who reads as a member of which group, and groups as peers list them."""

import pytest
from broker.bench import ANYBODY, Bench

from penstock.broker.access.access import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.broker.groups import MAX_MEMBERSHIPS, GroupRow, Members, rows_of


def test_members_join_and_leave() -> None:
    members = Members()
    for user, group, topic in (("u", "g", "t"), ("u", "g", "t"), ("v", "g", "t"), ("u", "g", "s")):
        members.join(user, group, topic)
    assert (members.count("g", "t"), members.count("g", "s"), members.count("g", "x")) == (2, 1, 0)
    assert members.topics("g") == {"t", "s"} and members.groups() == ["g"]
    members.leave("u")
    assert members.topics("g") == {"t"} and members.count("g", "t") == 1
    members.leave("v")
    members.leave("nobody")
    assert members.groups() == [] and members.topics("g") == set()


def test_a_group_that_is_forgotten_has_no_members() -> None:
    members = Members()
    members.join("u", "g", "t")
    members.join("u", "g", "s")
    members.forget("g", ["t", "none"])
    members.forget("none", ["t"])
    assert members.topics("g") == {"s"}
    members.join("u", "g", "t")
    members.leave("u")
    assert members.groups() == []


def test_a_user_has_a_number_of_memberships() -> None:
    members = Members()
    for number in range(MAX_MEMBERSHIPS):
        members.join("u", f"g{number}", "t")
    members.join("u", "g0", "t")
    with pytest.raises(BrokerError) as caught:
        members.join("u", "one more", "t")
    assert caught.value.code is Code.LIMIT_REACHED


def test_rows_are_in_order() -> None:
    members = Members()
    members.join("u", "g", "b")
    rows = list(rows_of("g", {("c", 1): 5, ("a", 2): 1, ("a", 0): 7}, members))
    assert rows == [
        GroupRow("a", "g", 0, [(0, 7), (2, 1)]),
        GroupRow("b", "g", 1, []),
        GroupRow("c", "g", 0, [(1, 5)]),
    ]


def test_a_group_is_deleted_on_one_topic_or_on_all(bench: Bench) -> None:
    for topic in ("a", "b"):
        bench.engine.create_topic(topic)
        bench.engine.commit_offset("g", topic, 0, 1)
    bench.settle()
    bench.broker.delete_group(ANYBODY, "g", "a")
    bench.settle()
    assert dict(bench.engine.group("g")) == {("b", 0): 1}
    with pytest.raises(BrokerError) as caught:
        bench.broker.delete_group(ANYBODY, "g", "a")
    assert caught.value.code is Code.UNKNOWN_GROUP
    bench.broker.delete_group(ANYBODY, "g")
    bench.settle()
    assert not bench.engine.group("g")


def test_groups_of_topics_that_may_be_read(bench: Bench) -> None:
    for topic in ("mine", "other"):
        bench.engine.create_topic(topic)
        bench.engine.commit_offset("g", topic, 0, 1)
    bench.settle()
    limited = Principal("limited", "reader", ("mine",))
    assert [row.topic for row in bench.broker.groups(limited)] == ["mine"]
    assert [row.topic for row in bench.broker.groups(ANYBODY)] == ["mine", "other"]
    assert bench.broker.group(limited, "g").topic == "mine"
    with pytest.raises(BrokerError):
        bench.broker.group(limited, "g", "other")
