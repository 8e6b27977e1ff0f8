"""The guard in conftest.py: tests never run in silence on another build than was asked for."""

import pytest
from conftest import complaint

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
