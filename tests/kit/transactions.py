"""Transactions for tests: what is staged, what the commit shows, and where it lies meanwhile."""

from collections.abc import Callable
from pathlib import Path

from kit.engines import batch, values_of
from penstock.log.embedded import EmbeddedEngine
from penstock.log.storage.segment import Segment

HOUR_US = 3600 * 1_000_000
# Larger than what a partition writes in one group: each one is a write of its own.
LARGE = 5 * 1024 * 1024


def begin(engine: EmbeddedEngine, name: str = "q") -> str:
    return engine.transactions.begin(name, HOUR_US)


def stage(
    engine: EmbeddedEngine, task: int, *values: bytes, to: str = "a/0", of: str = "q"
) -> None:
    topic, partition = to.split("/")
    engine.transactions.stage(of, task, topic, int(partition), batch(*values))


def everything(engine: EmbeddedEngine) -> dict[str, list[bytes]]:
    return {
        f"{info.name}/{number}": values_of(engine, info.name, number)
        for info in engine.topics()
        for number in range(info.partitions)
    }


def staged_files(engine: EmbeddedEngine) -> list[str]:
    return [str(path) for path in Path(engine.directory, "transactions").rglob("*.stage")]


def first_file(engine: EmbeddedEngine, topic: str, partition: int = 0) -> str:
    """The end of the path of the first segment."""
    return Segment(engine.catalogue.partition(topic, partition).directory, 0, False).path


def fill(engine: EmbeddedEngine) -> dict[str, list[bytes]]:
    """Stages in no good order; gives what the commit of all of it shows."""
    begin(engine)
    for task, value, to in [
        (2, b"2.0", "b/0"), (1, b"1.0", "a/1"), (2, b"2.1", "a/0"), (1, b"1.1", "a/0"),
        (1, b"1.2", "b/0"), (10, b"10.0", "a/0"),
    ]:  # fmt: skip
        stage(engine, task, value, value + b"+", to=to)
    return {
        "a/0": [b"1.1", b"1.1+", b"2.1", b"2.1+", b"10.0", b"10.0+"],
        "a/1": [b"1.0", b"1.0+"],
        "b/0": [b"1.2", b"1.2+", b"2.0", b"2.0+"],
    }


class Loop:
    """An event loop that does not turn before it is told to; from then on it is always quick."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] | None = []

    def post(self, work: Callable[[], None]) -> None:
        if self._waiting is None:
            work()
        else:
            self._waiting.append(work)

    def turn(self) -> None:
        waiting, self._waiting = self._waiting, None
        for work in waiting or ():
            work()


ALL = (1, 2, 10)
NOTHING: dict[str, list[bytes]] = {"a/0": [], "a/1": [], "b/0": []}
