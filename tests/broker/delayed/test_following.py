"""An hour that is taken over, on a real log: what its last mark knows is in the index before anything of it
is delivered, however old the ends are that are told."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker.bench import Bench

from penstock.broker.delayed.following import Following
from penstock.broker.delayed.hour import CANCELS, MARKS, MESSAGES, PLACE, hour_name
from penstock.broker.delayed.marks import Mark
from penstock.broker.delayed.shared_hour import SharedHour
from penstock.log.batch.format import encode_values
from penstock.log.engine import Pending

NUMBER = 7
PARTITIONS = 3


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(str(tmp_path / "data"), commit_threads=1)
    opened.engine.create_topic(hour_name(NUMBER), PARTITIONS)
    yield opened
    opened.close()


def append(bench: Bench, partition: int, values: list[bytes]) -> None:
    token = bench.engine.append(hour_name(NUMBER), partition, encode_values(values, 1))
    until(bench, lambda: token.done)


def until(bench: Bench, condition: Callable[[], object]) -> None:
    while not condition():
        if not bench.run_posted():
            bench.run_one()


def test_the_mark_knows_more_than_the_ends_that_are_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a broker that is behind: both ends are those of before the last run."""
    append(bench, CANCELS, [PLACE.pack(0, 0)])
    old = {CANCELS: 0, MESSAGES: 0, MARKS: 1}
    append(bench, MARKS, [Mark(1, (0, 0), 1, 1, 0).encode()])

    def told(topic: str, partition: int, seen: int = 0) -> Pending[tuple[int, int]]:
        ends: Pending[tuple[int, int]] = Pending()
        ends.settle((0, old[partition]), None)
        return ends

    monkeypatch.setattr(bench.engine, "fresh_offsets", told)
    hour = SharedHour(NUMBER, 1)
    following = Following(bench.broker, hour, lambda _: None, lambda _: None)
    following.begin()
    until(bench, lambda: following._messages is not None)
    bench.run_posted()
    assert hour.cancels_end == 1
    assert not hour.loaded, "the message that the mark knows of is not there yet"
    following.stop()
