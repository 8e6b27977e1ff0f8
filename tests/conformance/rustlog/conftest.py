"""What the RustLog tests share: a server for each file, topics that no other test uses, a connection."""

from collections.abc import Iterator

import pytest
from conformance.rustlog.peer import Talker, Topics, live
from kit.live_server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("rustlog")) as running:
        yield running


@pytest.fixture(scope="module")
def topics(server: LiveServer) -> Topics:
    return Topics(server)


@pytest.fixture
def peer(server: LiveServer) -> Iterator[Talker]:
    with Talker(server.port()) as talker:
        yield talker
