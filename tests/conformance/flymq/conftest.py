"""What the FlyMQ tests share: a server for each file, a topic of each test's own, a connection."""

from collections.abc import Iterator

import pytest
from conformance.flymq.peer import FlyMQPeer, live
from kit.live_server import LiveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("flymq")) as running:
        yield running


@pytest.fixture
def peer(server: LiveServer) -> Iterator[FlyMQPeer]:
    with FlyMQPeer(server.port()) as talker:
        yield talker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nothing is made yet."""
    return str(request.node.name)
