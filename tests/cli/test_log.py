"""`penstock log verify`: lines, JSON, exit codes, and a directory that a server holds."""

import json
import os
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.cli import main as cli
from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine
from penstock.log.storage.lock import LOCK_FILE_NAME


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one topic of four records in two batches."""
    directory = tmp_path / "data"
    engine = EmbeddedEngine(str(directory))
    engine.create_topic("orders")
    for _ in range(2):
        engine.append("orders", 0, encode_values([b"one", b"two"], 1)).result(HANG_S)
    engine.close()
    return directory


def segment(data: Path) -> Path:
    (path,) = data.rglob("*.log")
    return path


def snapshot(data: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in data.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("part", ["", "/", "/topics/orders/0", "/topics/orders/0/"])
def test_a_clean_log(data: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(data)
    size = segment(data).stat().st_size
    assert cli.main(["log", "verify", f"{data}{part}"]) == 0
    line = f"1 partitions, 1 segments, 2 batches, 4 records, {size} bytes: clean\n"
    assert capsys.readouterr().out == line
    assert snapshot(data) == before


def test_damage_is_a_line_each_and_exit_code_1(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(data)
    content = path.read_bytes()
    path.write_bytes(content[:80] + b"\xee" + content[81:])
    before = snapshot(data)
    assert cli.main(["log", "verify", str(data)]) == 1
    captured = capsys.readouterr()
    first, summary = captured.out.splitlines()
    assert first.startswith(f"{path}: byte 0: checksum is ")
    assert first.endswith("; offsets 0 to 1 cannot be read")
    assert summary.endswith(": 1 damaged place")
    assert captured.err == ""
    assert snapshot(data) == before


def test_damage_of_a_file_without_records(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(data).with_name("checkpoint")
    path.write_bytes(b"rubbish")
    assert cli.main(["log", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"{path}: byte 0: checksum does not match; no offsets are lost\n" in out


def test_a_torn_tail_is_told_and_is_no_error(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(data)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"torn")
    assert cli.main(["log", "verify", str(data)]) == 0
    first, summary = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: byte {size}: torn tail of 4 bytes, cut at the next start")
    assert summary.endswith(": clean")


def test_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(data)
    path.write_bytes(b"\xee" + path.read_bytes()[1:] + b"torn")
    assert cli.main(["log", "verify", str(data), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["directory"], answer["clean"], answer["records"]) == (str(data), False, 2)
    (damage,) = answer["damages"]
    assert (damage["path"], damage["position"], damage["reason"]) == (
        str(path),
        0,
        "no batch magic",
    )
    assert (damage["first_offset"], damage["next_offset"]) == (0, 2)
    assert len(answer["torn"]) == 1


@pytest.mark.parametrize("part", ["", "/topics/orders/0"])
def test_a_running_server_keeps_it_out(
    data: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EmbeddedEngine(str(data))
    try:
        assert cli.main(["log", "verify", f"{data}{part}"]) == 1
    finally:
        engine.close()
    error = capsys.readouterr().err
    assert error.startswith(f"penstock: data directory {data} is in use by process {os.getpid()}")
    assert error.count("\n") == 1


def test_a_copy_without_a_lock_file_gets_none(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / LOCK_FILE_NAME).unlink()
    assert cli.main(["log", "verify", str(data)]) == 0
    assert not (data / LOCK_FILE_NAME).exists()


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_wrong_directory_is_exit_code_2(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / name
    assert cli.main(["log", "verify", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"penstock: {path} is no data directory and no partition of one; name one of these\n"
    )
