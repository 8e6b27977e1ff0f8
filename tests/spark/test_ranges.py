"""How offsets are shared, cut and compared. No Spark and no server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.positions import DataLost, States, TopicState
from penstock.spark.progress import (
    NotOurOffset,
    Progress,
    TopicProgress,
    at_end,
    check_start,
    limited,
    not_behind,
    ranges_between,
    waiting,
)
from penstock.spark.ranges import SPLIT_RECORDS, Range, share, split

sizes = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), max_size=8)


@given(st.integers(1, 10**9), sizes)
def test_a_limit_is_given_out_in_full(limit: int, waits: dict[int, int]) -> None:
    shares = share(limit, waits)
    assert sum(shares.values()) == min(limit, sum(waits.values()))
    assert all(0 <= shares[key] <= waits[key] for key in waits)
    assert shares == share(limit, waits)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=6),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 900),
)
def test_pieces_are_the_whole(
    bounds: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    whole = [Range("t", number, a, a + size, 1) for number, (a, size) in enumerate(bounds)]
    pieces = split(whole, least, most)
    for one in whole:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        found = [offset for piece in mine for offset in range(piece.start, piece.end)]
        assert found == list(range(one.start, one.end))
    assert all(len(piece) > 0 for piece in pieces)
    if most is not None:
        assert all(len(piece) <= most for piece in pieces)
    if least is not None:
        assert len(pieces) >= min(least, sum(len(one) for one in whole))


@pytest.mark.parametrize(("least", "most"), [(None, None), (3, None), (None, 2)])
def test_an_end_before_its_beginning_is_nothing(least: int | None, most: int | None) -> None:
    assert split([Range("t", 0, 7, 5, 1)], least, most) == []


def test_large_ranges_are_cut_by_themselves() -> None:
    def cut(size: int) -> int:
        return len(split([Range("t", 0, 0, size, 1)], None, None))

    assert [cut(1), cut(2 * SPLIT_RECORDS - 1), cut(5 * SPLIT_RECORDS)] == [1, 1, 5]


def progress(created_us: int = 1, **partitions: int) -> Progress:
    found = {int(name[1:]): offset for name, offset in partitions.items()}
    return Progress("q", {"t": TopicProgress(created_us, found)})


def states(created_us: int = 1, **bounds: tuple[int, int]) -> States:
    return {"t": TopicState(created_us, {int(name[1:]): one for name, one in bounds.items()})}


def test_the_text_in_the_checkpoint() -> None:
    one = progress(p10=3, p2=4)
    text = one.to_json()
    assert list(text["topics"]["t"]["partitions"]) == ["2", "10"]
    assert Progress.from_json(text) == one


@pytest.mark.parametrize(
    "found",
    [{}, {"orders": {"0": 5}}, {"version": 2}, {"version": 1, "query": "q", "topics": {"t": 5}}],
)
def test_a_checkpoint_of_somebody_else(found: dict[str, Any]) -> None:
    with pytest.raises(NotOurOffset, match="no offsets of Penstock"):
        Progress.from_json(found)


def test_batches_begin_where_the_last_one_ended() -> None:
    now = states(p0=(0, 10), p1=(2, 8))
    end = at_end("q", now)
    assert ranges_between(progress(p0=3, p1=8), end, now, True) == [Range("t", 0, 3, 10, 1)]
    assert waiting(progress(p0=3, p1=5), end, now) == 10


def test_a_limited_batch() -> None:
    now = states(p0=(0, 30), p1=(0, 10))
    end = limited(progress(p0=0, p1=0), at_end("q", now), now, 8)
    assert end == progress(p0=6, p1=2)
    # A new partition counts from its earliest record.
    now = states(p0=(0, 30), p1=(20, 50))
    assert limited(progress(p0=30), at_end("q", now), now, 8) == progress(p0=30, p1=28)


def test_new_partitions() -> None:
    now = states(p0=(0, 5), p1=(0, 4))
    assert ranges_between(progress(p0=5), at_end("q", now), now, True) == [Range("t", 1, 0, 4, 1)]
    trimmed = states(p0=(0, 5), p1=(2, 4))
    with pytest.raises(DataLost, match="new partition 1 of topic 't' begins at offset 2"):
        ranges_between(progress(p0=5), at_end("q", trimmed), trimmed, True)
    found = ranges_between(progress(p0=5), at_end("q", trimmed), trimmed, False)
    assert found == [Range("t", 1, 2, 4, 1)]


def test_a_topic_made_anew() -> None:
    now = states(7, p0=(0, 3))
    assert ranges_between(progress(p0=50), at_end("q", now), now, False) == [Range("t", 0, 0, 3, 7)]
    with pytest.raises(DataLost, match="made anew"):
        check_start(progress(p0=50), now, "subscribe t", True)
    check_start(progress(p0=50), now, "subscribe t", False)
    # Gone between planning and reading.
    with pytest.raises(DataLost, match="deleted before this batch"):
        ranges_between(progress(p0=1), progress(p0=4), now, True)
    assert ranges_between(progress(p0=1), progress(p0=4), now, False) == []


@pytest.mark.parametrize(
    ("start", "now", "text"),
    [
        (progress(p0=1), {}, "which subscribe t does not find"),
        (progress(p0=1, p1=1), states(p0=(0, 5)), "partition 1 of topic 't', which"),
        (progress(p0=1), states(p0=(2, 5)), "at offset 1, but partition 0 of topic 't' has offsets 2 to 5"),
        (progress(p0=9), states(p0=(2, 5)), "at offset 9"),
    ],
)  # fmt: skip
def test_what_a_checkpoint_misses(start: Progress, now: States, text: str) -> None:
    with pytest.raises(DataLost, match=text):
        check_start(start, now, "subscribe t", True)
    check_start(start, now, "subscribe t", False)


def test_available_now_stops_at_its_target() -> None:
    target = progress(p0=5)
    assert not_behind(progress(p0=9, p1=4), target) == progress(p0=5)
    assert not_behind(progress(p0=3), target) == progress(p0=3)
