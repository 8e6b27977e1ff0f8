"""Cursors: sharing message by message, settling, redelivery, dead letters, the committed offset."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY, Bench, numbered

from penstock.broker.access.access import Principal
from penstock.broker.delivery.cursor_reader import Reader
from penstock.broker.delivery.lane import CursorTerms
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.format import Batch

GROUP = CursorTerms(group="billing", start="earliest")
ALONE = CursorTerms(start="latest")


class Member:
    """A reader that keeps what it got: (partition, offset) and value."""

    def __init__(self, bench: Bench, terms: CursorTerms = GROUP, auto_commit: bool = False) -> None:
        self.bench = bench
        self.woken = 0
        self.ended = 0
        self.reader: Reader = bench.broker.cursors.join(
            ANYBODY, "t", terms, auto_commit, self._wake, self._end, "test"
        )

    def _wake(self) -> None:
        self.woken += 1

    def _end(self) -> None:
        self.ended += 1

    def take(self, most: int = 1_000, max_bytes: int = 1 << 20) -> dict[tuple[int, int], bytes]:
        """What one `take` gives."""
        done: list[Any] = []
        if not self.reader.take(most, max_bytes, done.append):
            return {}
        self.bench.wait_for(lambda: done)
        return {
            (run.partition, view.offset_of(row)): view.value(row)
            for run, views in done[0]
            for view in views
            for row in range(view.first_row, view.last_row)
        }

    def values(self, most: int = 1_000) -> list[bytes]:
        return list(self.take(most).values())

    def acknowledge(self, first: int, end: int) -> list[tuple[int, int]]:
        unknown = self.reader.acknowledge(0, first, end)
        self.reader.commit()
        self.bench.settle()
        return unknown

    def leave(self) -> None:
        self.reader.leave()
        self.bench.settle()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    made.broker.create_topic(ANYBODY, "t", 1)
    made.settle()
    yield made
    made.close()


def committed(bench: Bench, group: str = "billing") -> int | None:
    return bench.broker.committed_offset(group, "t", 0)


def test_readers_of_a_group_share_and_groups_each_get_everything(bench: Bench) -> None:
    bench.publish("t", *numbered(range(10)))
    one, other = Member(bench), Member(bench)
    elsewhere = Member(bench, replace(GROUP, group="audit"))
    first, second = one.values(), other.values()
    assert first and second  # message by message, within one partition
    assert sorted(first + second + one.values() + other.values()) == numbered(range(10))
    assert elsewhere.values() == numbered(range(10))


def test_a_reader_alone_begins_at_the_end(bench: Bench) -> None:
    bench.publish("t", b"before")
    one, other = Member(bench, ALONE), Member(bench, ALONE)
    assert one.take() == {}
    bench.publish("t", b"behind")
    assert (one.woken, one.values(), other.values()) == (1, [b"behind"], [b"behind"])
    assert one.acknowledge(1, 2) == []
    assert list(bench.engine.groups()) == []


def test_what_is_settled_without_a_gap_is_committed(bench: Bench) -> None:
    bench.publish("t", *numbered(range(5)))
    one = Member(bench)
    assert one.values() == numbered(range(5))
    bench.settle()
    assert committed(bench) == 0
    assert one.acknowledge(0, 2) == []
    assert committed(bench) == 2
    assert one.acknowledge(3, 4) == []
    assert committed(bench) == 2
    assert one.acknowledge(2, 3) == []
    assert committed(bench) == 4


def test_a_group_goes_on_where_it_was(bench: Bench) -> None:
    bench.publish("t", *numbered(range(5)))
    one = Member(bench)
    one.take()
    one.acknowledge(0, 2)
    one.acknowledge(3, 4)
    one.leave()
    # 3 is settled, though the committed offset is before it: known as long as the server runs.
    assert Member(bench).values() == [b"2", b"4"]


def test_a_group_that_was_never_read_gets_what_comes_after_it_came(bench: Bench) -> None:
    bench.publish("t", b"before")
    terms = CursorTerms(group="late")
    Member(bench, terms).leave()
    bench.publish("t", b"behind")
    assert len(bench.broker.cursors) == 0  # nothing is kept but the committed offset
    assert Member(bench, terms).values() == [b"behind"]


def test_latest_ignores_what_was_committed(bench: Bench) -> None:
    one = Member(bench)
    one.leave()
    bench.publish("t", b"between")
    assert Member(bench, replace(GROUP, start="latest")).values() == []


def test_a_restart_keeps_the_committed_offset(tmp_path: Path) -> None:
    first = Bench(str(tmp_path / "data"))
    first.broker.create_topic(ANYBODY, "t", 1)
    first.publish("t", *numbered(range(4)))
    one = Member(first)
    one.take()
    one.acknowledge(0, 3)
    first.close()
    again = Bench(str(tmp_path / "data"))
    assert Member(again).values() == [b"3"]
    again.close()


def test_what_nobody_has_in_flight_is_told(bench: Bench) -> None:
    bench.publish("t", *numbered(range(5)))
    one = Member(bench)
    one.take(2)
    assert one.reader.acknowledge(0, 0, 9) == [(2, 9)]
    assert one.reader.acknowledge(0, 0, 1) == [(0, 1)]
    assert one.reader.acknowledge(7, 0, 1) == [(0, 1)]
    assert one.reader.refuse(0, 0, 1) == [(0, 1)]


def test_refused_messages_come_again_later_and_others_overtake_them(bench: Bench) -> None:
    bench.publish("t", *numbered(range(3)))
    one = Member(bench)
    assert one.values(2) == [b"0", b"1"]
    assert one.reader.refuse(0, 0, 1) == []
    assert one.values() == [b"2"]
    assert one.take() == {}
    bench.advance(100)
    assert one.woken == 1
    assert one.values() == [b"0"]
    one.reader.refuse(0, 0, 1)
    bench.advance(199)
    assert one.take() == {}
    bench.advance(1)
    assert one.take() == {(0, 0): b"0"}  # the same place each time


def test_refused_too_often_it_is_a_dead_letter(bench: Bench) -> None:
    bench.publish("t", b"poison", b"good")
    one = Member(bench, replace(GROUP, max_deliveries=2))
    one.take()
    one.acknowledge(1, 2)
    one.reader.refuse(0, 0, 1)
    bench.advance(100)
    assert one.values() == [b"poison"]
    one.reader.refuse(0, 0, 1)
    bench.settle()
    (letter,) = bench.read("t.dlq").views[0].records()
    assert letter.value == b"poison"
    assert (b"penstock-deliveries", b"2") in letter.headers
    assert (b"penstock-protocol", b"test") in letter.headers
    assert committed(bench) == 2


def test_what_is_not_settled_in_time_comes_again(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    one, other = Member(bench, replace(GROUP, ack_time_us=1_000_000)), Member(bench)
    assert len(one.take()) == 1
    one.take()
    assert other.take() == {}
    bench.advance(1_000)
    bench.advance(100)
    assert other.woken
    assert sorted(other.values()) == [b"a", b"b"]
    # Late, but it is settled all the same.
    assert one.acknowledge(0, 2) == []
    assert committed(bench) == 2


def test_what_a_lost_reader_had_goes_to_the_others_at_once(bench: Bench) -> None:
    bench.publish("t", *numbered(range(4)))
    one, other = Member(bench), Member(bench)
    taken = one.values() + one.values()
    assert taken
    one.leave()
    found: list[bytes] = []
    while got := other.values():
        found += got
    assert set(taken) <= set(found)
    assert other.reader.acknowledge(0, 0, 1) == []


def test_a_reader_has_so_much_in_flight_and_no_more(bench: Bench) -> None:
    bench.publish("t", *numbered(range(5)))
    one = Member(bench, replace(GROUP, max_in_flight=2))
    assert one.values() == [b"0", b"1"]
    assert one.take() == {}
    assert one.acknowledge(0, 1) == []
    assert one.values() == [b"2"]


def test_auto_commit_settles_what_is_taken(bench: Bench) -> None:
    bench.publish("t", *numbered(range(3)))
    one = Member(bench, auto_commit=True)
    assert one.values(2) == [b"0", b"1"]
    bench.advance(200)
    bench.settle()
    assert committed(bench) == 2
    one.values()
    one.leave()
    assert committed(bench) == 3
    assert len(bench.broker.cursors) == 0


def test_all_partitions_are_read_also_those_that_come_later(bench: Bench) -> None:
    one = Member(bench)
    assert one.take() == {}
    bench.broker.change_topic(ANYBODY, "t", {}, 3)
    bench.settle()
    for partition in range(3):
        bench.publish("t", b"%d" % partition, partition=partition)
    assert sorted(value for _ in range(3) for value in one.values()) == numbered(range(3))


def test_a_deleted_topic_ends_its_readers(bench: Bench) -> None:
    one = Member(bench)
    one.take()
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    assert one.ended == 1
    assert one.take() == {}
    assert len(bench.broker.cursors) == 0
    with pytest.raises(BrokerError) as refused:
        Member(bench)
    assert refused.value.code is Code.UNKNOWN_TOPIC


def test_records_that_are_gone_need_no_settling(bench: Bench) -> None:
    bench.publish("t", *numbered(range(3)))
    one = Member(bench)
    one.take(1)
    bench.broker.purge_topic(ANYBODY, "t")
    bench.settle()
    bench.publish("t", b"new")
    # The first read finds nothing where it was.
    assert [one.values(), one.values()] == [[], [b"new"]]
    assert one.acknowledge(3, 4) == []
    assert one.acknowledge(0, 1) == []
    assert committed(bench) == 4


def test_rights_are_asked_each_time(bench: Bench) -> None:
    nobody = Principal("nobody", "guest")
    with pytest.raises(BrokerError) as refused:
        bench.broker.cursors.join(nobody, "t", GROUP, False, lambda: None, lambda: None, "test")
    assert refused.value.code is Code.NOT_AUTHORIZED
    bench.publish("t", b"x")
    one = Member(bench)
    one.reader.principal = nobody
    for ask in (one.take, lambda: one.reader.acknowledge(0, 0, 1)):
        with pytest.raises(BrokerError):
            ask()


def test_idle_cursors_read_nothing(bench: Bench) -> None:
    """A group that waits is told by the log; it does not ask again and again."""
    one = Member(bench)
    assert one.take() == {}
    bench.settle()
    assert bench.run_posted() == 0
    assert one.woken == 0


def test_expired_records_leave_gaps_that_are_settled(bench: Bench) -> None:
    bench.publish_batch("t", _expiring(bench))
    bench.settle()
    bench.clock.now_us += 10_000_000
    one = Member(bench)
    found = one.take()
    assert found == {(0, 1): b"stays"}
    assert one.acknowledge(1, 2) == []
    one.take()
    one.reader.commit()
    bench.settle()
    assert committed(bench) == 3


def _expiring(bench: Bench) -> Batch:
    builder = BatchBuilder()
    soon = bench.engine.run_us() + 1_000
    builder.add(b"goes", 1, None, None, soon)
    builder.add(b"stays", 1, None, None, 0)
    builder.add(b"goes too", 1, None, None, soon)
    return builder.build()


def test_readers_that_leave_when_their_topic_is_deleted(bench: Bench) -> None:
    """As sessions do. There is no offset any more that could be committed."""
    bench.publish("t", *numbered(range(3)))
    members = [Member(bench, auto_commit=auto) for auto in (True, False, True)]
    for one in members:
        one.reader.ended = one.reader.leave
    assert members[0].values()
    bench.broker.delete_topic(ANYBODY, "t")
    bench.settle()
    assert all(one.reader.gone for one in members)
    assert len(bench.broker.cursors) == 0
