"""The fault wrapper: each fault where it was planned, and nowhere else."""

import errno
import threading
from collections.abc import Callable
from functools import partial

import pytest
from kit.faulty_files import CallKind, FaultyFiles
from kit.limits import HANG_S
from kit.simulated_disk import SimulatedDisk


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(
        SimulatedDisk(0, {"/d": None, "/d/a.log": b"0123456789", "/d/b.index": b"x"})
    )


CALLS: dict[CallKind, Callable[[FaultyFiles], object]] = {
    "create": lambda files: files.open("/d/new.log", create=True),
    "open": lambda files: files.open("/d/a.log"),
    "read": lambda files: files.open("/d/a.log").pread(1, 0),
    "write": lambda files: files.open("/d/a.log", write=True).pwritev([b"x"], 0),
    "truncate": lambda files: files.open("/d/a.log", write=True).truncate(0),
    "sync": lambda files: files.open("/d/a.log", write=True).sync(),
    "close": lambda files: files.open("/d/a.log", write=True).close(),
    "size": lambda files: files.size("/d/a.log"),
    "exists": lambda files: files.exists("/d/a.log"),
    "list": lambda files: files.list("/d"),
    "make_directory": lambda files: files.make_directory("/e"),
    "rename": lambda files: files.rename("/d/a.log", "/d/c.log"),
    "remove": lambda files: files.remove("/d/a.log"),
    "remove_tree": lambda files: files.remove_tree("/d"),
    "sync_directory": lambda files: files.sync_directory("/d"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_every_kind_of_call_can_fail_and_is_counted(files: FaultyFiles, kind: CallKind) -> None:
    assert isinstance(files.inner, SimulatedDisk)
    before = files.inner.contents()
    files.fail(kind, errno.EIO)
    with pytest.raises(OSError) as raised:
        CALLS[kind](files)
    assert raised.value.errno == errno.EIO
    assert raised.value.filename is not None
    assert files.inner.contents() == before
    CALLS[kind](files)
    assert files.calls[kind] == 2


def test_size_of_a_handle_counts_as_size(files: FaultyFiles) -> None:
    file = files.open("/d/a.log")
    files.fail("size", errno.EIO)
    with pytest.raises(OSError):
        file.size()
    assert file.size() == 10


@pytest.mark.parametrize(
    ("nth", "times", "expected"),
    [(1, 1, "x....."), (3, 1, "..x..."), (2, 3, ".xxx.."), (4, None, "...xxx"), (9, 1, "......")],
)
def test_nth_and_times(files: FaultyFiles, nth: int, times: int | None, expected: str) -> None:
    files.exists("/d/a.log")
    files.fail("exists", errno.EIO, nth=nth, times=times)
    assert "".join(outcome(lambda: files.exists("/d")) for _ in range(6)) == expected


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError:
        return "x"
    return "."


def test_suffix_restricts_and_other_paths_do_not_count(files: FaultyFiles) -> None:
    files.fail("size", errno.EIO, nth=2, suffix=".log")
    paths = ["/d/a.log", "/d/b.index", "/d/a.log", "/d/b.index"]
    assert "".join(outcome(partial(files.size, path)) for path in paths) == "..x."


@pytest.mark.parametrize("suffix", ["a.log", "c.log"])
def test_a_rename_matches_with_either_path(files: FaultyFiles, suffix: str) -> None:
    files.fail("rename", errno.EIO, suffix=suffix)
    with pytest.raises(OSError):
        files.rename("/d/a.log", "/d/c.log")


def test_clear_lifts_all_faults(files: FaultyFiles) -> None:
    files.fail("write", errno.ENOSPC, times=None)
    files.flip_bit(times=None)
    file = files.open("/d/a.log", write=True)
    assert outcome(lambda: file.pwritev([b"x"], 0)) == "x"
    files.clear()
    assert file.pwritev([b"x"], 0) == 1
    assert file.pread(3, 0) == b"x12"


def test_of_two_due_faults_the_first_planned_acts(files: FaultyFiles) -> None:
    files.fail("size", errno.EIO)
    files.fail("size", errno.ENOSPC, times=2)
    errors = []
    for _ in range(3):
        try:
            files.size("/d/a.log")
        except OSError as error:
            errors.append(error.errno)
    assert errors == [errno.EIO, errno.ENOSPC]


@pytest.mark.parametrize("written", [0, 1, 4, 6])
def test_a_short_write_and_the_error_after_it(files: FaultyFiles, written: int) -> None:
    file = files.open("/d/a.log", write=True)
    files.write_short(written, errno.ENOSPC, nth=2, times=2)
    assert file.pwritev([b"+"], 0) == 1
    assert file.pwritev([b"abc", b"def"], 1) == written
    for _ in range(2):
        with pytest.raises(OSError) as raised:
            file.pwritev([b"zzz"], 1)
        assert raised.value.errno == errno.ENOSPC
    assert file.pread(99, 0) == b"+" + b"abcdef"[:written] + b"123456789"[written:]
    assert file.pwritev([b"zzz"], 1) == 3


class TestBitFlip:
    def test_a_place_on_the_disk(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log")
        files.flip_bit(position=4, bit=1, times=None, suffix=".log")
        for _ in range(2):
            assert file.pread(99, 0) == b"0123" + b"6" + b"56789"
            assert file.pread(2, 3) == b"36"
        assert file.pread(4, 0) == b"0123"
        assert file.pread(5, 5) == b"56789"
        assert files.inner.open("/d/a.log").pread(1, 4) == b"4"

    def test_only_reads_of_the_place_count(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log")
        files.flip_bit(position=4, nth=2)
        assert [file.pread(1, at) for at in (4, 0, 4, 4)] == [b"4", b"0", b"5", b"4"]

    def test_without_a_place_the_middle_is_hit(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log")
        files.flip_bit(nth=2, bit=7)
        assert file.pread(9, 999) == b""
        assert file.pread(3, 0) == b"012"
        assert file.pread(3, 0) == b"0\xb12"
        assert file.pread(3, 0) == b"012"

    def test_other_files_stay_whole(self, files: FaultyFiles) -> None:
        files.flip_bit(suffix=".log", times=None)
        assert files.open("/d/b.index").pread(1, 0) == b"x"


def test_a_failed_sync_loses_changes_on_a_simulated_disk() -> None:
    found = set()
    for seed in range(30):
        disk = SimulatedDisk(seed, {"/f": b"old"})
        files = FaultyFiles(disk)
        file = files.open("/f", write=True)
        file.pwritev([b"NEW"], 0)
        files.fail("sync", errno.EIO)
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        found.add(disk.crash("keep").contents()["/f"])
    assert found == {b"old", b"NEW"}


class TestPause:
    def test_a_paused_call_does_nothing_until_released(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log", write=True)
        with files.pause("write", suffix=".log") as paused:
            thread = threading.Thread(target=lambda: file.pwritev([b"X"], 0))
            thread.start()
            paused.wait_until_reached()
            assert file.pread(1, 0) == b"0"
        thread.join(HANG_S)
        assert file.pread(1, 0) == b"X"

    def test_a_fault_of_the_same_call_acts_after_the_pause(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log", write=True)
        paused = files.pause("sync")
        files.fail("sync", errno.EIO)
        outcomes: list[str] = []
        thread = threading.Thread(target=lambda: outcomes.append(outcome(file.sync)))
        thread.start()
        paused.wait_until_reached()
        assert outcomes == []
        paused.release()
        thread.join(HANG_S)
        assert outcomes == ["x"]

    def test_clear_releases(self, files: FaultyFiles) -> None:
        file = files.open("/d/a.log", write=True)
        paused = files.pause("sync")
        thread = threading.Thread(target=file.sync)
        thread.start()
        paused.wait_until_reached()
        files.clear()
        thread.join(HANG_S)
        assert not thread.is_alive()
