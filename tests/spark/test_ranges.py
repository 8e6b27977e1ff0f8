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
from penstock.spark.ranges import (
    SHARED_RECORDS,
    SHARED_TASKS,
    SPLIT_BYTES,
    SPLIT_RECORDS,
    Range,
    divide,
    share,
)

sizes = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), max_size=8)


@given(st.integers(1, 10**9) | st.integers(1, 10), sizes, st.integers(0, 10**12))
def test_a_limit_is_given_out_in_full(limit: int, waits: dict[int, int], turn: int) -> None:
    shares = share(limit, waits, turn)
    assert sum(shares.values()) == min(limit, sum(waits.values()))
    assert all(0 <= shares[key] <= waits[key] for key in waits)
    assert shares == share(limit, waits, turn)
    # Nobody who waits goes away empty, as far as it can be helped.
    some = sum(1 for key in waits if shares[key])
    assert some == min(limit, sum(1 for size in waits.values() if size))


@pytest.mark.parametrize(
    ("limit", "waits", "shares"),
    [
        (10, {"A": 10_000_000, "B": 1}, {"A": 9, "B": 1}),
        (2, {"A": 10_000_000, "B": 1}, {"A": 1, "B": 1}),
        (8, {"A": 30, "B": 10}, {"A": 6, "B": 2}),
        (1000, {"A": 3_000_000, "B": 1_000_000, "C": 0}, {"A": 750, "B": 250, "C": 0}),
    ],
)
def test_a_long_queue_does_not_take_all(
    limit: int, waits: dict[str, int], shares: dict[str, int]
) -> None:
    assert share(limit, waits) == shares


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50_000)), max_size=6),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 900),
    st.integers(0, 1 << 24),
)
def test_the_tasks_are_the_whole(
    bounds: list[tuple[int, int]], least: int | None, most: int | None, record_bytes: int
) -> None:
    whole = [
        Range("t", number, a, a + size, 1, record_bytes) for number, (a, size) in enumerate(bounds)
    ]
    tasks = divide(whole, least, most)
    pieces = [piece for task in tasks for piece in task]
    found = [(one.partition, one.start) for one in pieces]
    assert found == sorted(found)
    for one in whole:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        edges = [mine[0].start, *(piece.end for piece in mine)] if mine else []
        assert edges == ([one.start, *(piece.start for piece in mine[1:]), one.end] if mine else [])
        assert bool(mine) == (one.start < one.end)
    assert all(len(piece) > 0 for piece in pieces) and all(tasks)
    if most is not None:
        assert all(len(piece) <= most for piece in pieces)
    if least is not None:
        assert len(tasks) >= min(least, sum(len(one) for one in whole))
    if least is not None or most is not None:
        assert all(len(task) == 1 for task in tasks)


@pytest.mark.parametrize(("least", "most"), [(None, None), (3, None), (None, 2)])
def test_an_end_before_its_beginning_is_nothing(least: int | None, most: int | None) -> None:
    assert divide([Range("t", 0, 7, 5, 1)], least, most) == []


