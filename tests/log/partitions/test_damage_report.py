"""Damage that is met after the start: one line in the log, one more in the metric, whoever met it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.engines import WAIT_S, Opener, make, put
from kit.flight_client import FLIGHT, column, connect_to
from kit.live_server import LiveServer

from penstock.broker.errors import from_exception
from penstock.client.errors import Refused
from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import CorruptLog, KeyUnknown
from penstock.log.partitions import damage_report
from penstock.log.partitions.damage_report import DamageReport
from penstock.log.statistics import Counters


def damaged_place(engine: EmbeddedEngine, root: Path) -> str:
    """Flips one bit of the second batch of a sealed segment. Gives the file."""
    make(engine, "t", segment_bytes=4096, retention_ms=0)
    for number in range(4):
        put(engine, "t", b"%d" % number * 1500, time_us=number)
    engine.close()
    path = root / "topics" / "t" / "0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[1700] ^= 1
    path.write_bytes(content)
    return str(path)


Meet = Callable[[EmbeddedEngine, int], object]


def read(engine: EmbeddedEngine, offset: int) -> object:
    return engine.read("t", 0, offset, 100).result(WAIT_S)


def find_time(engine: EmbeddedEngine, offset: int) -> object:
    return engine.offset_at_time("t", 0, offset).result(WAIT_S)


@pytest.mark.parametrize("meet", [read, find_time], ids=["read", "time"])
def test_a_reader_tells_of_it(
    opened: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, meet: Meet
) -> None:
    path = damaged_place(opened(), tmp_path / "data")
    engine = opened()
    assert (engine.statistics().log.damages, caplog.text) == (0, ""), "a start does not read it"
    for _ in range(3):
        with pytest.raises(CorruptLog) as refused:
            meet(engine, 1)
        answer = str(from_exception(refused.value))
        assert f"({0:020d}.log at byte {refused.value.position})" in answer
    assert engine.statistics().log.damages == 1
    (line,) = caplog.messages
    assert f"log damaged: {path} at byte {refused.value.position}: checksum is" in line
    assert engine.partition_info("t", 0).damages[0].startswith(f"{path} at byte ")


def test_the_cleaner_tells_of_it(
    opened: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged_place(opened(), tmp_path / "data")
    engine = opened()
    put(engine, "t", b"touched")
    for _ in range(2):
        engine.maintain()
    assert engine.statistics().log.damages == 1
    (line,) = (line for line in caplog.messages if path in line)
    assert "checksum is" in line
    with pytest.raises(CorruptLog):
        read(engine, 1)
    assert engine.statistics().log.damages == 1, "the same place"


def test_what_is_told_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_report, "MAX_TOLD", 3)
    counters = Counters()
    report = DamageReport(counters)
    for position in range(10):
        report.tell(CorruptLog("file", position, "checksum", 0, 1))
    report.tell(KeyUnknown("other", 0, "encrypted with key 3", 0, 1))
    assert (counters.damages, len(caplog.messages)) == (3, 4)
    assert "further damage of this partition is not told" in caplog.text


def test_the_flight_process_tells_of_it(
    opened: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged_place(opened(), tmp_path / "data")
    with LiveServer(tmp_path / "data", FLIGHT) as server, connect_to(server) as client:
        for _ in range(2):
            with pytest.raises(Refused, match=rf"checksum is .*\({0:020d}.log at byte \d+\)"):
                column(client, "t")
        assert server.call(server.server.engine.statistics).log.damages == 1
    assert len([line for line in caplog.messages if f"log damaged: {path}" in line]) == 1
