"""Committed offsets in memory follow the feed of their records, whoever changes them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.log.errors import InvalidGroupName, UnknownTopic
from penstock.log.metadata.groups import GroupOffsets
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import Delete, DeleteAll, Put, join_name, prefix_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with closing(MetadataStore(str(tmp_path / "metadata.db"))) as opened:
        opened.change((Put("topics", "orders", b"{}"), Put("topics", "other", b"{}")))
        yield opened


@pytest.fixture
def groups(store: MetadataStore) -> GroupOffsets:
    return GroupOffsets(store, {1: "orders"}, lambda: 7)


def wait(store: MetadataStore) -> None:
    """Until every change so far is told."""
    for _ in range(2):
        store.change(()).result(HANG_S)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "g\u202e"])
def test_a_name_that_no_new_group_may_have(
    store: MetadataStore, groups: GroupOffsets, name: str
) -> None:
    """One that is there goes on: older versions took it."""
    with pytest.raises(InvalidGroupName):
        groups.commit(name, "orders", 1, 0, 3)
    store.change((Put("offsets", join_name(1, name, 0), b"[5,0]"),))
    wait(store)
    groups.commit(name, "orders", 1, 0, 6)
    wait(store)
    assert GroupOffsets(store, {1: "orders"}, lambda: 7).all() == {name: {("orders", 0): 6}}


def test_a_change_that_somebody_else_made_is_seen(
    store: MetadataStore, groups: GroupOffsets
) -> None:
    name = join_name(1, "a/b", 2)
    store.change((Put("offsets", name, b"[5,0]"),))
    wait(store)
    assert groups.all() == {"a/b": {("orders", 2): 5}}
    store.change((Delete("offsets", name),))
    wait(store)
    assert (groups.all(), len(groups)) == ({}, 0)


def test_the_last_of_several_counts_and_nothing_of_a_deleted_topic(
    store: MetadataStore, groups: GroupOffsets
) -> None:
    for offset in (3, 9, 4):
        groups.commit("g", "orders", 1, 0, offset)
    groups.commit("g", "other", 2, 0, 1)
    store.change((Delete("topics", "orders"), DeleteAll("offsets", prefix_of(1))))
    late = groups.commit("g", "orders", 1, 0, 11)
    with pytest.raises(UnknownTopic):
        late.result(HANG_S)
    assert groups.all() == {"g": {("other", 0): 1}}
    groups.forget_topic(1)
    again = GroupOffsets(store, {2: "other"}, lambda: 7)
    assert again.all() == groups.all()


def test_a_commit_behind_the_deletion_of_its_group_makes_it_anew(
    store: MetadataStore, groups: GroupOffsets
) -> None:
    groups.commit("g", "orders", 1, 0, 3)
    groups.commit("gg", "orders", 1, 0, 4)
    groups.delete("g", [1])
    groups.commit("g", "orders", 1, 1, 5).result(HANG_S)
    wait(store)
    assert groups.all() == {"g": {("orders", 1): 5}, "gg": {("orders", 0): 4}}
