"""The contract of the file layer, on all of its implementations."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles
from kit.simulated_disk import SimulatedDisk

from penstock.log.storage.files import MAX_PARTS_PER_WRITE, FileSystem, RealFiles


@dataclass(frozen=True, slots=True)
class Place:
    """A file system and an existing directory in it."""

    files: FileSystem
    directory: str

    def path(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    def write(self, name: str, content: bytes) -> str:
        file = self.files.open(self.path(name), create=True)
        assert file.pwritev([content], 0) == len(content)
        file.close()
        return self.path(name)

    def read(self, name: str) -> bytes:
        file = self.files.open(self.path(name))
        try:
            return file.pread(1 << 20, 0)
        finally:
            file.close()


def _simulated(_: Path) -> Place:
    disk = SimulatedDisk(seed=1)
    disk.make_directory("/data")
    return Place(disk, "/data")


PLACES: dict[str, Callable[[Path], Place]] = {
    "real": lambda path: Place(RealFiles(), str(path)),
    "simulated": _simulated,
    "faulty-real": lambda path: Place(FaultyFiles(RealFiles()), str(path)),
    "faulty-simulated": lambda path: Place(FaultyFiles(_simulated(path).files), "/data"),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](tmp_path)


class TestFile:
    def test_parts_are_written_one_after_the_other(self, place: Place) -> None:
        file = place.files.open(place.path("f"), create=True)
        assert file.pwritev([b"abc", b"", b"de", b"f"], 0) == 6
        assert file.pwritev([b"XY"], 2) == 2
        assert file.pread(100, 0) == b"abXYef"
        assert file.size() == place.files.size(place.path("f")) == 6
        file.close()

    @pytest.mark.parametrize("parts", [[], [b""], [b"", b""]])
    def test_writing_nothing_changes_nothing(self, place: Place, parts: list[bytes]) -> None:
        file = place.files.open(place.path("f"), create=True)
        assert file.pwritev(parts, 1000) == 0
        assert file.size() == 0
        file.close()

    @pytest.mark.parametrize("extra", [0, 1, MAX_PARTS_PER_WRITE + 3])
    def test_more_parts_than_one_call_takes(self, place: Place, extra: int) -> None:
        parts = [b"%d," % number for number in range(MAX_PARTS_PER_WRITE + extra)]
        file = place.files.open(place.path("f"), create=True)
        assert file.pwritev(parts, 5) == sum(map(len, parts))
        assert file.pread(1 << 20, 5) == b"".join(parts)
        file.close()

    @pytest.mark.parametrize(
        ("size", "position", "expected"),
        [(3, 0, b"012"), (3, 8, b"89"), (3, 10, b""), (3, 999, b""), (0, 2, b""), (10, 0, None)],
    )
    def test_reads_are_short_only_at_the_end(
        self, place: Place, size: int, position: int, expected: bytes | None
    ) -> None:
        file = place.files.open(place.write("f", b"0123456789"))
        assert file.pread(size, position) == (b"0123456789" if expected is None else expected)
        file.close()

    def test_a_hole_reads_as_zeros(self, place: Place) -> None:
        file = place.files.open(place.path("f"), create=True)
        file.pwritev([b"x"], 4)
        assert file.pread(10, 0) == b"\0\0\0\0x"
        file.close()

    @pytest.mark.parametrize(("size", "expected"), [(0, b""), (2, b"ab"), (5, b"abc\0\0")])
    def test_truncate(self, place: Place, size: int, expected: bytes) -> None:
        file = place.files.open(place.write("f", b"abc"), write=True)
        file.truncate(size)
        assert file.size() == size
        assert file.pread(10, 0) == expected
        file.close()

    def test_bytes_cut_off_do_not_come_back(self, place: Place) -> None:
        file = place.files.open(place.write("f", b"secret"), write=True)
        file.truncate(1)
        file.pwritev([b"!"], 5)
        assert file.pread(10, 0) == b"s\0\0\0\0!"
        file.close()

    def test_sync_keeps_everything(self, place: Place) -> None:
        file = place.files.open(place.write("f", b"abc"), write=True)
        file.sync()
        assert file.pread(3, 0) == b"abc"
        file.close()

    def test_a_closed_handle_refuses_everything(self, place: Place) -> None:
        file = place.files.open(place.write("f", b"abc"), write=True)
        file.close()
        file.close()
        calls: list[Callable[[], object]] = [
            lambda: file.pread(1, 0),
            lambda: file.pwritev([b"x"], 0),
            file.size,
            lambda: file.truncate(0),
            file.sync,
        ]
        for call in calls:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EBADF
        assert place.read("f") == b"abc"

    def test_a_handle_for_reading_does_not_write(self, place: Place) -> None:
        file = place.files.open(place.write("f", b"abc"))
        with pytest.raises(OSError) as raised:
            file.pwritev([b"x"], 0)
        assert raised.value.errno == errno.EBADF
        with pytest.raises(OSError) as raised:
            file.truncate(0)
        assert raised.value.errno == errno.EINVAL
        assert file.pread(9, 0) == b"abc"
        file.close()

    def test_a_negative_position_is_refused(self, place: Place) -> None:
        file = place.files.open(place.write("f", b"abc"), write=True)
        for call in (lambda: file.pread(1, -1), lambda: file.pwritev([b"x"], -1)):
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EINVAL
        file.close()

    def test_threads_share_a_handle(self, place: Place) -> None:
        file = place.files.open(place.path("f"), create=True)
        blocks = [bytes([number]) * 1000 for number in range(64)]

        def write_and_read(number: int) -> bytes:
            file.pwritev([blocks[number][:300], blocks[number][300:]], number * 1000)
            return file.pread(1000, number * 1000)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(write_and_read, range(64))) == blocks
        assert file.pread(64_000, 0) == b"".join(blocks)
        file.close()


class TestNames:
    def test_open_needs_a_file_or_create(self, place: Place) -> None:
        for write in (False, True):
            with pytest.raises(FileNotFoundError):
                place.files.open(place.path("f"), write=write)
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("missing", "f"), create=True)
        assert place.files.list(place.directory) == []

    def test_create_keeps_an_existing_file(self, place: Place) -> None:
        place.write("f", b"abc")
        file = place.files.open(place.path("f"), create=True)
        assert file.pread(9, 0) == b"abc"
        file.close()

    def test_open_for_writing_refuses_a_directory(self, place: Place) -> None:
        with pytest.raises(IsADirectoryError):
            place.files.open(place.directory, write=True)

    def test_list_is_sorted_and_empty_when_missing(self, place: Place) -> None:
        for name in ("b", "a", "B", "10", "9"):
            place.write(name, b"")
        place.files.make_directory(place.path("c"))
        assert place.files.list(place.directory) == ["10", "9", "B", "a", "b", "c"]
        assert place.files.list(place.path("missing")) == []

    def test_list_refuses_a_file(self, place: Place) -> None:
        with pytest.raises(NotADirectoryError):
            place.files.list(place.write("f", b""))

    def test_exists(self, place: Place) -> None:
        place.write("f", b"")
        assert place.files.exists(place.path("f"))
        assert place.files.exists(place.directory)
        assert not place.files.exists(place.path("g"))
        assert not place.files.exists(place.path("f", "g"))

    def test_size_of_a_missing_file(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.size(place.path("f"))

    def test_make_directory_with_parents_and_twice(self, place: Place) -> None:
        for _ in range(2):
            place.files.make_directory(place.path("a", "b", "c"))
        place.files.make_directory(place.path("a", "b"))
        place.write("a/b/c/f", b"x")
        assert place.files.list(place.path("a", "b")) == ["c"]
        assert place.files.list(place.path("a", "b", "c")) == ["f"]

    def test_make_directory_refuses_a_file_in_the_way(self, place: Place) -> None:
        place.write("f", b"")
        with pytest.raises(FileExistsError):
            place.files.make_directory(place.path("f"))
        with pytest.raises(NotADirectoryError):
            place.files.make_directory(place.path("f", "g", "h"))

    def test_threads_make_the_same_directory(self, place: Place) -> None:
        paths = [place.path("a", "b", str(number % 3)) for number in range(30)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(place.files.make_directory, paths))
        assert place.files.list(place.path("a", "b")) == ["0", "1", "2"]

    def test_rename_replaces_and_handles_follow(self, place: Place) -> None:
        old = place.write("old", b"new content")
        new = place.write("new", b"old content")
        moved = place.files.open(old)
        replaced = place.files.open(new)
        place.files.rename(old, new)
        assert place.files.list(place.directory) == ["new"]
        assert place.read("new") == moved.pread(99, 0) == b"new content"
        assert replaced.pread(99, 0) == b"old content"
        moved.close()
        replaced.close()

    def test_rename_of_a_directory_moves_all_in_it(self, place: Place) -> None:
        place.files.make_directory(place.path("a", "b"))
        place.files.make_directory(place.path("trash"))
        place.write("a/b/f", b"x")
        place.files.rename(place.path("a"), place.path("trash", "1"))
        assert place.files.list(place.directory) == ["trash"]
        assert place.read("trash/1/b/f") == b"x"

    def test_rename_to_itself_changes_nothing(self, place: Place) -> None:
        path = place.write("f", b"x")
        place.files.rename(path, path)
        assert place.read("f") == b"x"

    @pytest.mark.parametrize(
        ("old", "new", "error"),
        [
            ("missing", "f2", errno.ENOENT),
            ("f", "missing/f", errno.ENOENT),
            ("f", "empty", errno.EISDIR),
            ("empty", "f", errno.ENOTDIR),
            ("empty", "full", errno.ENOTEMPTY),
            ("full", "full/inside", errno.EINVAL),
        ],
    )
    def test_rename_refuses(self, place: Place, old: str, new: str, error: int) -> None:
        place.files.make_directory(place.path("empty"))
        place.files.make_directory(place.path("full"))
        place.write("full/g", b"")
        place.write("f", b"")
        with pytest.raises(OSError) as raised:
            place.files.rename(place.path(old), place.path(new))
        assert raised.value.errno == error
        assert place.files.list(place.directory) == ["empty", "f", "full"]

    def test_remove(self, place: Place) -> None:
        path = place.write("f", b"abc")
        file = place.files.open(path)
        place.files.remove(path)
        assert not place.files.exists(path)
        assert file.pread(9, 0) == b"abc"
        file.close()
        with pytest.raises(FileNotFoundError):
            place.files.remove(path)
        with pytest.raises(IsADirectoryError):
            place.files.remove(place.directory)

    def test_remove_tree_can_be_repeated(self, place: Place) -> None:
        place.files.make_directory(place.path("a", "b", "c"))
        place.write("a/f", b"")
        place.write("a/b/g", b"")
        place.write("keep", b"")
        for _ in range(2):
            place.files.remove_tree(place.path("a"))
        assert place.files.list(place.directory) == ["keep"]

    def test_remove_tree_refuses_a_file(self, place: Place) -> None:
        with pytest.raises(NotADirectoryError):
            place.files.remove_tree(place.write("f", b""))
        assert place.files.exists(place.path("f"))

    def test_sync_all(self, place: Place) -> None:
        place.write("f", b"x")
        place.files.sync_all(place.directory)
        with pytest.raises(FileNotFoundError):
            place.files.sync_all(place.path("missing"))

    def test_sync_directory(self, place: Place) -> None:
        place.files.sync_directory(place.directory)
        with pytest.raises(FileNotFoundError):
            place.files.sync_directory(place.path("missing"))
        with pytest.raises(NotADirectoryError):
            place.files.sync_directory(place.write("f", b""))
