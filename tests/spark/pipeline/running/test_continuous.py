"""What follows what in a continuous run: on a clock of the test, without Spark. That streams and updates
may follow each other on the same tables is shown by test_updates.py."""

import threading
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.client.errors import ConnectFailed
from penstock.errors import PenstockError
from penstock.spark.pipeline.errors import UpdateFailed
from penstock.spark.pipeline.project import load_project
from penstock.spark.pipeline.running.continuous import (
    LOOK_EVERY_S,
    MAX_PAUSE_S,
    MOST_FAILURES,
    REFRESH_EVERY_S,
    STEADY_TIME_S,
    Continuous,
)
from penstock.spark.pipeline.running.definitions import Definitions
from penstock.spark.pipeline.running.updates import Update
from penstock.spark.pipeline.starter import write_project

FAILURE = UpdateFailed("it is broken", "")
AWAY = ConnectFailed("127.0.0.1:1", "refused")


class Turns(threading.Event):
    """Time passes while somebody waits, and is over after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self.waits: list[float] = []
        self._ends_s = seconds

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now_s += timeout
        return self.now_s >= self._ends_s


class World:
    """All that a run meets: it fails, grows and changes as it is told to. What was asked of it is in
    `asked`, with the second."""

    def __init__(self, tmp_path: Path, seconds: float) -> None:
        write_project(tmp_path / "shop")
        self.project = load_project(tmp_path / "shop")
        self.turns = Turns(seconds)
        self.asked: list[tuple[str, float]] = []
        self.names = ["bronze"]
        self.others: tuple[str, ...] = ("a_view",)
        self.grows = True
        self.topics_change_s = float("inf")
        self.update_fails = 0
        self.fails_with: PenstockError = FAILURE
        self.query_fails_s = float("inf")
        self.fits = True
        self.today = date(2026, 1, 31)
        self.wanted_s = float("inf")
        self.refresh_takes_s = 0.5

    def run(self) -> list[str]:
        held, news, runs = cast(Any, self), cast(Any, self), cast(Any, self)
        Continuous(
            self.project,
            runs,
            news,
            held,
            self.turns,
            1.0,
            lambda: self.turns.now_s,
            lambda: self.today,
        ).go()
        return [what for what, _ in self.asked]

    def _note(self, what: str) -> None:
        self.asked.append((what, self.turns.now_s))

    # --- updates ----------------------------------------------------------------------------------

    def update(self, definitions: Definitions) -> Update:
        self._note("update")
        if self.update_fails:
            self.update_fails -= 1
            raise self.fails_with
        return Update()

    def refresh(self, tables: Sequence[str], definitions: Definitions) -> Update:
        self._note("refresh" if tables else "look")
        if tables:
            self.turns.now_s += self.refresh_takes_s
        return Update(seconds=self.refresh_takes_s)

    def streams(self, streams: object) -> bool:
        return self.grows

    def failure(self, error: UpdateFailed, pause_s: float) -> None:
        self._note(f"failure {pause_s:g}")

    def start_streams(self, definitions: Definitions, flows: Mapping[str, str]) -> "World":
        self._note("start")
        return self

    # --- streams ----------------------------------------------------------------------------------

    def check(self) -> None:
        if self.turns.now_s >= self.query_fails_s:
            self.query_fails_s = float("inf")
            raise FAILURE

    def fit(self, definitions: Definitions) -> bool:
        return self.fits

    def stop(self, most_s: float) -> None:
        self._note("stop")

    # --- the broker, and who wants the tables -----------------------------------------------------

    def update_begins(self) -> None:
        self._seen_s = self.turns.now_s

    def is_there(self) -> bool:
        return self.grows

    def topics_changed(self) -> bool:
        return self._seen_s < self.topics_change_s <= self.turns.now_s

    @property
    def wanted(self) -> bool:
        return self.turns.now_s >= self.wanted_s

    def give_way(self) -> None:
        if self.wanted:
            self._note("give way")
            self.wanted_s = float("inf")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, 30.0)


def test_streams_go_on_and_views_follow_at_a_pace(world: World) -> None:
    assert world.run() == ["update", "start", *["refresh"] * 5, "stop"]
    times_s = [when_s for what, when_s in world.asked if what == "refresh"]
    assert all(later - one >= REFRESH_EVERY_S for one, later in pairwise(times_s))


def test_dear_views_have_a_quarter_of_the_time(world: World) -> None:
    world.refresh_takes_s = 4.0
    assert world.run().count("refresh") == 2


def test_nothing_new_refreshes_nothing(world: World) -> None:
    world.grows = False
    assert world.run() == ["update", "start", "stop"]


def test_without_streams_there_is_an_update_for_news(world: World) -> None:
    world.names = []
    asked = world.run()
    assert asked[:6] == ["update", "start", "stop"] * 2 and asked.count("update") == 30


def test_a_new_topic_is_looked_at_soon_and_others_in_a_minute(world: World) -> None:
    world.others = ()
    world.topics_change_s = 10.0
    world.run()
    assert [one for one in world.asked if one[0] == "look"] == [("look", 10.0)]


@pytest.mark.parametrize("what", ["flows", "files"])
def test_a_change_of_the_project_is_followed(tmp_path: Path, what: str) -> None:
    world = World(tmp_path, LOOK_EVERY_S + 1.5)
    world.others = ()
    if what == "flows":
        world.fits = False
        assert world.run() == ["update", "start", "look", "stop", "update", "start", "stop"]
        return
    add = world.project.directory / "transformations" / "more.sql"
    start = world.start_streams

    def started(definitions: Definitions, flows: Mapping[str, str]) -> World:
        add.write_text("-- nothing")
        return start(definitions, flows)

    world.start_streams = started  # type: ignore[method-assign]  # the project changes after its update
    assert world.run() == ["update", "start", "stop", "update", "start", "stop"]


def test_who_wants_the_tables_gets_them(world: World) -> None:
    world.wanted_s = 3.0
    world.others = ()
    assert world.run() == ["update", "start", "stop", "give way", "update", "start", "stop"]


def test_a_new_day_removes_old_ones(world: World) -> None:
    world.others = ()
    check = world.check

    def checked() -> None:
        check()
        world.today = date(2026, 2, 1)

    world.check = checked  # type: ignore[method-assign]  # midnight comes while streams run
    assert world.project.keep
    assert world.run() == ["update", "start", "stop", "update", "start", "stop"]


@pytest.mark.parametrize("failure", [FAILURE, AWAY], ids=["update", "broker away"])
def test_failures_are_tried_again_ever_more_rarely(tmp_path: Path, failure: PenstockError) -> None:
    world = World(tmp_path, 10_000.0)
    world.update_fails = MOST_FAILURES
    world.fails_with = failure
    with pytest.raises(type(failure), match=str(failure)):
        world.run()
    pauses = [float(what.split()[1]) for what, _ in world.asked if what.startswith("failure")]
    assert pauses == sorted(pauses) and pauses[:2] == [2.0, 4.0] and pauses[-1] == MAX_PAUSE_S
    assert len(pauses) == MOST_FAILURES - 1


@pytest.mark.parametrize(("lived_s", "pause"), [(5.0, "failure 8"), (STEADY_TIME_S, "failure 2")])
def test_a_query_that_fails_is_a_failure(tmp_path: Path, lived_s: float, pause: str) -> None:
    """One that has run well for a while begins to count anew."""
    world = World(tmp_path, 10_000.0)
    world.others = ()
    world.update_fails = 2
    world.query_fails_s = 6.0 + lived_s
    found: list[str] = []
    world.failure = lambda error, pause_s: found.append(f"failure {pause_s:g}")  # type: ignore[method-assign]  # to end it
    world.turns._ends_s = 6.0 + lived_s + 1.0
    world.run()
    assert found == ["failure 2", "failure 4", pause]
