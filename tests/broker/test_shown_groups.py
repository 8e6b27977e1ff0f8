"""Groups that only show progress: forgotten when they have not moved for their time, and no others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import Bench

from penstock.broker.shown_groups import ShownGroups

DAY_S = 24 * 3600
DAY_US = DAY_S * 1_000_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "data"))
    made.engine.create_topic("t", 2)
    made.settle()
    yield made
    made.close()


def commit(bench: Bench, group: str, offset: int) -> int:
    change = bench.engine.commit_offset(group, "t", 0, offset)
    bench.settle()
    change.result()
    found = bench.engine.group_updated_us(group)
    assert found is not None
    return found


def test_a_group_that_only_shows_is_forgotten_after_its_time(bench: Bench) -> None:
    committed_us = [commit(bench, group, 3) for group in ("query-1", "query-2", "consumer")]
    now_us = max(committed_us)
    shown = ShownGroups(bench.engine, lambda: now_us)
    for group in ("query-1", "query-2", "never-committed"):
        first, again = shown.note(group, 30 * DAY_S), shown.note(group, 30 * DAY_S)
        assert first is not None and again is None
        bench.settle()
        first.result()
    now_us += 29 * DAY_US
    assert shown.expire() == []
    # Another process knows them too, and one of them lives.
    shown = ShownGroups(bench.engine, lambda: now_us)
    now_us += 2 * DAY_US
    shown.note("query-2", 60 * DAY_S)
    bench.settle()
    assert shown.expire() == ["query-1"]
    bench.settle()
    assert dict(bench.engine.group("query-1")) == {}
    assert bench.engine.group_updated_us("query-1") is None
    assert bench.engine.group("query-2") and bench.engine.group("consumer")
    assert shown.expire() == []


def test_the_time_of_the_last_commit_survives_a_restart(bench: Bench, tmp_path: Path) -> None:
    commit(bench, "g", 1)
    updated_us = commit(bench, "g", 2)
    bench.close()
    again = Bench(str(tmp_path / "data"))
    assert again.engine.group_updated_us("g") == updated_us
    assert again.engine.group_updated_us("nobody") is None
    again.close()
