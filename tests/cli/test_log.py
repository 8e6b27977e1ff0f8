"""`penstock log verify`: lines, JSON, exit codes, and a directory that a server holds."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.cli import main as cli
from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine
from penstock.log.metadata.store import MetadataStore
from penstock.log.records import Put
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


def test_the_directory_as_an_option(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `serve` and `key` take it."""
    assert cli.main(["log", "verify", "--data", str(data)]) == 0
    assert capsys.readouterr().out.endswith(": clean\n")
    for command in ("verify", "rebuild-metadata"):
        for given in ([], [str(data), "--data", str(data)]):
            assert cli.main(["log", command, *given]) == 2
            err = capsys.readouterr().err
            assert err.startswith(
                "penstock: name one directory, as it is or with --data; see penstock"
            )
            assert err.count("\n") == 1


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


def garbage(path: Path) -> str:
    path.write_bytes(b"garbage" * 1000)
    return "file is not a database"


def missing(path: Path) -> str:
    path.unlink()
    return "missing"


def flipped(path: Path) -> str:
    content = bytearray(path.read_bytes())
    at = content.index(b'{"id":1,"directory":"orders"')
    start = at - at % 4096  # the page that holds the topic
    content[start : start + 64] = b"\xa5" * 64
    path.write_bytes(content)
    return ""


def odd_record(path: Path) -> str:
    with closing(MetadataStore(str(path))) as store:
        store.change((Put("topics", "odd", b'{"id": "seven"}'),)).result(HANG_S)
    return "record 'odd' of topics: "


@pytest.mark.parametrize("damage", [garbage, missing, flipped, odd_record])
def test_metadata_that_cannot_be_used_is_told(
    data: Path, damage: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    reason = damage(data / "metadata.db")
    before = snapshot(data)
    assert cli.main(["log", "verify", str(data)]) == 1
    first, summary = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{data}/metadata.db: {reason}")
    assert summary.endswith(": 1 damaged place")
    assert cli.main(["log", "verify", str(data), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["clean"] is False and reason in answer["metadata"]
    assert snapshot(data) == before


def test_metadata_that_a_crash_left_is_fine(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last changes are in the write-ahead log, and stay there."""
    with closing(MetadataStore(str(data / "metadata.db"))) as store:
        store.change((Put("counters", "a", b"1"),)).result(HANG_S)
        crashed = Path(shutil.copytree(data, tmp_path / "crashed"))
    assert (crashed / "metadata.db-wal").stat().st_size
    before = snapshot(crashed)
    assert cli.main(["log", "verify", str(crashed)]) == 0
    assert capsys.readouterr().out.endswith(": clean\n")
    assert snapshot(crashed) == before


def test_lost_metadata_is_made_anew(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "rebuild-metadata", str(data)]) == 2
    assert "move it away first" in capsys.readouterr().err
    (data / "metadata.db").unlink()
    (data / "topics" / "older" / "1").mkdir(parents=True)
    assert cli.main(["log", "rebuild-metadata", f"{data}/"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "2 topics taken back; keys and committed offsets are not: make a key before you start",
        "topic older: 2 partitions; its settings are not known: it has the defaults",
        "topic orders: 1 partition",
    ]
    assert cli.main(["log", "verify", str(data)]) == 0
    with closing(EmbeddedEngine(str(data))) as engine:
        assert engine.offsets("orders", 0) == (0, 4)


def test_what_is_no_data_directory_gets_no_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", "rebuild-metadata", str(tmp_path)]) == 2
    assert "it has no directory of topics" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_key_for_topics_without_metadata_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "metadata.db").unlink()
    assert cli.main(["key", "create", "ann", "--data", str(data)]) == 1
    assert "penstock log rebuild-metadata" in capsys.readouterr().err
    assert not (data / "metadata.db").exists()
