"""One process per data directory, tried with real second processes."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.errors import PenstockError
from penstock.log.storage.lock import LOCK_FILE_NAME, DataDirectoryInUse, DataDirectoryLock, Holder

HOLD = """
import sys
from penstock.log.storage.lock import DataDirectoryLock
lock = DataDirectoryLock(sys.argv[1], clock_s=lambda: 1_700_000_000.0)
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holding_process(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """A second process that holds the lock until a line comes, and lives until another one."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), "--serve\nnow", "x" * 5000],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


def test_the_second_process_hears_who_holds_the_directory(tmp_path: Path) -> None:
    with holding_process(tmp_path) as child:
        with pytest.raises(DataDirectoryInUse) as raised:
            DataDirectoryLock(str(tmp_path))
        holder = raised.value.holder
        assert holder is not None
        assert (holder.pid, holder.host, holder.started_s) == (
            child.pid,
            os.uname().nodename,
            1_700_000_000.0,
        )
        text = str(raised.value)
        for part in (str(tmp_path), str(child.pid), os.uname().nodename, "--serve?now"):
            assert part in text
        assert "2023-11-14 22:13:20 UTC" in text
        assert text.isprintable() and len(text) < 600
        assert isinstance(raised.value, PenstockError)
        assert str(pickle.loads(pickle.dumps(raised.value))) == text


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    with holding_process(tmp_path) as child:
        child.kill()
        child.wait(HANG_S)
        with DataDirectoryLock(str(tmp_path)):
            with pytest.raises(DataDirectoryInUse) as raised:
                DataDirectoryLock(str(tmp_path))
            assert raised.value.holder is not None
            assert raised.value.holder.pid == os.getpid()


def test_release_lets_the_next_process_in(tmp_path: Path) -> None:
    with holding_process(tmp_path) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "released\n"
        DataDirectoryLock(str(tmp_path)).release()


def test_release_twice_and_take_again(tmp_path: Path) -> None:
    first = DataDirectoryLock(str(tmp_path))
    first.release()
    with DataDirectoryLock(str(tmp_path)):
        first.release()
        with pytest.raises(DataDirectoryInUse):
            DataDirectoryLock(str(tmp_path))
    assert (tmp_path / LOCK_FILE_NAME).read_bytes() == b""


def test_a_refused_lock_leaves_the_name_and_no_descriptor(tmp_path: Path) -> None:
    with DataDirectoryLock(str(tmp_path)):
        before = (tmp_path / LOCK_FILE_NAME).read_bytes()
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(DataDirectoryInUse):
            DataDirectoryLock(str(tmp_path))
        assert (tmp_path / LOCK_FILE_NAME).read_bytes() == before
        assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'{"pid": "x"}', b"9" * 100_000])
def test_a_holder_without_a_name(tmp_path: Path, text: bytes) -> None:
    with DataDirectoryLock(str(tmp_path)):
        (tmp_path / LOCK_FILE_NAME).write_bytes(text)
        with pytest.raises(DataDirectoryInUse, match="left no name") as raised:
            DataDirectoryLock(str(tmp_path))
        assert raised.value.holder is None


def test_an_old_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE_NAME).write_bytes(b"x" * 10_000)
    with (
        DataDirectoryLock(str(tmp_path)),
        pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()} on"),
    ):
        DataDirectoryLock(str(tmp_path))


def test_an_impossible_start_time_still_gives_a_text() -> None:
    assert "unknown time" in str(Holder(1, "host", "command", 1e300))


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DataDirectoryLock(str(tmp_path / "missing"))


def test_the_time_of_the_last_use_is_kept(tmp_path: Path) -> None:
    """For a clock that went back meanwhile (steady_clock.py)."""
    later_us = time.time_ns() // 1000 + 10**12
    with DataDirectoryLock(str(tmp_path)) as lock:
        lock.note_use(later_us)
        lock.note_use(5)
    for _ in range(2):
        with DataDirectoryLock(str(tmp_path)) as again:
            assert again.last_used_us == later_us
