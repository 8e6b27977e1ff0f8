"""Two engines on one data directory: the second one says who holds it, and harms nothing.

The lock itself is tested in tests/log/storage/test_lock.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from faults.log_kit import plain
from kit.limits import HANG_S

from penstock.log.embedded import EmbeddedEngine
from penstock.log.storage.lock import DataDirectoryInUse

HOLD = """
import sys
from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine
engine = EmbeddedEngine(sys.argv[1])
engine.create_topic("held")
engine.append("held", 0, encode_values([b"theirs"], 1)).result(300)
print("held", flush=True)
sys.stdin.readline()
engine.append("held", 0, encode_values([b"still theirs"], 1)).result(300)
engine.close()
"""


def test_the_second_engine_says_who_holds_the_directory(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(source)},
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")}
            for _ in range(2):
                with pytest.raises(DataDirectoryInUse) as raised:
                    EmbeddedEngine(str(tmp_path))
                assert str(child.pid) in str(raised.value)
                assert str(tmp_path) in str(raised.value)
            assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.log")}
            child.communicate("go on\n", timeout=HANG_S)
            assert child.returncode == 0
        finally:
            child.kill()
    engine = EmbeddedEngine(str(tmp_path))
    try:
        assert engine.append("held", 0, plain(b"ours")).result(HANG_S) == 2
        views = engine.read("held", 0, 0, 1000).result(HANG_S).views
        values = [value for view in views for value in view.values()]
        assert values == [b"theirs", b"still theirs", b"ours"]
    finally:
        engine.close()


def test_one_process_cannot_open_it_twice(tmp_path: Path) -> None:
    engine = EmbeddedEngine(str(tmp_path))
    try:
        with pytest.raises(DataDirectoryInUse):
            EmbeddedEngine(str(tmp_path))
    finally:
        engine.close()
    EmbeddedEngine(str(tmp_path)).close()
