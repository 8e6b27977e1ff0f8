"""Of a series of transactions only the newest run goes on, over restarts too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.live_server import LiveServer

from penstock.broker.errors import BrokerError, Code
from penstock.server.flight.fences import MAX_FORMER, MEMORY_US, REFRESHED_US, SPACE, Fences


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data") as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


def refused(fences: Fences, series: str, run: str, owner: str = "ann\n") -> str:
    with pytest.raises(BrokerError) as caught:
        fences.pass_or_refuse(owner, series, run)
    assert caught.value.code is Code.FENCED_PRODUCER
    return str(caught.value)


def test_a_new_run_takes_over(server: LiveServer) -> None:
    metadata = server.server.engine.metadata
    fences = Fences(metadata, Clock())
    for run in ("first", "first", "second", "second"):
        fences.pass_or_refuse("ann\n", "orders", run)
    assert refused(fences, "orders", "first") == "run first of 'orders' was followed by second"
    fences.pass_or_refuse("ann\n", "orders", "second")
    # Another process knows it too. Other series and other owners have runs of their own.
    fences = Fences(metadata, Clock())
    refused(fences, "orders", "first")
    fences.pass_or_refuse("ann\n", "others", "first")
    fences.pass_or_refuse("bob\n", "orders", "first")
    fences.pass_or_refuse("ann\n", "orders", "third")
    refused(fences, "orders", "second")


def test_what_is_remembered_is_bounded(server: LiveServer) -> None:
    metadata = server.server.engine.metadata
    clock = Clock()
    fences = Fences(metadata, clock)
    for number in range(MAX_FORMER + 3):
        fences.pass_or_refuse("ann\n", "orders", str(number))
    refused(fences, "orders", "2")
    (record,) = metadata.list(SPACE)
    assert len(record.value) < 2000
    # A run that lives is noted again; a series that is over is forgotten when another one begins.
    fences.pass_or_refuse("ann\n", "old", "x")
    clock.now_us += REFRESHED_US
    fences.pass_or_refuse("ann\n", "orders", str(MAX_FORMER + 2))
    clock.now_us += MEMORY_US - REFRESHED_US + 1
    fences.pass_or_refuse("ann\n", "new", "x")
    assert [one.name.rpartition("/")[2] for one in metadata.list(SPACE)] == ["new", "orders"]
