"""The simulated disk: what survives a power loss, what may not, and that seeds decide it."""

import errno
import random
from collections.abc import Callable

import pytest
from kit.simulated_disk import Contents, SimulatedDisk, SimulatedFile
from kit.torn_content import PURE_MODES, CrashMode

MODES: tuple[CrashMode, ...] = (*PURE_MODES, "any")
SEEDS = range(40)


def disk_with_file(content: bytes = b"") -> tuple[SimulatedDisk, SimulatedFile]:
    """A disk with one file, /f, whose name and content are durable."""
    disk = SimulatedDisk(0, {"/f": content})
    return disk, disk.open("/f", write=True)


def found(disk: SimulatedDisk, mode: CrashMode) -> list[Contents]:
    """What may be on the disk if power went now."""
    return [disk.crash_after(len(disk.operations), mode, seed).contents() for seed in SEEDS]


def found_files(disk: SimulatedDisk, mode: CrashMode, path: str = "/f") -> set[bytes | None]:
    return {contents.get(path) for contents in found(disk, mode)}


class TestContent:
    @pytest.mark.parametrize("mode", MODES)
    def test_synced_bytes_survive(self, mode: CrashMode) -> None:
        disk, file = disk_with_file()
        file.pwritev([b"a" * 1000], 0)
        file.pwritev([b"b" * 9000], 1000)
        file.truncate(7000)
        file.sync()
        file.pwritev([b"c" * 5000], 7000)
        for content in found_files(disk, mode):
            assert content is not None
            assert content[:7000] == b"a" * 1000 + b"b" * 6000

    @pytest.mark.parametrize("mode", MODES)
    def test_a_sync_of_everything_keeps_contents_and_names(self, mode: CrashMode) -> None:
        disk = SimulatedDisk(0)
        for path in ("/d/one", "/d/e/two"):
            disk.make_directory(path.rpartition("/")[0])
            disk.open(path, create=True).pwritev([b"x" * 5000], 0)
        disk.sync_all("/d")
        for contents in found(disk, mode):
            assert contents["/d/one"] == contents["/d/e/two"] == b"x" * 5000

    def test_drop_and_keep(self) -> None:
        disk, file = disk_with_file(b"old")
        file.pwritev([b"NEW and more"], 0)
        assert found_files(disk, "drop") == {b"old"}
        assert found_files(disk, "keep") == {b"NEW and more"}

    @pytest.mark.parametrize("mode", ["tear512", "tear4096", "any"])
    def test_unsynced_bytes_sometimes_survive(self, mode: CrashMode) -> None:
        disk, file = disk_with_file(b"old")
        file.pwritev([b"NEW"], 0)
        assert found_files(disk, mode) == {b"old", b"NEW"}

    @pytest.mark.parametrize(("mode", "sector"), [("tear512", 512), ("tear4096", 4096)])
    def test_one_write_is_torn_between_sectors(self, mode: CrashMode, sector: int) -> None:
        disk, file = disk_with_file(b"." * (4 * sector))
        file.pwritev([b"x" * (4 * sector)], 0)
        images = found_files(disk, mode)
        assert len(images) > 4
        for image in images:
            assert image is not None
            sectors = {image[start : start + sector] for start in range(0, len(image), sector)}
            assert sectors <= {b"." * sector, b"x" * sector}

    def test_a_write_across_a_boundary_is_torn_at_the_boundary(self) -> None:
        disk, file = disk_with_file(b"." * 1024)
        file.pwritev([b"x" * 100], 462)
        first, second = b"x" * 50, b"x" * 50
        expected = {
            b"." * 462 + one + two + b"." * 462
            for one in (first, b"." * 50)
            for two in (second, b"." * 50)
        }
        assert found_files(disk, "tear512") == expected

    def test_writes_to_different_sectors_are_reordered(self) -> None:
        disk, file = disk_with_file(b"." * 1024)
        file.pwritev([b"1"], 0)
        file.pwritev([b"2"], 1000)
        images = found_files(disk, "tear512")
        seen = {(image or b"")[:1] + (image or b"")[1000:1001] for image in images}
        assert seen == {b"..", b"1.", b".2", b"12"}

    def test_writes_to_one_sector_keep_their_order(self) -> None:
        disk, file = disk_with_file(b"...")
        file.pwritev([b"1"], 0)
        file.pwritev([b"2"], 1)
        assert found_files(disk, "tear512") == {b"...", b"1..", b"12."}

    def test_a_grown_file_may_hold_zeros_and_any_length(self) -> None:
        disk, file = disk_with_file(b"old")
        file.pwritev([b"x" * 2000], 3)
        images = found_files(disk, "tear512")
        assert {len(image or b"") for image in images} == {3, 512, 1024, 1536, 2003}
        assert any(b"\0x" in (image or b"") for image in images), "a gap before bytes that survived"
        assert all((image or b"").startswith(b"old") for image in images)

    def test_a_cut_that_is_not_synced_may_be_lost(self) -> None:
        disk, file = disk_with_file(b"old" * 1000)
        file.truncate(2)
        assert found_files(disk, "tear512") == {b"old" * 1000, b"ol"}
        file.sync()
        assert found_files(disk, "tear512") == {b"ol"}

    def test_a_lost_cut_leaves_old_bytes_next_to_new_ones(self) -> None:
        disk, file = disk_with_file(b"o" * 1024)
        file.truncate(0)
        file.pwritev([b"n" * 512], 0)
        images = found_files(disk, "tear512")
        assert b"n" * 512 + b"o" * 512 in images
        assert {b"", b"n" * 512, b"o" * 1024} <= images

    def test_a_found_cut_does_not_make_earlier_writes_durable(self) -> None:
        disk, file = disk_with_file(b"....")
        file.pwritev([b"x"], 0)
        file.truncate(2)
        assert {b"..", b"x."} <= found_files(disk, "tear512")

    def test_large_writes_are_found_nearly_whole_and_nearly_lost(self) -> None:
        disk, file = disk_with_file(b"." * 512 * 100)
        file.pwritev([b"x" * 512 * 100], 0)
        kept = sorted((image or b"").count(b"x") // 512 for image in found_files(disk, "tear512"))
        assert kept[0] < 20
        assert kept[-1] > 85


class TestNames:
    def changed(self, change: Callable[[SimulatedDisk], object], *syncs: str) -> SimulatedDisk:
        start: Contents = {"/d": None, "/d/old": b"x", "/e": None, "/e/keep": b"y"}
        disk = SimulatedDisk(0, start)
        change(disk)
        for path in syncs:
            disk.sync_directory(path)
        return disk

    CHANGES = pytest.mark.parametrize(
        ("change", "syncs", "before", "after"),
        [
            (lambda disk: disk.open("/d/new", create=True), ["/d"], {"old"}, {"old", "new"}),
            (lambda disk: disk.rename("/d/old", "/d/new"), ["/d"], {"old"}, {"new"}),
            (lambda disk: disk.rename("/d/old", "/e/new"), ["/d", "/e"], {"old"}, set()),
            (lambda disk: disk.rename("/d/old", "/e/new"), ["/e", "/d"], {"old"}, set()),
            (lambda disk: disk.remove("/d/old"), ["/d"], {"old"}, set()),
        ],
        ids=["create", "rename", "rename-away", "rename-away-2", "remove"],
    )

    @CHANGES
    def test_a_change_of_names_needs_its_sync(
        self,
        change: Callable[[SimulatedDisk], object],
        syncs: list[str],
        before: set[str],
        after: set[str],
    ) -> None:
        unsynced = [[], syncs[:-1], ["/", "/e"] if len(syncs) == 1 else ["/"]]
        for some in unsynced:
            disk = self.changed(change, *some)
            assert set(disk.list("/d")) == after
            assert set(disk.crash_after(99, "drop").list("/d")) == before
            assert set(disk.crash_after(99, "keep").list("/d")) == after
            seen = [set(disk.crash_after(99, "any", seed).list("/d")) for seed in SEEDS]
            assert before in seen and after in seen
        disk = self.changed(change, *syncs)
        for mode in MODES:
            assert set(disk.crash_after(99, mode).list("/d")) == after

    def test_a_rename_is_found_whole_or_not_at_all(self) -> None:
        disk = self.changed(lambda disk: disk.rename("/d/old", "/e/new"))
        seen = {(tuple(found.list("/d")), tuple(found.list("/e"))) for found in self.after(disk)}
        assert seen == {(("old",), ("keep",)), ((), ("keep", "new"))}

    def test_changes_of_names_keep_their_order(self) -> None:
        disk = SimulatedDisk(0)
        for name in "abc":
            disk.open(f"/{name}", create=True)
        seen = {"".join(found.list("/")) for found in self.after(disk)}
        assert seen == {"", "a", "ab", "abc"}

    def test_a_sync_brings_what_it_builds_on(self) -> None:
        def change(disk: SimulatedDisk) -> None:
            disk.rename("/e/keep", "/d/new")
            disk.rename("/d/new", "/d/newer")

        disk = self.changed(change, "/d")
        found = disk.crash("drop")
        assert (found.list("/d"), found.list("/e")) == (["newer", "old"], [])

    @pytest.mark.parametrize("mode", MODES)
    def test_make_directory_is_durable(self, mode: CrashMode) -> None:
        disk = SimulatedDisk(0)
        disk.make_directory("/a/b/c")
        assert disk.crash(mode).exists("/a/b/c")

    def test_a_file_needs_a_sync_of_its_name_and_of_its_content(self) -> None:
        def created(sync_file: bool, sync_name: bool) -> bytes | None:
            disk = SimulatedDisk(0)
            file = disk.open("/f", create=True)
            file.pwritev([b"x"], 0)
            if sync_file:
                file.sync()
            if sync_name:
                disk.sync_directory("/")
            return disk.crash("drop").contents().get("/f")

        assert created(False, False) is created(True, False) is None
        assert created(False, True) == b""
        assert created(True, True) == b"x"

    def test_a_file_renamed_into_place_unsynced_is_found_empty_or_torn(self) -> None:
        disk = SimulatedDisk(0, {"/f": b"good"})
        file = disk.open("/f.new", create=True)
        file.pwritev([b"x" * 1024], 0)
        disk.rename("/f.new", "/f")
        disk.sync_directory("/")
        images = found_files(disk, "tear512")
        assert b"good" not in images
        assert {b"", b"x" * 1024, b"x" * 512 + bytes(512)} <= images

    def test_a_removed_file_may_come_back_with_its_content(self) -> None:
        disk = self.changed(lambda disk: disk.remove("/d/old"))
        assert disk.crash("drop").contents()["/d/old"] == b"x"

    def test_remove_tree_may_be_found_half_done(self) -> None:
        disk = self.changed(lambda disk: disk.remove_tree("/d"))
        seen = {tuple(sorted(found.contents())) for found in self.after(disk)}
        rest = ("/e", "/e/keep")
        assert seen == {("/d", "/d/old", *rest), ("/d", *rest), rest}

    def after(self, disk: SimulatedDisk) -> list[SimulatedDisk]:
        return [disk.crash_after(len(disk.operations), "any", seed) for seed in SEEDS]


class TestFailedSync:
    def test_a_later_sync_lies(self) -> None:
        outcomes = set()
        for seed in SEEDS:
            disk = SimulatedDisk(seed, {"/f": b"old"})
            file = disk.open("/f", write=True)
            file.pwritev([b"NEW"], 0)
            file.fail_sync()
            file.pwritev([b"!"], 3)
            file.sync()
            assert file.pread(9, 0) == b"NEW!"
            outcomes.add(disk.crash("keep").contents()["/f"])
        assert outcomes == {b"old!", b"NEW!"}

    def test_it_is_replayed_the_same(self) -> None:
        for seed in SEEDS:
            disk = SimulatedDisk(seed, {"/f": b"." * 4096})
            file = disk.open("/f", write=True)
            file.pwritev([b"x" * 4096], 0)
            file.fail_sync()
            assert disk.crash_after(99, "drop").contents() == disk.crash("drop").contents()


class TestCrash:
    def test_the_old_disk_and_its_handles_are_dead(self) -> None:
        disk, file = disk_with_file(b"x")
        disk.crash("keep")
        calls: list[tuple[int, Callable[[], object]]] = [
            (errno.EBADF, lambda: file.pread(1, 0)),
            (errno.EBADF, lambda: file.pwritev([b"y"], 0)),
            (errno.EBADF, file.size),
            (errno.EBADF, file.sync),
            (errno.EBADF, lambda: file.truncate(0)),
            (errno.ENODEV, lambda: disk.open("/f")),
            (errno.ENODEV, lambda: disk.list("/")),
            (errno.ENODEV, lambda: disk.sync_directory("/")),
        ]
        for error, call in calls:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == error
        file.close()

    def test_what_was_found_is_durable(self) -> None:
        disk, file = disk_with_file(b"." * 2000)
        file.pwritev([b"x" * 2000], 0)
        first = disk.crash("tear512")
        contents = first.contents()
        assert [first.crash_after(0, mode).contents() for mode in MODES] == [contents] * len(MODES)

    def test_crash_points_are_the_crashes_after_each_operation(self) -> None:
        disk = SimulatedDisk(3)
        run_workload(disk, random.Random(3))
        points = list(disk.crash_points(MODES, seeds=(0, 1)))
        assert len(points) == (len(disk.operations) + 1) * len(MODES) * 2
        for point in points:
            again = disk.crash_after(point.operation, point.mode, point.seed)
            assert again.contents() == point.disk.contents()
            assert again.seed == point.disk.seed

    def test_a_found_disk_has_crash_points_of_its_own(self) -> None:
        disk, file = disk_with_file()
        file.pwritev([b"a"], 0)
        second = disk.crash("keep")
        again = second.open("/f", write=True)
        again.pwritev([b"b"], 1)
        again.sync()
        contents = [point.disk.contents()["/f"] for point in second.crash_points(["drop"])]
        assert contents == [b"a", b"a", b"ab"]

    def test_operations_can_be_read_by_people(self) -> None:
        disk, file = disk_with_file()
        file.pwritev([b"secret" * 1000], 7)
        disk.rename("/f", "/g")
        file.sync()
        kinds = [(operation.kind, operation.path) for operation in disk.operations]
        assert kinds == [("write", "/f"), ("rename", "/f"), ("sync", "/f")]
        assert "secret" not in repr(disk.operations)

    def test_writes_through_a_handle_follow_a_rename_in_replay(self) -> None:
        disk, file = disk_with_file(b"....")
        disk.rename("/f", "/g")
        disk.open("/f", create=True).pwritev([b"other"], 0)
        file.pwritev([b"x"], 0)
        assert disk.crash_after(99, "keep").contents() == {"/f": b"other", "/g": b"x..."}


def run_workload(disk: SimulatedDisk, random_: random.Random, steps: int = 40) -> None:
    """Some of everything, in an order that the random numbers choose."""
    disk.make_directory("/a/b")
    disk.make_directory("/c")
    directories = ["/a", "/a/b", "/c"]
    for step in range(steps):
        directory = random_.choice(directories)
        names = [name for name in disk.list(directory) if name.startswith("f")]
        path = f"{directory}/{random_.choice(names)}" if names else ""
        match random_.randrange(7) if names else 0:
            case 0:
                disk.open(f"{directory}/f{step}", create=True).pwritev([b"new"], 0)
            case 1 | 2:
                data = random_.randbytes(random_.randrange(3000))
                disk.open(path, write=True).pwritev([data], random_.randrange(2000))
            case 3:
                disk.open(path, write=True).truncate(random_.randrange(3000))
            case 4:
                disk.open(path, write=True).sync()
            case 5:
                disk.rename(path, f"{random_.choice(directories)}/f{step}")
            case 6:
                disk.sync_directory(directory)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_disk(seed: int, mode: CrashMode) -> None:
    def once(crash_seed: int | None) -> Contents:
        disk = SimulatedDisk(seed)
        run_workload(disk, random.Random(seed))
        return disk.crash(mode, crash_seed).contents()

    assert once(None) == once(None) == once(seed)
    if mode not in {"drop", "keep"}:
        assert len({repr(once(other)) for other in range(8)}) > 1


@pytest.mark.parametrize("seed", range(10))
def test_after_syncing_all_every_mode_finds_the_same(seed: int) -> None:
    disk = SimulatedDisk(seed)
    run_workload(disk, random.Random(seed))
    for path, content in disk.contents().items():
        if content is not None:
            disk.open(path).sync()
    for directory in ("/", "/a", "/a/b", "/c"):
        disk.sync_directory(directory)
    for mode in MODES:
        assert disk.crash_after(len(disk.operations), mode).contents() == disk.contents()
