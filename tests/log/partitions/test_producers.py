"""Idempotent producers: next, repeat, gap, fence, wrap-round, forgetting, snapshots."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.errors import FencedProducer, SequenceGap
from penstock.log.partitions import producers
from penstock.log.partitions.producers import (
    MAX_PRODUCERS,
    REMEMBERED_RUNS,
    TRANSACTION_BIT,
    ProducerTable,
    Repeat,
    SnapshotDamaged,
)

LAST = (1 << 32) - 1


def table_with(*sequences: int, producer: int = 1, epoch: int = 3) -> ProducerTable:
    """A producer that stored these, ten records each, at offset = ten times the place."""
    table = ProducerTable()
    for place, sequence in enumerate(sequences):
        table.stored(producer, epoch, sequence, 10 * place, 10)
    return table


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_new_producer_starts_with_zero(epoch: int) -> None:
    """Of another number nobody knows whether those before it were stored."""
    assert ProducerTable().check(1, epoch, 0) is None
    with pytest.raises(
        SequenceGap, match="sent sequence 77, expected 0: who is not known begins a"
    ):
        ProducerTable().check(1, epoch, 77)


@pytest.mark.parametrize(("last", "following"), [(0, 1), (41, 42), (LAST, 0)])
def test_the_next_one_is_new(last: int, following: int) -> None:
    assert table_with(last).check(1, 3, following) is None


def test_repeats_tell_their_offset() -> None:
    table = table_with(5, 6, 7)
    assert [table.check(1, 3, s) for s in (5, 6, 7)] == [Repeat(0), Repeat(10), Repeat(20)]


def test_a_repeat_beyond_the_remembered_ones_is_still_a_repeat() -> None:
    table = ProducerTable()
    for sequence in range(REMEMBERED_RUNS + 2):
        table.stored(1, 3, sequence, 11 * sequence, 10)  # others write in between
    assert table.check(1, 3, 1) == Repeat(-1)
    assert table.check(1, 3, 2) == Repeat(22)


def test_equal_batches_one_behind_the_other_are_all_remembered() -> None:
    table = table_with(*range(10_000))
    assert [table.check(1, 3, s) for s in (0, 1, 9_999)] == [Repeat(0), Repeat(10), Repeat(99_990)]
    assert len(table.encode()) < 100


@pytest.mark.parametrize(("count", "base_offset"), [(9, 30), (10, 31)])
def test_another_size_or_place_begins_a_new_run(count: int, base_offset: int) -> None:
    table = table_with(5, 6, 7)
    table.stored(1, 3, 8, base_offset, count)
    table.stored(1, 3, 9, base_offset + count, count)
    found = [table.check(1, 3, s) for s in (7, 8, 9)]
    assert found == [Repeat(20), Repeat(base_offset), Repeat(base_offset + count)]


def test_a_snapshot_of_single_batches_is_still_read() -> None:
    body = struct.pack("<QIII", 1, 3, 6, 2) + struct.pack("<IIqIIq", 5, 10, 100, 6, 4, 110)
    table = ProducerTable.decode(b"PSPR" + struct.pack("<I", crc32c(body)) + body)
    assert [table.check(1, 3, s) for s in (5, 6, 7)] == [Repeat(100), Repeat(110), None]
    assert ProducerTable.decode(table.encode()).check(1, 3, 6) == Repeat(110)


def test_repeats_across_the_wrap_round() -> None:
    table = table_with(LAST - 1, LAST, 0, 1)
    assert table.check(1, 3, LAST) == Repeat(10)
    assert table.check(1, 3, LAST - 100) == Repeat(-1)
    assert table.check(1, 3, 2) is None
    with pytest.raises(SequenceGap) as caught:
        table.check(1, 3, 3)
    assert (caught.value.sequence, caught.value.expected) == (3, 2)


@pytest.mark.parametrize("ahead", [1, 1000, (1 << 31) - 1])
def test_a_gap_is_refused(ahead: int) -> None:
    with pytest.raises(SequenceGap):
        table_with(LAST - 5).check(1, 3, (LAST - 4 + ahead) % (1 << 32))


def test_an_older_epoch_is_fenced() -> None:
    with pytest.raises(FencedProducer) as caught:
        table_with(0).check(1, 2, 1)
    assert (caught.value.epoch, caught.value.current_epoch) == (2, 3)


def test_a_newer_epoch_starts_at_zero() -> None:
    table = table_with(5)
    assert table.check(1, 4, 0) is None
    with pytest.raises(SequenceGap):
        table.check(1, 4, 6)
    table.stored(1, 4, 0, 10, 10)
    assert table.check(1, 4, 0) == Repeat(10)
    assert table.check(1, 4, 1) is None
    with pytest.raises(FencedProducer):
        table.check(1, 3, 6)


def test_noting_a_batch_twice_changes_nothing() -> None:
    table = table_with(5, 6, 7)
    before = table.encode()
    table.stored(1, 3, 6, 10, 10)
    assert table.encode() == before


@pytest.mark.parametrize("known", [(), (5,)])
def test_restore_takes_back(known: tuple[int, ...]) -> None:
    table = table_with(*known)
    before = table.encode()
    previous = table.stored(1, 3, 6, 60, 1)
    assert table.encode() != before
    table.restore(1, previous)
    assert table.encode() == before


def test_a_copy_goes_its_own_way() -> None:
    table = table_with(5)
    copy = table.copy()
    table.stored(1, 3, 6, 60, 1)
    assert copy.check(1, 3, 6) is None
    assert table.check(1, 3, 6) == Repeat(60)


def test_the_least_recently_seen_producer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PRODUCERS >= 1000
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    table = ProducerTable()
    for producer in (1, 2, 3):
        table.stored(producer, 0, 0, producer, 1)
    table.stored(1, 0, 1, 4, 1)
    table.stored(4, 0, 0, 5, 1)
    assert len(table) == 3
    assert table.check(2, 0, 0) is None
    assert [table.check(producer, 0, 0) for producer in (1, 3, 4)] == [
        Repeat(1),
        Repeat(3),
        Repeat(5),
    ]


def test_transactions_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    table = ProducerTable()
    transactions = [TRANSACTION_BIT | number for number in range(4)]
    for producer in (*transactions[:3], 1, 2, 3, 4):
        table.stored(producer, 0, 0, 0, 1)
    assert [table.last_sequence(one) for one in transactions] == [0, 0, 0, None]
    assert [table.last_sequence(one) for one in (1, 2, 3, 4)] == [None, 0, 0, 0]
    table.stored(transactions[3], 0, 0, 0, 1)
    assert [table.last_sequence(one) for one in transactions] == [None, 0, 0, 0]
    assert len(table) == len(table.copy()) == len(ProducerTable.decode(table.encode())) == 6


IDS = st.integers(0, 5).flatmap(lambda one: st.sampled_from([one, TRANSACTION_BIT | one]))


@given(st.lists(st.tuples(IDS, st.integers(0, 2), st.integers(0, LAST)), max_size=40))
def test_a_snapshot_holds_everything(batches: list[tuple[int, int, int]]) -> None:
    table = ProducerTable()
    for place, (producer, epoch, sequence) in enumerate(batches):
        table.stored(producer, epoch, sequence, place, 1)
    again = ProducerTable.decode(table.encode())
    assert len(again) == len(table)
    assert again.encode() == table.encode()


def test_every_flipped_bit_and_every_cut_of_a_snapshot_is_found() -> None:
    data = table_with(1, 2, 3).encode()
    for size in range(len(data)):
        with pytest.raises(SnapshotDamaged):
            ProducerTable.decode(data[:size])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(SnapshotDamaged):
            ProducerTable.decode(bytes(damaged))
