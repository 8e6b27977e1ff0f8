"""Partitions shared by the members of a group: each has one reader among those that are alive."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.partitions import Clock

from penstock.broker import sharing
from penstock.broker.errors import BrokerError, Code
from penstock.broker.sharing import Sharing
from penstock.log.engine import Pending, Share
from penstock.log.shares import Changed

SECOND_US = 1_000_000


def made() -> tuple[Sharing, Clock]:
    clock = Clock()
    numbers = count(1)
    return Sharing(clock, lambda size: next(numbers).to_bytes(size, "big")), clock


def test_members_come_and_go() -> None:
    shared, _ = made()
    place = "g", "t", 5, "owner"
    first = shared.join(*place, "", 0)
    assert first.partitions == [0, 1, 2, 3, 4]
    second = shared.join(*place, "", 0)
    assert second.partitions == [2, 3, 4] and second.generation == first.generation + 1
    told = shared.heartbeat(*place, first.member)
    assert (told.partitions, told.generation) == ([0, 1], second.generation)
    shared.leave(*place, first.member)
    told = shared.heartbeat(*place, second.member)
    assert told.partitions == [0, 1, 2, 3, 4] and told.generation == second.generation + 1
    with pytest.raises(
        BrokerError, match="is no member of group 'g' on this topic any more: join again"
    ):
        shared.heartbeat(*place, first.member)


def test_joining_again_changes_nothing() -> None:
    shared, _ = made()
    first = shared.join("g", "t", 2, "owner", "", 0)
    assert shared.join("g", "t", 2, "owner", first.member, 5_000) == first


def test_one_that_is_silent_is_out() -> None:
    shared, clock = made()
    place = "g", "t", 4, "owner"
    quick = shared.join(*place, "", 1_000)
    slow = shared.join(*place, "", 10_000)
    clock.now_us += 999_999
    assert shared.heartbeat(*place, slow.member).partitions == [2, 3]
    clock.now_us += 1
    assert shared.heartbeat(*place, slow.member).partitions == [0, 1, 2, 3]
    with pytest.raises(BrokerError, match="join again"):
        shared.heartbeat(*place, quick.member)
    again = shared.join(*place, quick.member, 1_000)
    assert again.member != quick.member and again.partitions == [2, 3]


def test_a_topic_that_grows_is_shared_anew() -> None:
    shared, _ = made()
    first = shared.join("g", "t", 1, "owner", "", 0)
    told = shared.heartbeat("g", "t", 3, "owner", first.member)
    assert (told.partitions, told.generation) == ([0, 1, 2], first.generation + 1)
    shared.forget_topic("t")
    with pytest.raises(BrokerError):
        shared.heartbeat("g", "t", 3, "owner", first.member)


def test_an_id_belongs_to_who_joined() -> None:
    shared, _ = made()
    first = shared.join("g", "t", 2, "owner", "", 0)
    for call in (shared.heartbeat, shared.leave):
        with pytest.raises(BrokerError, match="join again"):
            call("g", "t", 2, "thief", first.member)
    assert shared.join("g", "t", 2, "thief", first.member, 0).member != first.member


@pytest.mark.parametrize("timeout_ms", [1, 999, 300_001, 1 << 31])
def test_timeouts_have_limits(timeout_ms: int) -> None:
    with pytest.raises(BrokerError, match="a timeout has 1000 to 300000 ms"):
        made()[0].join("g", "t", 1, "owner", "", timeout_ms)


def test_members_and_groups_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_MEMBERS", 2)
    monkeypatch.setattr(sharing, "MAX_SHARED_GROUPS", 2)
    shared, clock = made()
    for _ in range(2):
        shared.join("a", "t", 1, "owner", "", 1_000)
    with pytest.raises(BrokerError) as caught:
        shared.join("a", "t", 1, "owner", "", 1_000)
    assert caught.value.code is Code.LIMIT_REACHED
    shared.join("b", "t", 1, "owner", "", 300_000)
    with pytest.raises(BrokerError) as caught:
        shared.join("c", "t", 1, "owner", "", 1_000)
    assert caught.value.code is Code.LIMIT_REACHED
    clock.now_us += SECOND_US  # the members of a are gone
    assert shared.join("c", "t", 1, "owner", "", 1_000).partitions == [0]


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "beat", "wait"]), st.integers(0, 5))),
)
def test_every_partition_has_one_reader(partitions: int, steps: list[tuple[str, int]]) -> None:
    """Once all that are alive have had a heartbeat."""
    shared, clock = made()
    place = "g", "t", partitions, "owner"
    alive: dict[str, int] = {}
    for step, number in steps:
        names = list(alive)
        if step == "join":
            timeout_ms = 1_000 * (number + 1)
            alive[shared.join(*place, "", timeout_ms).member] = clock.now_us + 1_000 * timeout_ms
        elif step == "wait":
            clock.now_us += number * 700_000
        elif names and alive[names[number % len(names)]] > clock.now_us:
            name = names[number % len(names)]
            if step == "leave":
                shared.leave(*place, name)
                del alive[name]
            else:
                shared.heartbeat(*place, name)
                alive.pop(name)
                alive[name] = clock.now_us + shared._shared["g", "t"].members[name].timeout_us
        alive = {name: until for name, until in alive.items() if until > clock.now_us}
    told = [shared.heartbeat(*place, name) for name in alive]
    assert len({one.generation for one in told}) <= 1
    if told:
        assert sorted(p for one in told for p in one.partitions) == list(range(partitions))
        sizes = [len(one.partitions) for one in told]
        assert max(sizes) - min(sizes) <= 1


def test_members_have_a_limit_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_MEMBERS", 2)
    monkeypatch.setattr(sharing, "MAX_MEMBERS_TOTAL", 3)
    shared, clock = made()
    for group in ("a", "b", "b"):
        shared.join(group, "t", 1, "owner", "", 1_000)
    for group in ("a", "c"):
        with pytest.raises(BrokerError, match="groups have 3 members") as refused:
            shared.join(group, "t", 1, "owner", "", 1_000)
        assert refused.value.code is Code.LIMIT_REACHED
    clock.now_us += SECOND_US
    assert shared.join("c", "t", 1, "owner", "", 0).partitions == [0]


def test_a_deleted_group_has_no_members() -> None:
    shared, _ = made()
    member = shared.join("g", "t", 2, "owner", "", 0).member
    shared.forget("g", ["other", "t"])
    with pytest.raises(BrokerError, match="join again"):
        shared.heartbeat("g", "t", 2, "owner", member)


class PartOfTopic:
    """What a server has where others have the rest, as the engine would tell it."""

    is_whole = False
    had_others = True

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.ready: Pending[object] | None = None
        self.changed: Changed = lambda: None
        self.leaves = 0

    def held(self, partitions: int) -> list[int]:
        return [number for number in self.numbers if number < partitions]

    def committed(self, partition: int) -> int | None:
        return None

    def leave(self) -> None:
        self.leaves += 1

    def hold(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.changed()


def beside_others(part: PartOfTopic) -> tuple[Sharing, Clock]:
    clock = Clock()

    def open_share(_group: str, _topic: str, changed: Changed) -> Share:
        part.changed = changed
        return part

    return Sharing(clock, bytes, open_share), clock


def test_members_divide_what_this_server_has() -> None:
    part = PartOfTopic(1, 4, 5)
    shared, _ = beside_others(part)
    place = "g", "t", 6, "owner"
    first = shared.join(*place, "", 0)
    assert first.partitions == [1, 4, 5] and shared.held("g") == {"t": [1, 4, 5]}
    part.hold(0)
    part.hold(1, 4, 5)
    told = shared.heartbeat(*place, first.member)
    # Others had them meanwhile: the generation says so.
    assert told.partitions == [1, 4, 5] and told.generation == first.generation + 2
    assert shared.heartbeat("g", "t", 5, "owner", first.member).partitions == [1, 4]
    shared.leave(*place, first.member)
    assert part.leaves == 1


def test_where_others_wait_silence_is_noticed_without_a_question() -> None:
    part = PartOfTopic(0)
    shared, clock = beside_others(part)
    shared.join("g", "t", 1, "owner", "", 1_000)
    clock.now_us += SECOND_US - 1
    shared.expire()
    assert part.leaves == 0
    clock.now_us += 1
    # Who still waits for the first answer cannot be silent.
    part.ready = Pending()
    shared.expire()
    assert part.leaves == 0
    assert shared.ready("g", "t") is part.ready
    part.ready = None
    shared.expire()
    assert part.leaves == 1
    assert shared.groups() == set()
