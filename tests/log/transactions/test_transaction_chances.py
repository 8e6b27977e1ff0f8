"""Full disks at random moments, restarts in between: a transaction is seen as a whole or not at all, and in
the end everything is there once."""

import errno
import random
import sqlite3

import pytest
from kit.engines import WAIT_S, Opener, batch, make
from kit.faulty_files import FaultyFiles
from kit.transactions import begin, everything, stage

from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import LogError
from penstock.log.metadata_errors import MetadataError

PLACES = ("a/0", "a/1", "b/0")
STEPS = 14


class Story:
    """What was staged, committed and appended, and whether what is seen fits."""

    def __init__(self, opened: Opener, files: FaultyFiles, seed: int) -> None:
        self.chances = random.Random(seed)
        self.opened = opened
        self.files = files
        self.engine: EmbeddedEngine = opened()
        make(self.engine, "a", 2, segment_bytes=4096, retention_ms=0)
        make(self.engine, "b", retention_ms=0)
        # By name: the values of a transaction in each place, in order.
        self.staged: dict[str, dict[str, list[bytes]]] = {}
        self.confirmed: list[bytes] = []
        self.unknown: set[bytes] = set()

    def fill_the_disk(self) -> None:
        chosen = self.chances
        nth, times = chosen.randint(1, 6), chosen.choice([1, 2, None])
        kind = chosen.choice(["write", "write", "create"])
        self.files.fail(kind, errno.ENOSPC, nth=nth, times=times, suffix=".log")  # type: ignore[arg-type]  # the kinds of calls

    def make_space(self) -> None:
        self.files.clear()

    def commit(self) -> None:
        name = f"q-{len(self.staged)}"
        begin(self.engine, name)
        expected: dict[str, list[bytes]] = {place: [] for place in PLACES}
        for task in range(self.chances.randint(1, 3)):
            for number in range(self.chances.randint(1, 4)):
                place = self.chances.choice(PLACES)
                value = f"{name}.{task}.{number}.".encode() * self.chances.choice([1, 300])
                stage(self.engine, task, value, to=place, of=name)
                expected[place].append(value)
        self.staged[name] = expected
        self.try_again(name)

    def try_again(self, name: str | None = None) -> None:
        name = name or (self.chances.choice(list(self.staged)) if self.staged else None)
        if name is None:
            return
        try:
            self.engine.transactions.commit(name, range(3))
        except (LogError, MetadataError, OSError, sqlite3.Error):
            return
        assert self.seen(name) or self.engine.transactions.unfinished

    def append(self) -> None:
        value = b"of another %d" % len(self.confirmed + list(self.unknown))
        topic, partition = self.chances.choice(PLACES).split("/")
        try:
            self.engine.append(topic, int(partition), batch(value)).result(WAIT_S)
        except LogError:
            self.unknown.add(value)
        else:
            self.confirmed.append(value)

    def restart(self) -> None:
        self.engine = self.opened()

    def look(self) -> None:
        """Of every transaction all or nothing."""
        for name in self.staged:
            self.seen(name)

    def seen(self, name: str) -> bool:
        found = everything(self.engine)
        mark = f"{name}.".encode()
        shown = {
            place: [value for value in found[place] if value.startswith(mark)] for place in PLACES
        }
        whole = {place: list(values) for place, values in self.staged[name].items()}
        nothing: dict[str, list[bytes]] = {place: [] for place in PLACES}
        assert shown in (whole, nothing), f"a part of {name}"
        return shown == whole


@pytest.mark.parametrize("seed", range(12))
def test_all_or_nothing_whenever_the_disk_is_full(
    opened: Opener, files: FaultyFiles, seed: int
) -> None:
    story = Story(opened, files, seed)
    steps = [
        story.fill_the_disk, story.fill_the_disk, story.make_space, story.commit, story.commit,
        story.try_again, story.append, story.append, story.restart,
    ]  # fmt: skip
    for _ in range(STEPS):
        story.chances.choice(steps)()
        story.look()
    story.make_space()
    story.restart()
    story.engine.transactions.expire()
    for name in story.staged:
        state = story.engine.transactions.state(name)
        assert state in ("open", "committed")
        assert story.seen(name) == (state == "committed")
    everywhere = [value for values in everything(story.engine).values() for value in values]
    assert len(set(everywhere)) == len(everywhere)
    assert set(story.confirmed) <= set(everywhere)
    assert story.engine.transactions.unfinished == 0
