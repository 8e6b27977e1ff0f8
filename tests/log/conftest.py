"""Fixtures of the log's tests: an engine on a directory of its own, on files that can fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.engines import Opener, make
from kit.faulty_files import FaultyFiles

from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.storage.files import RealFiles
from penstock.log.transactions import retries


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(RealFiles())


@pytest.fixture(autouse=True)
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test says when something is tried again, or sets a time of its own."""
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 3600.0)


@pytest.fixture
def opened(tmp_path: Path, files: FaultyFiles) -> Iterator[Opener]:
    """Opens the engine on the directory of this test; closes what is left open."""
    engines: list[EmbeddedEngine] = []

    def open_engine(options: EngineOptions | None = None, **more: object) -> EmbeddedEngine:
        for engine in engines:
            engine.close()
        engine = EmbeddedEngine(str(tmp_path / "data"), options, files=files, **more)  # type: ignore[arg-type]  # keywords of the engine
        engines.append(engine)
        return engine

    yield open_engine
    files.clear()
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(opened: Opener) -> EmbeddedEngine:
    """With topic a of two partitions and topic b of one: what tests of transactions write to."""
    engine = opened()
    make(engine, "a", 2)
    make(engine, "b")
    return engine
