"""The file that gets the audit trail too: rotation, a new one after a rename, and disks that fail."""

import json
import os
import stat
from pathlib import Path

import pytest
from kit.audit import trail
from kit.live_server import LiveServer

from penstock.broker.access.principal import Principal
from penstock.broker.audit.events import TOPIC_CREATED
from penstock.server import audit_file
from penstock.server.audit_file import AuditFile

BO = Principal("bo", "admin")


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_lines_are_written_for_the_server_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), None, 1)
    file.write([b"{}", b'{"a":"\xc3\xa4"}'])
    file.write([b"[]"])
    file.close()
    assert lines(path) == [b"{}", b'{"a":"\xc3\xa4"}', b"[]"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_renamed_at_its_size_and_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), 100, 2)
    for number in range(20):
        file.write([b"%030d" % number])
    file.close()
    kept = [tmp_path / f"audit.jsonl{end}" for end in (".2", ".1", "")]
    numbers = [int(line) for one in kept for line in lines(one)]
    assert numbers == list(range(20 - len(numbers), 20)) and len(numbers) < 10
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(one.name for one in kept)


def test_after_a_rename_it_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), None, 1)
    file.write([b"before"])
    file.reopen()
    file.close()
    os.rename(path, tmp_path / "moved")
    file = AuditFile(str(path), None, 1)
    file.write([b"first"])
    file.close()
    assert lines(tmp_path / "moved") == [b"before"] and lines(path) == [b"first"]


def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        AuditFile(str(tmp_path / "none" / "audit.jsonl"), None, 1)


def test_a_write_that_fails_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "there"
    directory.mkdir()
    path = directory / "audit.jsonl"
    file = AuditFile(str(path), None, 1)
    path.unlink()
    directory.rmdir()
    file.reopen()
    file.write([b"1", b"2"])
    file.write([b"3"])
    file.close()
    assert file.lost == 3
    assert caplog.text.count("events of the audit trail") == 1


def test_lines_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "MAX_WAITING", 2)
    file = AuditFile(str(tmp_path / "audit.jsonl"), None, 1)
    file.write([b"1", b"2", b"3"])
    file.close()
    assert file.lost == 3


def test_a_server_writes_both_and_opens_it_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with LiveServer(tmp_path / "data", {"audit.file": str(path)}) as server:
        audit = server.server.broker.audit
        server.call(lambda: audit.changed(BO, TOPIC_CREATED, "one"))
        in_topic = trail(server)
        moved = tmp_path / "moved"
        server.run(server.server.use_audit_file())
        os.rename(path, moved)
        server.run(server.server.use_audit_file())
        server.call(lambda: audit.changed(BO, TOPIC_CREATED, "two"))
        trail(server)
    found = [json.loads(line) for one in (moved, path) for line in lines(one)]
    resources = [one["resource"] for one in found if one["type"] == TOPIC_CREATED]
    assert resources == ["one", "two"]
    assert [one["id"] for one in found][: len(in_topic)] == [event.id for event in in_topic]
