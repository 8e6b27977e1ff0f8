"""RustLog over a socket: addresses, restarts, and a server that runs out of descriptors: rows 55 to 57."""

import os
import resource
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.rustlog.peer import (
    BINARY,
    JSON,
    Dialect,
    Talker,
    both,
    live,
)
from kit.live_server import ServerProcess

from penstock.client.settings import parse_server
from penstock.server.config.loading import load_config


@pytest.mark.row("rustlog-55")
def test_the_default_address_is_that_of_the_existing_programs() -> None:
    """They have 127.0.0.1:9092 built in. A test must not take a fixed port: that RustLog answers on
    this listener, wherever it is, is the next test."""
    config = load_config(None, {}, {}).config
    assert str(config.listeners.tcp) == "127.0.0.1:9092"
    assert config.listeners.of("rustlog") is None
    assert parse_server("127.0.0.1").port == 9092


@pytest.mark.row("rustlog-55")
@pytest.mark.parametrize("listener", ["tcp", "rustlog"])
@both
def test_both_listeners_speak_both_dialects(
    tmp_path: Path, dialect: Dialect, listener: str
) -> None:
    """On the listener of its own every first byte is RustLog's: nothing is guessed."""
    with live(tmp_path) as running, Talker(running.port(listener)) as peer:
        assert peer.ask(dialect.ping()) == dialect.pong()
        assert peer.ask(dialect.create("t", 1)) == dialect.created()
    if listener == "rustlog":
        with live(tmp_path) as running, Talker(running.port("rustlog")) as peer:
            # 11 bytes that begin with 01 are BlipMQ's HELLO on the shared port.
            assert peer.ask(BINARY.produce("", 0, [])) == BINARY.missing("", 0)
        with live(tmp_path) as running, Talker(running.port("rustlog")) as peer:
            assert peer.ask(b"\x63").startswith(b'{"Error":{"message":"failed to parse request')


@pytest.mark.row("rustlog-45", "rustlog-56")
@both
def test_everything_survives_a_stop(tmp_path: Path, dialect: Dialect) -> None:
    """The existing broker loses all of it. Penstock has one durable log; what a SIGKILL leaves is
    proved in e2e."""
    with ServerProcess(tmp_path) as process:
        with Talker(process.ports["tcp"]) as peer:
            assert peer.ask(dialect.create("kept", 2)) == dialect.created()
            assert peer.ask(dialect.produce("kept", 1, [b"a", b"", b"c"])) == dialect.produced(0, 3)
            assert peer.ask(dialect.commit("g", "kept", 1, 2)) == dialect.committed()
        assert process.stop() == 0
    with ServerProcess(tmp_path) as process, Talker(process.ports["tcp"]) as peer:
        assert peer.ask(dialect.list_topics()) == dialect.topics([("kept", 2)])
        assert peer.ask(dialect.fetch("kept", 1, 0, 99)) == dialect.fetched(0, [b"a", b"", b"c"], 3)
        assert peer.ask(dialect.offset_fetch("g", "kept", 1)) == dialect.offset(2)
        assert peer.ask(dialect.produce("kept", 1, [b"d"])) == dialect.produced(3, 1)


@pytest.mark.row("rustlog-57")
@both
def test_a_server_without_descriptors_goes_on(tmp_path: Path, dialect: Dialect) -> None:
    """The existing broker exits. Penstock serves those who are in, and others when there is room."""
    with ServerProcess(tmp_path) as process, Talker(process.ports["tcp"]) as inside:
        assert inside.ask(dialect.create("t", 1)) == dialect.created()
        pid = process.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{pid}/fd")))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 3, before[1]))
        outside = [Talker(process.ports["tcp"]) for _ in range(12)]
        assert inside.ask(dialect.ping()) == dialect.pong()
        for peer in outside:
            peer.socket.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert inside.ask(dialect.produce("t", 0, [b"x"])) == dialect.produced(0, 1)
        with Talker(process.ports["tcp"]) as late:
            assert late.ask(dialect.fetch("t", 0, 0, 9)) == dialect.fetched(0, [b"x"], 1)
        assert process.process.poll() is None


@pytest.mark.row("rustlog-57")
def test_more_connections_than_allowed_are_refused_and_counted(tmp_path: Path) -> None:
    with live(tmp_path, limits__connections="2") as running:
        hub = running.server.hub
        with Talker(running.port()) as one, Talker(running.port()) as two:
            assert one.ask(JSON.ping()) == JSON.pong()
            assert two.ask(BINARY.ping()) == BINARY.pong()
            with Talker(running.port()) as three:
                assert three.at_end()
            assert running.call(lambda: hub.counters.refused["connections"]) == 1
            assert one.ask(JSON.ping()) == JSON.pong()
        until(lambda: running.call(lambda: len(hub.connections)) == 0, "connections gone")
        with Talker(running.port()) as four:
            assert four.ask(JSON.ping()) == JSON.pong()


@pytest.mark.row("rustlog-56")
@both
def test_a_produce_is_on_disk_when_it_is_answered(tmp_path: Path, dialect: Dialect) -> None:
    """Durability "ack" is the default: SIGKILL right behind the answer."""
    with ServerProcess(tmp_path) as process, Talker(process.ports["tcp"]) as peer:
        assert peer.ask(dialect.create("t", 1)) == dialect.created()
        assert peer.ask(dialect.produce("t", 0, [b"x"] * 3)) == dialect.produced(0, 3)
        process.kill()
    with live(tmp_path) as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.fetch("t", 0, 0, 99)) == dialect.fetched(0, [b"x"] * 3, 3)
