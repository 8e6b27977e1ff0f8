"""What only the real file system has: short writes, descriptors, permissions."""

import errno
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.log.storage.files import MAX_PARTS_PER_WRITE, RealFiles

NOBODY = 65534


LIMIT = 8192


@contextmanager
def small_files_only() -> Iterator[None]:
    """No file of this process may grow beyond LIMIT: an honest way to a short write.

    Only around the calls: the report of the tests may be a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestRealFiles:
    @pytest.mark.parametrize("parts", [[b"x" * 10_000], [b"x" * 4] * 2500])
    def test_a_short_write_is_reported(self, tmp_path: Path, parts: list[bytes]) -> None:
        file = RealFiles().open(str(tmp_path / "f"), create=True)
        with small_files_only():
            written = file.pwritev(parts, 0)
            with pytest.raises(OSError) as raised:
                file.pwritev([b"x"], LIMIT)
        assert written == LIMIT == file.size()
        assert raised.value.errno == errno.EFBIG
        file.close()

    def test_an_error_behind_the_first_slice_comes_with_the_next_call(self, tmp_path: Path) -> None:
        first_slice = [b"x" * (LIMIT // MAX_PARTS_PER_WRITE)] * MAX_PARTS_PER_WRITE
        file = RealFiles().open(str(tmp_path / "f"), create=True)
        with small_files_only():
            written = file.pwritev([*first_slice, b"x"], 0)
            with pytest.raises(OSError) as raised:
                file.pwritev([b"x"] * (MAX_PARTS_PER_WRITE + 1), LIMIT)
        assert written == LIMIT
        assert raised.value.errno == errno.EFBIG
        file.close()

    def test_nothing_is_written_behind_a_short_slice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Space that comes free in the middle cannot be arranged: the first slice is cut here.
        real_pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real_pwritev(fd, parts[:7], at))
        file = RealFiles().open(str(tmp_path / "f"), create=True)
        assert file.pwritev([b"x"] * (MAX_PARTS_PER_WRITE + 1), 0) == 7 == file.size()
        file.close()

    def test_reads_that_the_kernel_cuts_short_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A disk never does this below 2 GiB, so the kernel's answer is cut here.
        real_pread = os.pread
        path = tmp_path / "f"
        path.write_bytes(b"0123456789")
        file = RealFiles().open(str(path))
        monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 3), at))
        assert file.pread(8, 1) == b"12345678"
        assert file.pread(100, 1) == b"123456789"
        file.close()

    def test_close_waits_for_a_call_in_another_thread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inside, leave = threading.Event(), threading.Event()
        descriptors: list[int] = []

        def slow_sync(descriptor: int) -> None:
            descriptors.append(descriptor)
            inside.set()
            assert leave.wait(HANG_S)
            os.fsync(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow_sync)
        file = RealFiles().open(str(tmp_path / "f"), create=True)
        with ThreadPoolExecutor(1) as pool:
            syncing = pool.submit(file.sync)
            assert inside.wait(HANG_S)
            file.close()
            os.fstat(descriptors[0])
            with pytest.raises(OSError):
                file.size()
            leave.set()
            syncing.result(HANG_S)
        with pytest.raises(OSError):
            os.fstat(descriptors[0])

    def test_descriptors_are_given_back_and_not_inherited(self, tmp_path: Path) -> None:
        files = RealFiles()
        path = str(tmp_path / "f")
        file = files.open(path, create=True)
        (descriptor,) = _descriptors_of(path)
        assert not os.get_inheritable(descriptor)
        file.close()
        assert _descriptors_of(path) == []
        files.sync_directory(str(tmp_path))
        assert _descriptors_of(str(tmp_path)) == []

    def test_new_files_are_not_for_everybody(self, tmp_path: Path) -> None:
        files = RealFiles()
        files.make_directory(str(tmp_path / "d"))
        files.open(str(tmp_path / "d" / "f"), create=True).close()
        assert (tmp_path / "d").stat().st_mode & 0o007 == 0
        assert (tmp_path / "d" / "f").stat().st_mode & 0o007 == 0


@pytest.fixture
def unreadable_parent() -> Iterator[Path]:
    """A directory that may be entered and changed but not read, by whoever runs this."""
    root = os.geteuid() == 0
    outer = Path(tempfile.mkdtemp())  # not tmp_path: nobody but its owner can get into that
    os.mkdir(outer / "data")
    if root:
        for path in (outer, outer / "data"):
            os.chown(path, NOBODY, NOBODY)
    outer.chmod(0o311)
    if root:
        os.seteuid(NOBODY)
    try:
        yield outer
    finally:
        if root:
            os.seteuid(0)
        outer.chmod(0o700)
        shutil.rmtree(outer)


def test_a_data_directory_below_an_unreadable_one(unreadable_parent: Path) -> None:
    files = RealFiles()
    with pytest.raises(PermissionError):
        files.sync_directory(str(unreadable_parent))
    files.make_directory(str(unreadable_parent / "data"))
    files.make_directory(str(unreadable_parent / "data" / "topics" / "a"))
    assert files.list(str(unreadable_parent / "data" / "topics")) == ["a"]


def _descriptors_of(path: str) -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself is gone
            if os.readlink(f"/proc/self/fd/{name}") == path:
                found.append(int(name))
    return found
