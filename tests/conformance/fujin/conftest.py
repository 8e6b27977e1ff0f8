"""One server for each file of rows, and a connection for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.fujin.kit import SETTINGS
from conformance.quic import Wire
from kit.live_server import LiveServer


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(Path(tmp_path_factory.mktemp("fujin")) / "data", SETTINGS) as server:
        for topic in ("t", "u", "v"):
            server.call(lambda topic=topic: server.server.broker.create_topic(ANYBODY, topic, 1))  # type: ignore[misc]
        yield server


@pytest.fixture
def wire(live: LiveServer) -> Iterator[Wire]:
    made = Wire(live, ["fujin"])
    yield made
    made.close()
