"""Descriptions of topics: whole and durable, one or thousands of them, with few syncs."""

from contextlib import closing
from pathlib import Path

import pytest
from kit.engines import make, put, settle
from kit.faulty_files import FaultyFiles
from kit.limits import HANG_S
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES

from penstock.log.embedded import EmbeddedEngine
from penstock.log.metadata.descriptions import (
    DESCRIPTION_FILE,
    MANY,
    WRITTEN_AT_ONCE,
    Description,
    read_description,
    write_descriptions,
)
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles


def described(number: int, partitions: int) -> tuple[str, Description]:
    return f"t{number}", Description(f"t{number}", number, partitions, TopicSettings(), 7)


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, MANY + 4])
def test_a_description_is_old_or_new_whenever_power_goes(count: int) -> None:
    disk = SimulatedDisk(1)
    for number in range(count):
        disk.make_directory(f"/topics/t{number}")
    old = [described(number, 1) for number in range(count)]
    new = [described(number, 2) for number in range(count)]
    write_descriptions(disk, "/topics", old)
    first_done = len(disk.operations)
    write_descriptions(disk, "/topics", new)
    for at in range(first_done, len(disk.operations) + 1):
        for mode in PURE_MODES:
            found = disk.crash_after(at, mode)
            for (directory, before), (_, after) in zip(old, new, strict=True):
                left = read_description(found, f"/topics/{directory}")
                assert left in ((after,) if at == len(disk.operations) else (before, after))


def test_what_is_as_it_should_be_is_not_written(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    descriptions = [described(number, 1) for number in range(MANY)]
    for directory, _ in descriptions:
        files.make_directory(f"{tmp_path}/{directory}")
    write_descriptions(files, str(tmp_path), descriptions)
    files.calls.clear()
    write_descriptions(files, str(tmp_path), descriptions)
    assert not files.calls["create"] and not files.calls["sync_all"] and not files.calls["sync"]


def test_a_stop_after_many_first_records_syncs_a_few_times(tmp_path: Path) -> None:
    """A sync for each description was a minute for 10,000 topics."""
    files = FaultyFiles(RealFiles())
    names = [f"t{number}" for number in range(MANY * 5)]
    with closing(EmbeddedEngine(str(tmp_path), files=files)) as engine:
        for name in names:
            make(engine, name)
            put(engine, name, b"v")
        files.calls.clear()
    assert len(names) <= WRITTEN_AT_ONCE
    assert files.calls["sync_all"] == 2
    assert files.calls["sync"] + files.calls["sync_directory"] < 10
    for name in names:
        found = read_description(files, f"{tmp_path}/topics/{name}")
        assert found is not None and found.name == name


def test_a_topic_that_is_gone_is_not_described(tmp_path: Path) -> None:
    with closing(EmbeddedEngine(str(tmp_path))) as engine:
        for name in ("kept", "gone"):
            make(engine, name)
            put(engine, name, b"v")
        engine.delete_topic("gone").result(HANG_S)
        settle(engine)
        engine.catalogue.wait_for_removals()
        engine.maintain()
    assert [path.parent.name for path in tmp_path.rglob(DESCRIPTION_FILE)] == ["kept"]
