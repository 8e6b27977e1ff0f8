"""A server that starts with a transaction that is decided and cannot be finished, and finishes it later."""

import errno
import threading
from pathlib import Path

import pytest
from kit.engines import embedded, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.live_server import WAIT_S, LiveServer
from kit.transactions import ALL, NOTHING, everything, fill, first_file, staged_files

from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import CommitUnfinished
from penstock.log.storage.files import RealFiles
from penstock.server.config.loading import load_config


def damaged_directory(directory: Path) -> tuple[Path, bytes]:
    """A part of a transaction is in the log, the rest is damaged. Gives that file, and how it was."""
    files = FaultyFiles(RealFiles())
    engine = EmbeddedEngine(str(directory), files=files)
    make(engine, "a", 2)
    make(engine, "b")
    fill(engine)
    files.fail("write", errno.ENOSPC, times=None, suffix=first_file(engine, "b"))
    with pytest.raises(CommitUnfinished, match="No space left"):
        engine.transactions.commit("q", ALL)
    (path,) = (Path(path) for path in staged_files(engine) if path.endswith("/2.stage"))
    engine.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    return path, whole


def shown(server: LiveServer, name: str) -> float:
    text = server.run(server.server.metrics.summary()).decode()
    (line,) = (line for line in text.splitlines() if line.startswith(f"penstock_{name} "))
    return float(line.rpartition(" ")[2])


def test_the_rest_is_served_meanwhile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, whole = damaged_directory(tmp_path / "data")
    caplog.clear()
    with LiveServer(tmp_path / "data") as server:
        engine = embedded(server.server.engine)
        assert server.server.http.state == "ready"
        assert shown(server, "transactions_unfinished") == 1
        assert everything(engine) == NOTHING
        make(engine, "c")
        put(engine, "c", b"as ever")
        assert values_of(engine, "c") == [b"as ever"]
        assert f"staged records are damaged: {path} at byte" in caplog.text
        assert "Traceback" not in caplog.text
        done = threading.Event()
        server.call(lambda: engine.watch("b", 0, 0, done.set))
        path.write_bytes(whole)
        assert done.wait(WAIT_S)
        assert everything(engine)["b/0"] == [b"1.2", b"1.2+", b"2.0", b"2.0+"]
        assert everything(engine)["a/1"] == [b"1.0", b"1.0+"]
    assert engine.transactions.unfinished == 0


def test_the_memory_of_names_is_a_setting(tmp_path: Path) -> None:
    assert load_config(None, {}, {}).config.log.transaction_memory_us == 30 * 24 * 3600 * 1_000_000
    with LiveServer(tmp_path / "data", {"log.transaction_memory": "2 h"}) as server:
        assert embedded(server.server.engine).options.transaction_memory_us == 7_200_000_000
