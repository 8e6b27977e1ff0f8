"""Servers and peers for the conformance tests. One server serves all tests that need no setting of
their own; each test has fresh topics."""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from conformance.blipmq.peer import BlipMQPeer, ping
from kit.engines import embedded
from kit.faulty_files import FaultyFiles
from kit.live_server import LiveServer

from penstock.log.embedded import wall_clock_us
from penstock.log.engine import Engine
from penstock.server.assembly import open_engine

Start = Callable[[Mapping[str, str]], LiveServer]
Connect = Callable[[LiveServer], BlipMQPeer]

# The number of the PING that follows an exchange, and how much of it may come with the frame before it.
BEHIND = 0x7777_7777_7777_7777
TRAILING_BYTES = 7

# For tests in the time of the machine: nothing is repeated or dropped for its age while they run. So a stop
# would wait its longest for acknowledgements that never come. No audit trail: its appends would meet the
# faults that are meant for a topic.
PATIENT = {
    "audit.enabled": "false",
    "blipmq.retry_backoff": "1 h",
    "blipmq.message_ttl": "off",
    "server.drain_time": "300 ms",
}

_topics = count(1)


class Clock:
    """The time of a broker, which only a test moves."""

    def __init__(self) -> None:
        self.now_us = wall_clock_us()

    def __call__(self) -> int:
        return self.now_us

    def advance_us(self, time_us: int) -> None:
        self.now_us += time_us

    def advance_ms(self, time_ms: int) -> None:
        self.now_us += 1000 * time_ms


@pytest.fixture(scope="session")
def blipmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The server that most tests share."""
    with LiveServer(tmp_path_factory.mktemp("blipmq"), PATIENT) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers of one data directory, with settings; the second one after the first stopped."""
    with ExitStack() as stack:
        yield lambda settings: stack.enter_context(LiveServer(tmp_path / "data", settings))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connections that are not logged in."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(BlipMQPeer(server.port("blipmq")))


@pytest.fixture
def stranger(blipmq: LiveServer, connect: Connect) -> BlipMQPeer:
    """Connected to the shared server, not logged in."""
    return connect(blipmq)


@pytest.fixture
def peer(stranger: BlipMQPeer) -> BlipMQPeer:
    """Logged in at the shared server."""
    return stranger.login()


@pytest.fixture
def other(blipmq: LiveServer, connect: Connect) -> BlipMQPeer:
    """A second connection to the shared server, logged in."""
    return connect(blipmq).login()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_topics):04}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Every server that starts after this has its time from here."""
    clock = Clock()

    def open_with_clock(*arguments: Any) -> Engine:
        engine: Any = open_engine(*arguments)
        engine.clock_us = clock
        return cast("Engine", engine)

    monkeypatch.setattr("penstock.server.server.open_engine", open_with_clock)
    return clock


class Disk:
    """The disk of a running server: fails on plan for files that are opened from now on."""

    def __init__(self, server: LiveServer) -> None:
        engine = embedded(server.server.engine)
        self.files = FaultyFiles(engine.files)
        server.call(lambda: setattr(engine.pool, "files", self.files))

    def is_full(self) -> None:
        self.files.fail("write", errno.ENOSPC, times=None, suffix=".log")

    def loses_flushes(self) -> None:
        self.files.fail("sync", errno.EIO, suffix=".log")


@pytest.fixture
def disk_of() -> Callable[[LiveServer], Disk]:
    return Disk


# ---- the ways in which bytes arrive --------------------------------------------------------------


class Exchange:
    """Sends in one of three ways, and gets exactly these answers: what comes behind them is asked for."""

    def __init__(self, way: str) -> None:
        self._way = way

    def __call__(self, peer: BlipMQPeer, data: bytes, *answers: bytes) -> None:
        behind = ping(BEHIND)
        early = TRAILING_BYTES if self._way == "with trailing bytes" else 0
        self._send(peer, data + behind[:early])
        peer.expect(*answers)
        peer.send(behind[early:])
        # A PONG, or the refusal of a PING before login.
        assert peer.frame()[5:13] == behind[5:13]

    def _send(self, peer: BlipMQPeer, data: bytes) -> None:
        if self._way == "byte by byte":
            for number in range(len(data)):
                peer.send(data[number : number + 1])
        else:
            peer.send(data)

    def closes(self, peer: BlipMQPeer, data: bytes, *answers: bytes) -> None:
        """After these answers the server closes; what follows the error is lost."""
        try:
            self._send(peer, data + (ping(BEHIND) if self._way == "with trailing bytes" else b""))
        except (BrokenPipeError, ConnectionResetError):
            assert self._way == "byte by byte", "only a later byte can come too late"
        peer.expect(*answers)
        assert peer.at_end()


@pytest.fixture(params=["whole", "byte by byte", "with trailing bytes"])
def exchange(request: pytest.FixtureRequest) -> Exchange:
    return Exchange(request.param)
