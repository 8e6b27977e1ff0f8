"""Limits of a real system, in child processes that have them: descriptors and the size of files.

RLIMIT_FSIZE is the honest full disk that needs no rights: the kernel writes what still fits, and then
nothing. What each errno of a full disk gives is in test_disk_errors.py.
"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import HANG_S

CHILD = Path(__file__).with_name("limits_child.py")
SOURCE = Path(__file__).parents[2] / "src"


def run_child(what: str, directory: Path, *more: str) -> str:
    """Gives what it said in its log."""
    done = subprocess.run(
        [sys.executable, str(CHILD), what, str(directory), *more],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("partitions", [2_500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_partitions_with_1024_descriptors(tmp_path: Path, partitions: int) -> None:
    assert run_child("descriptors", tmp_path, str(partitions)) == ""


def test_files_that_cannot_grow_and_then_can(tmp_path: Path) -> None:
    said = run_child("size", tmp_path).splitlines()
    assert len(said) == 1, "refused more than once, but one line is enough"
    assert said[0].endswith(f"nothing was stored: {os.strerror(errno.EFBIG)}")
