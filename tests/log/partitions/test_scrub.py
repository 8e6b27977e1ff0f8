"""The scrub: every sealed segment once in a round, slowly, on from where it was, and damage is told."""

import pytest
from kit.engines import Opener, make, put
from kit.partitions import Bench, append_rows, roll
from kit.records import Row
from kit.simulated_disk import SimulatedDisk

from penstock.log.embedded import EngineOptions
from penstock.log.partitions import scrub
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.scrub import IDLE_US, Scrub

PERIOD_US = 1_000_000_000
FILES = [f"/data/{number}/{base:020d}.log" for number in (0, 1) for base in (0, 2)]


class Watch:
    """Two partitions with two sealed segments each, a clock, and the waits of the scrub."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(1)
        self.now_us = 0
        self.waits: list[float] = []
        self.closing = False
        self.partitions = [self._filled(number) for number in (0, 1)]
        self.scrub = self.begin()

    def _filled(self, number: int) -> Partition:
        partition = Bench(self.disk, f"/data/{number}").open()
        for place in range(3):
            roll(partition, Row(b"v" * 100, place))
            append_rows(partition, [[Row(b"w" * 100, place)]])
        return partition

    def begin(self) -> Scrub:
        return Scrub(
            self.disk, "/data", PERIOD_US, lambda: self.partitions, lambda: self.now_us, self._wait
        )

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.closing

    def due(self) -> str | None:
        """Lets time pass until the next one is due."""
        self.now_us += int(self.scrub._left_s() * 1_000_000)
        return self.scrub.step()


def test_a_round_takes_the_whole_time_and_reads_everything_once() -> None:
    watch = Watch()
    assert watch.scrub.step() is None, "a start is busy enough"
    read = [watch.due() for _ in range(4)]
    assert read == FILES
    assert watch.scrub.read_bytes == sum(watch.disk.size(path) for path in FILES)
    began_us = IDLE_US
    assert [watch.due() for _ in range(4)] == FILES
    assert watch.now_us - began_us == pytest.approx(PERIOD_US * 7 / 4, rel=0.01)


def test_nothing_is_read_before_it_is_due() -> None:
    watch = Watch()
    watch.due()
    read_bytes = watch.scrub.read_bytes
    watch.now_us += PERIOD_US // 5
    assert (watch.scrub.step(), watch.scrub.read_bytes) == (None, read_bytes)


def test_it_goes_on_after_a_restart() -> None:
    watch = Watch()
    assert [watch.due(), watch.due()] == FILES[:2]
    watch.scrub = watch.begin()
    assert watch.scrub.step() is None, "not due yet"
    assert [watch.due(), watch.due(), watch.due()] == [*FILES[2:], FILES[0]]


def test_damage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    file = watch.disk.open(FILES[1], write=True)
    file.pwritev([b"\xff"], 100)
    for _ in range(8):
        watch.due()
    assert [partition.counters.damages for partition in watch.partitions] == [1, 0]
    (line,) = caplog.messages
    assert f"log damaged: {FILES[1]} at byte 0: checksum is" in line
    assert "offsets 2 to 2 cannot be read" in line


def test_it_is_slow_and_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "STEP_BYTES", 100)
    monkeypatch.setattr(scrub, "MAX_BYTES_PER_S", 50)
    watch = Watch()
    assert watch.due() == FILES[0]
    assert watch.waits and all(seconds >= 2 for seconds in watch.waits)
    watch.closing = True
    watch.due()
    watch.closing = False
    watch.scrub = watch.begin()
    assert watch.due() == FILES[1], "what was not read to its end is read again"


def test_without_sealed_segments_it_waits() -> None:
    watch = Watch()
    watch.partitions = []
    assert watch.due() is None
    assert watch.scrub._left_s() == IDLE_US / 1_000_000
    assert not watch.disk.exists("/data/scrub")


@pytest.mark.parametrize("period_us", [None, PERIOD_US])
def test_an_engine_has_one_if_it_is_asked_for(opened: Opener, period_us: int | None) -> None:
    engine = opened(EngineOptions(scrub_period_us=period_us))
    make(engine, "t")
    put(engine, "t", b"v")
    assert engine.statistics().scrubbed_bytes == 0
    engine.close()
