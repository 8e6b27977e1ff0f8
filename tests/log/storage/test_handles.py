"""Open files: bounded, never closed under their user, opened anew after a replacement."""

import errno
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles

from penstock.log.storage.files import RealFiles
from penstock.log.storage.handles import HandlePool


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(RealFiles())


def touch(pool: HandlePool, path: Path) -> None:
    with pool.use(str(path), create=True) as file:
        file.pwritev([path.name.encode()], 0)


def test_a_file_is_opened_once(files: FaultyFiles, tmp_path: Path) -> None:
    pool = HandlePool(files, 4)
    for _ in range(3):
        touch(pool, tmp_path / "a")
    assert (files.calls["create"], files.calls["close"], len(pool)) == (1, 0, 1)
    pool.close()
    assert (files.calls["close"], len(pool)) == (1, 0)


def test_the_least_recently_used_is_closed_first(files: FaultyFiles, tmp_path: Path) -> None:
    pool = HandlePool(files, 2)
    for name in ("a", "b", "a", "c"):
        touch(pool, tmp_path / name)
    assert len(pool) == 2
    opened = files.calls["create"]
    touch(pool, tmp_path / "a")
    assert files.calls["create"] == opened
    touch(pool, tmp_path / "b")
    assert files.calls["create"] == opened + 1
    pool.close()


def test_many_files_stay_within_the_limit(files: FaultyFiles, tmp_path: Path) -> None:
    pool = HandlePool(files, 8)
    for number in range(100):
        touch(pool, tmp_path / str(number))
        assert files.calls["create"] - files.calls["close"] <= 8
    pool.close()
    assert files.calls["create"] == files.calls["close"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_where_descriptors_run_out_those_of_the_pool_are_used(
    files: FaultyFiles, tmp_path: Path, number: int
) -> None:
    pool = HandlePool(files, 4)
    touch(pool, tmp_path / "a")
    files.fail("create", number)
    touch(pool, tmp_path / "b")
    assert len(pool) == 1
    # With nothing left to close it is an error.
    files.fail("create", number)
    with pool.use(str(tmp_path / "b")), pytest.raises(OSError, match="Too many open"):
        touch(pool, tmp_path / "c")
    pool.close()


def test_a_file_in_use_is_not_closed(files: FaultyFiles, tmp_path: Path) -> None:
    pool = HandlePool(files, 1)
    with pool.use(str(tmp_path / "a"), create=True) as file:
        touch(pool, tmp_path / "b")
        touch(pool, tmp_path / "c")
        file.pwritev([b"still open"], 0)
    assert (tmp_path / "a").read_bytes() == b"still open"
    touch(pool, tmp_path / "d")
    assert len(pool) == 1
    pool.close()
    assert files.calls["create"] == files.calls["close"]


def test_a_forgotten_file_is_read_to_the_end_and_opened_anew(
    files: FaultyFiles, tmp_path: Path
) -> None:
    pool = HandlePool(files, 4)
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pool.use(str(path)) as file:
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").rename(path)
        pool.forget(str(path))
        assert file.pread(3, 0) == b"old"
        with pool.use(str(path)) as again:
            assert again.pread(3, 0) == b"new"
        assert files.calls["close"] == 0
    assert files.calls["close"] == 1
    pool.forget("never opened")
    pool.close()
    assert files.calls["close"] == 2


def test_a_missing_file_is_an_error_and_takes_no_place(files: FaultyFiles, tmp_path: Path) -> None:
    pool = HandlePool(files, 4)
    with pytest.raises(FileNotFoundError), pool.use(str(tmp_path / "missing")):
        raise AssertionError("not reached")
    assert len(pool) == 0
