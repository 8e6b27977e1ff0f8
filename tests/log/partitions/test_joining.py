"""Small appends that become one batch: the records, their times, their tokens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.partitions import Bench, read_all

from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import (
    FLAG_AT_MOST_ONCE,
    FLAG_TIMES,
    HEADER_SIZE,
    SMALL_BATCH_BYTES,
    Batch,
    encode_values,
)
from penstock.log.batch.origin import door_of, origin_flags
from penstock.log.batch.view import view_appended
from penstock.log.errors import OutcomeUnknown
from penstock.log.partitions.joining import MAX_JOINED_BYTES, joined
from penstock.log.partitions.tokens import AppendToken
from penstock.log.storage.files import RealFiles

Queue = list[tuple[Batch, AppendToken]]


def queue_of(*batches: Batch) -> Queue:
    return [(batch, AppendToken(batch.count)) for batch in batches]


def rows(batches: list[Batch]) -> list[tuple[bytes, int]]:
    views = [view_appended(batch, 0) for batch in batches]
    return [
        (view.value(row), view.time_of(row)) for view in views for row in range(int(view.count))
    ]


def test_small_batches_become_one_and_each_append_gets_its_own_offset() -> None:
    queue = queue_of(encode_values([b"a"], 5), encode_values([b"b", b"c"], 5))
    ((batch, token),) = joined(queue, MAX_JOINED_BYTES)
    told: list[int] = []
    for _, part in queue:
        part.on_done(lambda done: told.append(done.base_offset))
    token.base_offset = 40
    assert token.count == batch.count == 3 and not batch.flags
    token.complete()
    assert told == [40, 41] and all(part.done for _, part in queue)


def test_batches_of_different_doors_stay_apart() -> None:
    queue = queue_of(*(encode_values([value], 5) for value in (b"a", b"b", b"c", b"d")))
    for (batch, _), door in zip(queue, ("blipmq", "blipmq", "flymq", ""), strict=True):
        batch.flags |= origin_flags(door)
    found = [batch for batch, _ in joined(queue, MAX_JOINED_BYTES)]
    told = [(door_of(batch.flags), batch.count) for batch in found]
    assert told == [("blipmq", 2), ("flymq", 1), ("", 1)]


def test_an_error_is_that_of_every_append() -> None:
    queue = queue_of(encode_values([b"a"], 5), encode_values([b"b"], 5))
    ((_, token),) = joined(queue, MAX_JOINED_BYTES)
    token.error = OutcomeUnknown("here", "gone")
    token.complete()
    assert all(part.error is token.error and part.base_offset == -1 for _, part in queue)


@given(
    st.lists(
        st.tuples(
            st.lists(st.binary(max_size=20), min_size=1, max_size=4),
            st.integers(min_value=-3, max_value=3),
            st.sampled_from([0, FLAG_AT_MOST_ONCE]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(min_value=HEADER_SIZE, max_value=1000),
)
def test_joining_changes_no_record(parts: list[tuple[list[bytes], int, int]], limit: int) -> None:
    batches: list[Batch] = []
    plain: list[Batch] = []
    for values, time_us, flags in parts:
        for made in (batches, plain):
            made.append(encode_values(list(values), time_us))
            made[-1].flags |= flags
    found = joined(queue_of(*batches), limit)
    assert rows([batch for batch, _ in found]) == rows(plain)
    assert sum(token.count for _, token in found) == sum(batch.count for batch in plain)
    assert len(found) <= len(plain)
    for batch, _ in found:
        assert batch.size() == HEADER_SIZE + len(batch.body)


def test_records_of_different_times_keep_them() -> None:
    queue = queue_of(encode_values([b"a"], 9), encode_values([b"b"], 7))
    ((batch, _),) = joined(queue, MAX_JOINED_BYTES)
    assert batch.flags == FLAG_TIMES and batch.max_time_us == 9
    assert rows([batch]) == [(b"a", 9), (b"b", 7)]


def _keyed() -> Batch:
    builder = BatchBuilder()
    builder.add(b"value", 5, b"key")
    return builder.build()


@pytest.mark.parametrize(
    "other",
    [
        encode_values([b"x" * SMALL_BATCH_BYTES], 5),
        encode_values([b"once"], 5).from_producer(7, 0, 0),
        _keyed(),
    ],
    ids=["large", "producer", "keyed"],
)
def test_what_is_not_small_and_plain_stays_as_it_is(other: Batch) -> None:
    queue = queue_of(*(encode_values([b"v"], 5) for _ in range(4)))
    queue.insert(2, (other, AppendToken(1)))
    found = joined(queue, MAX_JOINED_BYTES)
    assert [token.count for _, token in found] == [2, 1, 2]
    assert found[1] == queue[2]


def test_messages_at_most_once_are_not_joined_with_others() -> None:
    batches = [encode_values([b"v"], 5) for _ in range(4)]
    for batch in batches[2:]:
        batch.flags |= FLAG_AT_MOST_ONCE
    found = joined(queue_of(*batches), MAX_JOINED_BYTES)
    assert [batch.flags for batch, _ in found] == [0, FLAG_AT_MOST_ONCE]


def test_queued_appends_are_one_batch_in_the_log(tmp_path: Path) -> None:
    partition = Bench(RealFiles(), str(tmp_path / "0")).open()
    tokens = [partition.append(encode_values([b"%d" % n], n)) for n in range(5)]
    for token in partition.write_pending().tokens:
        token.complete()
    assert [token.result(0) for token in tokens] == [0, 1, 2, 3, 4]
    assert partition.counters.appended_batches == 1 and partition.counters.appended_records == 5
    assert [row.value for _, row in read_all(partition)] == [b"0", b"1", b"2", b"3", b"4"]
    partition.close()
