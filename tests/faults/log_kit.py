"""One partition on any file layer, driven inline: no threads, no waiting, a clock that stands still."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from kit.records import Row, build, row_of
from kit.simulated_disk import SimulatedDisk

from penstock.log.batch.encryption import NO_KEYS, Keyring
from penstock.log.batch.format import HEADER_SIZE, Batch, parse_header
from penstock.log.errors import CorruptLog
from penstock.log.partitions.commit import GroupCommit
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings
from penstock.log.storage import reader
from penstock.log.storage.cache import DEFAULT_CACHE_BYTES, BatchCache
from penstock.log.storage.files import FileSystem
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.segment import read_small_file

DIRECTORY = "/log"
# Small enough that a few batches fill a segment.
SMALL = TopicSettings(segment_bytes=1000, retention_ms=0)
ALL_BYTES = 1 << 30


def plain(*values: bytes, time_us: int = 0) -> Batch:
    return build([Row(value, time_us) for value in values])


class OpenLog:
    """A partition as its process sees it. The files are not its own: they outlive it.

    `write_idle`: batches go into an idle partition in the call itself, as from the event loop. The
    fixture `writes` of the tests sets it where it is not given.
    """

    write_idle = False

    def __init__(
        self,
        files: FileSystem,
        settings: TopicSettings = SMALL,
        *,
        directory: str = DIRECTORY,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        clock_us: Callable[[], int] = lambda: 0,
        write_idle: bool | None = None,
        keys: Keyring = NO_KEYS,
    ) -> None:
        if write_idle is not None:
            self.write_idle = write_idle
        self.files = files
        self.pool = HandlePool(files, 8)
        self.commit = GroupCommit(threads=0, monotonic=lambda: 0.0, write_idle=self.write_idle)
        self.partition = Partition(
            directory, settings, self.pool, BatchCache(cache_bytes), clock_us, keys=keys
        )

    def queue(self, batch: Batch) -> AppendToken:
        return self.commit.append(self.partition, batch)

    def run(self) -> None:
        """Until nothing is queued."""
        while self.commit.step():
            continue

    def send(self, batch: Batch) -> AppendToken:
        token = self.queue(batch)
        self.run()
        assert token.done
        return token

    def store(self, *values: bytes, time_us: int = 0) -> int:
        """Appends one batch, which must succeed; gives its base offset."""
        return self.send(plain(*values, time_us=time_us)).result()

    def records(self, offset: int | None = None, max_bytes: int = ALL_BYTES) -> dict[int, Row]:
        """All visible records from the offset on, read in steps of `max_bytes`."""
        at = self.partition.start_offset if offset is None else offset
        found: dict[int, Row] = {}
        while at < self.partition.visible_offset:
            result = reader.read(self.partition, at, max_bytes)
            assert result.next_offset > at, "a read that gets nowhere"
            for view in result.views:
                for record in view.records():
                    assert at <= record.offset < result.next_offset
                    assert record.offset not in found
                    found[record.offset] = row_of(record)
            at = result.next_offset
        return found

    def values(self, offset: int | None = None) -> list[bytes]:
        return [row.value for row in self.records(offset).values()]

    def answers(self) -> dict[int, bytes | CorruptLog]:
        """For each offset what a reader who asks for just that one gets."""
        found: dict[int, bytes | CorruptLog] = {}
        for offset in range(self.partition.start_offset, self.partition.visible_offset):
            try:
                result = reader.read(self.partition, offset, 0)
            except CorruptLog as error:
                assert error.first_offset <= offset < error.next_offset
                found[offset] = error
                continue
            first = result.views[0].records()[0]
            assert first.offset == offset, "skipped in silence"
            assert first.value is not None
            found[offset] = first.value
        return found

    def close(self) -> None:
        deliver(self.partition.close())
        self.pool.close()

    def die(self) -> None:
        """The process is killed: nothing more is written, the page cache stays."""
        self.pool.close()


def numbered(prefix: bytes = b"value") -> Iterator[bytes]:
    """Values of 100 bytes that never come twice."""
    return (b"%s-%d." % (prefix, number) + b"x" * (99 - len(prefix)) for number in count())


def batch_places(files: FileSystem, path: str) -> list[tuple[int, int]]:
    """Position and length of the batches of a whole segment file."""
    content = read_small_file(files, path)
    assert content is not None
    places = []
    position = 0
    while position < len(content):
        length = parse_header(content, position).length
        assert length >= HEADER_SIZE
        places.append((position, length))
        position += length
    return places


def log_paths(files: FileSystem, suffix: str = ".log", directory: str = DIRECTORY) -> list[str]:
    return [f"{directory}/{name}" for name in files.list(directory) if name.endswith(suffix)]


def overwrite(files: FileSystem, path: str, position: int, content: bytes) -> None:
    file = files.open(path, write=True)
    assert file.pwritev([content], position) == len(content)
    file.sync()
    file.close()


def flip(files: FileSystem, path: str, position: int, bit: int = 0) -> None:
    file = files.open(path)
    (byte,) = file.pread(1, position)
    file.close()
    overwrite(files, path, position, bytes([byte ^ 1 << bit]))


def truncate(files: FileSystem, path: str, size: int) -> None:
    file = files.open(path, write=True)
    file.truncate(size)
    file.sync()
    file.close()


def fresh_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(seed)


def from_producer(rows: Sequence[Row], producer: int, epoch: int, sequence: int) -> Batch:
    return build(rows).from_producer(producer, epoch, sequence)
