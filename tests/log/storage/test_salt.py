"""The salt of a partition: drawn, kept, lost and found, and what it keeps out behind damage."""

from collections.abc import Callable
from struct import pack_into

import pytest
from crc32c import crc32c
from kit.partitions import Bench, append_rows, read_all, roll
from kit.records import Row, build, stored
from kit.simulated_disk import SimulatedDisk

from penstock.log.batch.format import MAX_OFFSET, BatchError, parse_header
from penstock.log.errors import CorruptLog
from penstock.log.partitions.verify import verify
from penstock.log.storage.follower import Follower
from penstock.log.storage.reader import read
from penstock.log.storage.salt import SALT_FILE, Salt, find_salt, new_salt, read_salt, write_salt

DIRECTORY = "/data/topics/t/0"
FILE = f"{DIRECTORY}/{SALT_FILE}"
FIRST = f"{DIRECTORY}/{0:020d}.log"


def bench(disk: SimulatedDisk) -> Bench:
    return Bench(disk, DIRECTORY)


def overwrite(disk: SimulatedDisk, path: str, position: int, content: bytes) -> None:
    file = disk.open(path, write=True)
    file.pwritev([content], position)
    file.close()


def test_every_partition_has_its_own_from_the_first_batch_on() -> None:
    disk = SimulatedDisk(1)
    salts = set()
    for number in range(3):
        work = Bench(disk, f"/data/{number}")
        partition = work.open()
        assert not disk.exists(f"/data/{number}/{SALT_FILE}"), "nothing is written before a record"
        append_rows(partition, [[Row(b"a")], [Row(b"b")]])
        roll(partition, Row(b"c"))
        found = read_salt(disk, work.directory)
        assert found == partition.salt == Salt(partition.salt.value, 0)
        assert work.open().salt == found
        salts.add(partition.salt.value)
        for view in read(work.open(), 0, 1 << 20).views:
            assert view.header.salt == partition.salt.value
    assert len(salts) == 3 and 0 not in salts


def test_a_salt_is_never_none() -> None:
    assert all(0 < new_salt() < 1 << 32 for _ in range(100))


@pytest.mark.parametrize("size", range(17))
def test_a_file_that_is_cut_is_not_believed(size: int) -> None:
    disk = SimulatedDisk(1)
    disk.make_directory(DIRECTORY)
    write_salt(disk, DIRECTORY, Salt(7, 9))
    assert read_salt(disk, DIRECTORY) == Salt(7, 9)
    if size < 16:
        file = disk.open(FILE, write=True)
        file.truncate(size)
        assert read_salt(disk, DIRECTORY) is None


def remove(disk: SimulatedDisk) -> None:
    disk.remove(FILE)


def flip(disk: SimulatedDisk) -> None:
    overwrite(disk, FILE, 5, b"\xff")


def replace(disk: SimulatedDisk) -> None:
    """By that of another partition: believed, it would make everything look damaged."""
    write_salt(disk, DIRECTORY, Salt(12345, 0))


@pytest.mark.parametrize("harm", [remove, flip, replace])
def test_a_lost_or_wrong_file_is_found_again_from_the_batches(
    harm: Callable[[SimulatedDisk], None],
) -> None:
    disk = SimulatedDisk(1)
    partition = bench(disk).open()
    append_rows(partition, [[Row(b"a")]])
    roll(partition, Row(b"b"))
    partition.close()
    harm(disk)
    again = bench(disk).open()
    assert again.recovered.damages == [] and again.recovered.cut_bytes == 0
    assert again.salt == partition.salt == read_salt(disk, DIRECTORY)
    assert [row.value for _, row in read_all(again)] == [b"a", b"b"]


def test_without_any_batch_there_is_none() -> None:
    assert find_salt(SimulatedDisk(1), DIRECTORY, []) == Salt(0, MAX_OFFSET)


# --- records that hold the bytes of a batch ---------------------------------------------------------


