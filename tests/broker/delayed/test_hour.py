"""The index of one hour against a plain list: any order of adding, taking, cancelling and preparing."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.delayed.hour import (
    HOUR_MS,
    SECOND_MS,
    SPLIT_AT_ONCE,
    Hour,
    message_id,
    split_id,
)

NUMBER = 400_000
BEGIN_MS = NUMBER * HOUR_MS
# Few seconds, so that they are split while messages are added to them.
DUES = st.integers(0, 3 * SECOND_MS).map(lambda later: BEGIN_MS + later)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DUES),
        st.tuples(st.just("take"), DUES),
        st.tuples(st.just("back"), DUES),
        st.tuples(st.just("prepare"), DUES),
        st.tuples(st.just("cancel"), DUES),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 5))
def test_what_is_due_comes_in_its_order(steps: list[tuple[str, int]], most: int) -> None:
    hour = Hour(NUMBER, loaded=True)
    waiting: list[tuple[int, int]] = []
    offset = 0
    for what, chosen_ms in steps:
        due_ms = chosen_ms
        if what == "add":
            due_ms = max(chosen_ms, hour.taken[0] + 1)
            hour.add(due_ms, offset)
            waiting.append((due_ms, offset))
            offset += 1
        elif what == "prepare":
            hour.prepare(due_ms // SECOND_MS)
        elif what == "cancel" and waiting:
            hour.cancel(waiting.pop(due_ms % len(waiting))[1])
        elif what in ("take", "back"):
            before = hour.taken
            found = hour.take(due_ms, most)
            due = sorted(place for place in waiting if place[0] <= due_ms)[:most]
            assert list(zip(found.dues_ms, found.offsets, strict=True)) == due
            if what == "back" and len(due) > 1:
                hour.put_back(found, 1, found.last(1))
                due = due[:1]
            assert hour.taken == (due[-1] if due else before)
            waiting = [place for place in waiting if place not in due]
        assert hour.pending == len(waiting)
        first_ms = hour.next_due_ms()
        assert (first_ms is None) <= (not waiting)
        if waiting and first_ms is not None:
            assert first_ms <= min(waiting)[0]


def test_a_second_is_split_in_steps() -> None:
    hour = Hour(NUMBER, loaded=True)
    count = 2 * SPLIT_AT_ONCE + 1
    hour.add_all([BEGIN_MS + number % SECOND_MS for number in range(count)], 0)
    second = BEGIN_MS // SECOND_MS
    assert [hour.prepare(second) for _ in range(4)] == [True, True, False, False]
    hour.add(BEGIN_MS, count)
    found = hour.take(BEGIN_MS, count)
    assert found.offsets == [*range(0, count, SECOND_MS), count]


def test_ids() -> None:
    assert split_id(message_id(NUMBER, 17)) == (NUMBER, 17)
