"""Runs of deliveries against one entry for each message."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.delivery.inflight import Inflight, Run, RunTable


def run(first_tag: int, count: int, size_bytes: int = 0, **more: int) -> Run:
    return Run(first_tag, count, 0, 1_000 + first_tag, size_bytes, 0, False, **more)


def tags(runs: list[Run]) -> list[int]:
    return [tag for found in runs for tag in range(found.first_tag, found.end_tag)]


@given(st.integers(1, 50), st.integers(0, 10_000), st.data())
def test_parts_of_a_run_have_all_its_bytes(count: int, size: int, data: st.DataObject) -> None:
    whole = run(7, count, size)
    cuts = sorted(data.draw(st.lists(st.integers(8, 7 + count), max_size=4)))
    ends = [7, *cuts, whole.end_tag]
    parts = [whole.part(first, end) for first, end in pairwise(ends) if first < end]
    assert sum(part.size_bytes for part in parts) == size
    assert tags(parts) == tags([whole])
    assert all(part.first_offset - part.first_tag == 1_000 for part in parts)


class TableMachine(RuleBasedStateMachine):
    """Adds, takes and finds by tag; the model is a set of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RunTable()
        self.model: set[int] = set()

    @rule(first=st.integers(1, 60), count=st.integers(1, 12))
    def add(self, first: int, count: int) -> None:
        wanted = set(range(first, first + count))
        if not wanted & self.model:
            self.table.add(run(first, count))
            self.model |= wanted

    @rule(first=st.integers(0, 75), count=st.integers(1, 20))
    def take(self, first: int, count: int) -> None:
        wanted = set(range(first, first + count)) & self.model
        found = self.table.take(first, first + count)
        assert tags(found) == sorted(wanted)
        assert all(part.first_offset == 1_000 + part.first_tag for part in found)
        self.model -= wanted

    @rule(first=st.integers(0, 75), count=st.integers(1, 20))
    def find(self, first: int, count: int) -> None:
        wanted = set(range(first, first + count)) & self.model
        found = self.table.find(first, first + count)
        assert (found is not None) == bool(wanted)
        if found is not None:
            assert min(wanted) in range(found.first_tag, found.end_tag)

    @invariant()
    def counts(self) -> None:
        assert self.table.messages == len(self.model)


@dataclass
class _Message:
    deadline_us: int
    rounds: int = field(default=1)


class InflightMachine(RuleBasedStateMachine):
    """Deliveries with deadlines; what is due comes out once, and may be delivered again."""

    def __init__(self) -> None:
        super().__init__()
        self.inflight = Inflight()
        self.model: dict[int, _Message] = {}
        self.due: list[Run] = []
        self.next_tag = 1
        self.now_us = 0

    @rule(count=st.integers(1, 10), wait_us=st.integers(1, 30))
    def deliver(self, count: int, wait_us: int) -> None:
        deadline_us = self.now_us + wait_us
        self.inflight.add(run(self.next_tag, count, deadline_us=deadline_us))
        for tag in range(self.next_tag, self.next_tag + count):
            self.model[tag] = _Message(deadline_us)
        self.next_tag += count

    @rule(first=st.integers(1, 60), count=st.integers(1, 8))
    def acknowledge(self, first: int, count: int) -> None:
        wanted = sorted(tag for tag in range(first, first + count) if tag in self.model)
        assert tags(self.inflight.take(first, first + count)) == wanted
        for tag in wanted:
            del self.model[tag]

    @rule(passed_us=st.integers(0, 20))
    def time_passes(self, passed_us: int) -> None:
        self.now_us += passed_us
        found = self.inflight.due(self.now_us)
        expected = [
            tag for tag, message in self.model.items() if message.deadline_us <= self.now_us
        ]
        assert sorted(tags(found)) == sorted(expected)
        for tag in expected:
            del self.model[tag]
        self.due.extend(found)

    @rule(at=st.integers(0, 5), wait_us=st.integers(1, 30))
    def deliver_again(self, at: int, wait_us: int) -> None:
        if at < len(self.due):
            again = self.due.pop(at)
            again.deadline_us = self.now_us + wait_us
            self.inflight.add(again)
            for tag in range(again.first_tag, again.end_tag):
                self.model[tag] = _Message(again.deadline_us)

    @invariant()
    def counts(self) -> None:
        assert self.inflight.messages == len(self.model)


TestRunTable = TableMachine.TestCase
TestInflight = InflightMachine.TestCase
