"""A run gives way to who wants the tables for a moment, and only between its batches."""

import threading
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.spark.pipeline.errors import InUse
from penstock.spark.pipeline.lock import DoesNotGiveWay, only_one, tables_to_oneself
from penstock.spark.pipeline.project import Project, load_project
from penstock.spark.pipeline.starter import write_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    write_project(tmp_path / "shop")
    return load_project(tmp_path / "shop")


def test_one_run_at_a_time(project: Project) -> None:
    with only_one(project), pytest.raises(InUse), only_one(project):
        raise AssertionError("unreachable")
    with only_one(project) as held:
        assert not held.wanted
        held.give_way()


def test_a_run_that_does_not_give_way(project: Project) -> None:
    refused = pytest.raises(DoesNotGiveWay, match="has not come to its end in 0 s")
    with only_one(project), refused, tables_to_oneself(project, 0.0):
        raise AssertionError("unreachable")
    reached = False
    with tables_to_oneself(project, 0.0):
        reached = True
    assert reached, "the run is over"


def test_a_run_gives_way_and_waits_for_the_end(project: Project) -> None:
    inside, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def other() -> None:
        with tables_to_oneself(project, HANG_S):
            steps.append("other has them")
            inside.set()
            assert go_on.wait(HANG_S)
            steps.append("other is done")

    with only_one(project) as held:
        thread = threading.Thread(target=other)
        thread.start()
        while not held.wanted:
            assert thread.is_alive()
        assert not inside.is_set()
        go_on.set()
        held.give_way()
        steps.append("run goes on")
        thread.join(HANG_S)
        with pytest.raises(DoesNotGiveWay), tables_to_oneself(project, 0.0):
            raise AssertionError("unreachable")
    assert steps == ["other has them", "other is done", "run goes on"]
