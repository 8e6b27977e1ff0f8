"""One server for each file of rows, and a connection for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.felix.kit import SETTINGS
from conformance.quic import Wire
from kit.live_server import LiveServer


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(Path(tmp_path_factory.mktemp("felix")) / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def wire(live: LiveServer) -> Iterator[Wire]:
    made = Wire(live)
    yield made
    made.close()