def version_1(data: bytes) -> bytes:
    """The batch as version 1 wrote it, with its checksum."""
    old = bytearray(data[:72] + data[80:])
    pack_into("<I", old, 4, len(old))
    pack_into("<H", old, 14, 1)
    pack_into("<I", old, 8, crc32c(bytes(old[12:72]), crc32c(bytes(old[72:]))))
    assert parse_header(bytes(old), 0).version == 1
    return bytes(old)


def image(base_offset: int, salt: int) -> bytes:
    return stored(build([Row(b"never appended")]), base_offset, base_offset, salt)


IMAGES: dict[str, Callable[[int, int], bytes]] = {
    "of another partition": lambda base, own: image(base, own ^ 1),
    "of none": lambda base, own: image(base, 0),
    "of version 1": lambda base, own: version_1(image(base, own)),
}


def with_image(disk: SimulatedDisk, make: Callable[[int, int], bytes], batch: int) -> None:
    """Four batches; the record of one holds an image, and the header of that one is destroyed."""
    partition = bench(disk).open()
    append_rows(partition, [[Row(b"first")]])
    salt = partition.salt.value
    values = [b"%d" % number for number in range(4)]
    values[batch] = make(batch + 1, salt) + make(batch + 2, salt)
    place = 0
    for number, value in enumerate(values):
        if number == batch:
            place = disk.size(FIRST)
        append_rows(partition, [[Row(value)]])
    partition.close()
    overwrite(disk, FIRST, place, bytes(80))


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("kind", IMAGES)
def test_the_image_of_a_batch_is_not_taken_for_one_behind_damage(kind: str, batch: int) -> None:
    disk = SimulatedDisk(1)
    with_image(disk, IMAGES[kind], batch)
    partition = bench(disk).open()
    assert [(d.first_offset, d.next_offset) for d in partition.recovered.damages] == [
        (batch + 1, batch + 2)
    ]
    assert partition.next_offset == 5
    with pytest.raises(CorruptLog):
        read(partition, batch + 1, 1)
    rest = [v for view in read(partition, batch + 2, 1 << 20).views for v in view.values()]
    assert rest == [b"%d" % number for number in range(batch + 1, 4)]
    (damage,) = verify(disk, "/data").damages
    assert (damage.first_offset, damage.next_offset) == (batch + 1, batch + 2)
    follower = Follower(
        DIRECTORY, lambda: 0, files=disk, identify=lambda path: (1, 1, disk.size(path), 1),
        pause=lambda _: None,
    )  # fmt: skip
    follower.told(0, 5)
    with pytest.raises(CorruptLog):
        follower.read(batch + 1, 1 << 20, lambda: (0, 5))
    rest = [
        v for view in follower.read(batch + 2, 1 << 20, lambda: (0, 5)).views for v in view.values()
    ]
    assert rest == [b"%d" % number for number in range(batch + 1, 4)]


def test_the_same_image_with_the_right_salt_would_be_taken() -> None:
    """What the test above rests on: without the salt nothing tells the image from a batch."""
    disk = SimulatedDisk(1)
    with_image(disk, image, 1)
    partition = bench(disk).open()
    assert read(partition, 2, 1 << 20).views[0].values() == [b"never appended"]


def test_a_file_of_another_partition_is_refused() -> None:
    disk = SimulatedDisk(1)
    for number in range(2):
        partition = Bench(disk, f"/data/{number}").open()
        append_rows(partition, [[Row(b"%d" % number)]])
        roll(partition, Row(b"active"))
        partition.close()
    content = disk.open(f"/data/0/{0:020d}.log").pread(1000, 0)
    overwrite(disk, f"/data/1/{0:020d}.log", 0, content)
    with pytest.raises(CorruptLog, match="a batch of another partition"):
        read(Bench(disk, "/data/1").open(), 0, 100)


def test_version_1_behind_version_2_is_refused() -> None:
    header = parse_header(version_1(image(3, 0)), 0)
    Salt(7, 10).check(header, Salt(7, 10).least_version(9))
    with pytest.raises(BatchError, match="version 1 among those of version 2"):
        Salt(7, 10).check(header, Salt(7, 10).least_version(10))