@pytest.mark.parametrize(
    ("records", "record_bytes", "tasks"),
    [
        (1, 0, 1),
        (2 * SPLIT_RECORDS - 1, 0, 1),
        (5 * SPLIT_RECORDS, 0, 5),
        (5 * SPLIT_RECORDS, SPLIT_BYTES // SPLIT_RECORDS, 5),
        (1024, SPLIT_BYTES // 128, 8),
        (2, 10 * SPLIT_BYTES, 2),
    ],
)
def test_large_ranges_are_cut_by_themselves(records: int, record_bytes: int, tasks: int) -> None:
    found = divide([Range("t", 0, 0, records, 1, record_bytes)], None, None)
    assert [len(task) for task in found] == [1] * tasks


@pytest.mark.parametrize(
    ("partitions", "records", "record_bytes", "tasks"),
    [
        (64, 1, 0, 1),
        (64, SHARED_RECORDS // 8, 0, 8),
        (64, 200_000, 0, SHARED_TASKS),
        (SHARED_TASKS, 200_000, 0, SHARED_TASKS),
        (SHARED_TASKS - 1, 200_000, 0, SHARED_TASKS - 1),
        (64, SPLIT_RECORDS // 2, 0, 32),
        (64, 8, SPLIT_BYTES // 16, 32),
        (3, 5 * SPLIT_RECORDS, 0, 15),
    ],
)
def test_small_ranges_share_a_task(
    partitions: int, records: int, record_bytes: int, tasks: int
) -> None:
    whole = [Range("t", number, 0, records, 1, record_bytes) for number in range(partitions)]
    found = divide(whole, None, None)
    sizes = {len(task) for task in found}
    assert (len(found), max(sizes) - min(sizes)) == (tasks, 0)


@given(st.lists(st.integers(1, 3 * SPLIT_RECORDS), min_size=1, max_size=80))
def test_no_task_is_much_larger_than_the_others(sizes: list[int]) -> None:
    whole = [Range("t", number, 0, size, 1) for number, size in enumerate(sizes)]
    tasks = divide(whole, None, None)
    fair = max(sum(sizes) // SHARED_TASKS, SHARED_RECORDS)
    for task in tasks:
        # A piece is not cut to fit: the first and the last may stand out by a half each.
        most = 2 * min(fair, SPLIT_RECORDS) + len(task[0]) // 2 + len(task[-1]) // 2
        assert sum(len(piece) for piece in task) <= max(most, len(task[0]))


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


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_partitions_take_turns_when_the_limit_is_below_their_number(
    limit: int, count: int, data: st.DataObject
) -> None:
    """Others may get new records all the time: who has one waiting has it read after one round."""
    latest = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    lonely = data.draw(st.integers(0, count - 1))
    at = dict.fromkeys(range(count), 0)
    latest[lonely] = 1
    for _ in range(-(-count // limit)):
        for other in data.draw(st.sets(st.integers(0, count - 1))) - {lonely}:
            latest[other] += 1
        now = {"t": TopicState(1, {number: (0, end) for number, end in enumerate(latest)})}
        start = Progress("q", {"t": TopicProgress(1, at)})
        at = limited(start, at_end("q", now), now, limit).topics["t"].partitions
    assert at[lonely] == 1


partitions = st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=5)


@given(partitions, st.integers(1, 60))
def test_trimmed_records_are_no_part_of_a_limit(
    found: list[tuple[int, int, int]], limit: int
) -> None:
    """Offsets only grow, all records that are left are read, and none of the batches is empty."""
    ordered = [sorted(one) for one in found]
    # Where the query is, what was trimmed meanwhile, and the end.
    now = {"t": TopicState(1, {number: (b, c) for number, (_, b, c) in enumerate(ordered)})}
    start = Progress("q", {"t": TopicProgress(1, {n: a for n, (a, _, _) in enumerate(ordered)})})
    latest = at_end("q", now)
    left = sum(c - b for _, b, c in ordered)
    assert waiting(start, latest, now) == left
    while start != latest:
        end = limited(start, latest, now, limit)
        places = end.topics["t"].partitions
        assert all(places[key] >= offset for key, offset in start.topics["t"].partitions.items())
        tasks = ranges_between(start, end, now, False)
        assert sum(len(one) for one in tasks) == min(limit, left)
        assert all(one.start >= now["t"].earliest[one.partition] for one in tasks)
        left -= min(limit, left)
        start = end
    assert left == 0


def test_a_trimmed_batch_that_is_done_again() -> None:
    now = states(p0=(100, 1000), p1=(0, 5))
    start = progress(p0=3, p1=5)
    end = limited(start, at_end("q", now), now, 50)
    assert end == progress(p0=150, p1=5)
    assert ranges_between(start, end, now, False) == [Range("t", 0, 100, 150, 1)]
    # Later more may be gone: it is the rest of the same.
    later = states(p0=(120, 2000), p1=(0, 9))
    assert ranges_between(start, end, later, False) == [Range("t", 0, 120, 150, 1)]
    gone = states(p0=(700, 2000), p1=(0, 9))
    assert ranges_between(start, end, gone, False) == []
    # Whoever wants to fail finds out when it is read.
    assert ranges_between(start, end, now, True) == [Range("t", 0, 3, 150, 1)]


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
