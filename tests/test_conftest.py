"""conftest.py: no silent run on another build than was asked for; a long run tells where its time went."""

import pytest
from conftest import LONG_RUN_S, complaint, time_by_directory

from penstock import BuildInfo


def build(*, compiled: tuple[str, ...] = (), pure: tuple[str, ...] = ()) -> BuildInfo:
    return BuildInfo(version="0", python="3", compiled=compiled, pure=pure)


@pytest.mark.parametrize("expected", [None, "pure"])
def test_a_pure_build_may_run_as_pure(expected: str | None) -> None:
    assert complaint(build(pure=("a",)), expected) is None


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (build(pure=("a",)), "compiled"),
        (build(compiled=("a",)), "pure"),
        (build(compiled=("a",), pure=("b",)), "compiled"),
        (build(compiled=("a",), pure=("b",)), "pure"),
        (build(pure=("a",)), "fast"),
    ],
)
def test_anything_else_is_refused(info: BuildInfo, expected: str) -> None:
    reason = complaint(info, expected)
    assert reason is not None and f"PENSTOCK_EXPECT={expected}" in reason


def test_a_long_run_says_where_its_time_went() -> None:
    spent = [("tests/log/test_a.py::test", LONG_RUN_S), ("tests/cli/a/b.py::test[x/y]", 1.0)]
    assert time_by_directory(spent) == ["    60 s  log", "     1 s  cli"]
    assert time_by_directory(spent[1:]) == []
