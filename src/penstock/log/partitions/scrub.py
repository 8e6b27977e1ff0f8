"""The scrub reads every sealed segment once in a configured time, to find damage while backups have it.

A sealed segment may not be read for weeks; a disk may lose a bit meanwhile. The scrub takes one segment
after the other, in the order of their paths, and waits between them so that a round takes the whole time.
Where it stands is kept in the file `scrub` of the data directory, so a restart does not begin anew. While
it waits it costs nothing. What it finds goes to the report of the partition; it repairs nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.log.errors import CorruptLog, LogError
from penstock.log.partitions.partition import Partition
from penstock.log.storage.files import FileSystem
from penstock.log.storage.segment import Segment, read_small_file, write_small_file

SCRUB_FILE: Final = "scrub"
# Read at most, whatever the time of a round: a small part of what a slow disk gives.
MAX_BYTES_PER_S: Final = 16 * 1024 * 1024
# Between two waits.
STEP_BYTES: Final = 4 * 1024 * 1024
# The first look after a start, and the next one where nothing is sealed.
IDLE_US: Final = 600 * 1_000_000
# The longest wait at once: a clock that is put right must not stop the scrub.
MAX_WAIT_S: Final = 3600.0

logger = logging.getLogger(__name__)


class _State(msgspec.Struct, frozen=True):
    """The segment that was read last, and when the next one is due."""

    path: str
    due_us: int


class Scrub:
    """`wait` waits for so many seconds, and gives True when the log is being closed."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        period_us: int,
        partitions: Callable[[], Iterable[Partition]],
        clock_us: Callable[[], int],
        wait: Callable[[float], bool],
    ) -> None:
        self.read_bytes = 0
        self._files = files
        self._path = f"{directory}/{SCRUB_FILE}"
        self._period_us = period_us
        self._partitions = partitions
        self._clock_us = clock_us
        self._wait = wait
        self._state = self._read_state()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="penstock-scrub", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        while not self._wait(self._left_s()):
            try:
                self.step()
            except (LogError, OSError) as error:
                logger.warning("scrub: %s", error)
                self._state = _State(self._state.path, self._clock_us() + IDLE_US)

    def _left_s(self) -> float:
        return min(max(self._state.due_us - self._clock_us(), 0) / 1_000_000, MAX_WAIT_S)

    def step(self) -> str | None:
        """Reads the next segment, if one is due. Gives its path."""
        now_us = self._clock_us()
        if now_us < self._state.due_us:
            return None
        sealed = sorted(
            ((segment.path, partition, segment) for partition, segment in self._sealed()),
            key=lambda one: one[0],
        )
        if not sealed:
            self._state = _State("", now_us + IDLE_US)
            return None
        total = sum(partition.segment_size(segment) for _, partition, segment in sealed)
        # Behind the last one a new round begins.
        path, partition, segment = next(
            (one for one in sealed if one[0] > self._state.path), sealed[0]
        )
        size = partition.segment_size(segment)
        if self._scrub(partition, segment):
            share = size / total if total else 1.0
            self._note(_State(path, now_us + int(self._period_us * share)))
        return path

    def _sealed(self) -> Iterable[tuple[Partition, Segment]]:
        for partition in self._partitions():
            for segment in partition.segments[:-1]:
                if segment.sealed:
                    yield partition, segment

    def _scrub(self, partition: Partition, segment: Segment) -> bool:
        """False when the log is closed meanwhile: the segment is read again after the start."""
        paced = 0
        with partition.pool.use(segment.path) as file:
            for found in segment.scan(file, file.size()):
                damage = found.damage
                if damage is not None and segment in partition.segments:  # else it was replaced
                    end = max(damage.next_offset, damage.first_offset + 1)
                    partition.damages.tell(
                        CorruptLog(
                            damage.path, damage.position, damage.reason, damage.first_offset, end
                        )
                    )
                if found.position - paced >= STEP_BYTES:
                    self.read_bytes += found.position - paced
                    if self._wait((found.position - paced) / MAX_BYTES_PER_S):
                        return False
                    paced = found.position
            self.read_bytes += file.size() - paced
        return True

    def _read_state(self) -> _State:
        data = read_small_file(self._files, self._path)
        try:
            return msgspec.json.decode(data or b"", type=_State)
        except msgspec.DecodeError:
            return _State("", self._clock_us() + IDLE_US)

    def _note(self, state: _State) -> None:
        self._state = state
        write_small_file(self._files, self._path, msgspec.json.encode(state))
