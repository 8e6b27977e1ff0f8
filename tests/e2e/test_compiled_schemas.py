"""Schemas are compiled in threads: at registration, at a start, at the first use; never on the loop."""

import threading
from pathlib import Path

import pytest
from conformance.flymq.peer import FlyMQPeer, blob, text
from kit.flight_client import make
from kit.live_server import LiveServer

from penstock.broker.schemas import registry
from penstock.broker.schemas.kinds import Limits, Validator, compile_definition

SCHEMA = b'{"type":"object","properties":{"a":{"type":"integer"}}}'


def test_the_event_loop_compiles_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, str]] = []

    def noted(kind: str, definition: bytes, limits: Limits) -> Validator:
        compiled.append((definition.decode(), threading.current_thread().name))
        return compile_definition(kind, definition, limits)

    monkeypatch.setattr(registry, "compile_definition", noted)
    data = tmp_path / "data"
    with LiveServer(data) as server, FlyMQPeer(server.port()) as peer:
        loop_name = server.run(_thread_name())
        for name in ("bound", "free"):
            peer.want(0x10, text(name) + b"\x04json" + blob(SCHEMA))
        make(server, "t", schema="bound")
        assert len(compiled) == 2
        peer.produce("t", b'{"a":1}')
        peer.want(0x14, text("t") + blob(b'{"a":2}') + text("free"))
        assert len(compiled) == 2  # at registration
    compiled.clear()
    with LiveServer(data) as server, FlyMQPeer(server.port()) as peer:
        found = server.server.broker.schemas.registry
        assert found.is_compiled("bound") and not found.is_compiled("free")
        peer.produce("t", b'{"a":3}')
        assert len(compiled) == 1  # at the start
        peer.want(0x14, text("t") + blob(b'{"a":4}') + text("free"))
        assert peer.ask(0x14, text("t") + blob(b'{"a":"x"}') + text("free")).opcode == 0xFF
        assert peer.ask(0x14, text("t") + blob(b"{}") + text("unknown")).opcode == 0xFF
        assert len(compiled) == 2  # at its first use
        assert [value for _, _, value in peer.fetch("t")[0]] == [
            b'{"a":%d}' % number for number in (1, 2, 3, 4)
        ]
    assert loop_name not in [thread for _, thread in compiled]


async def _thread_name() -> str:
    return threading.current_thread().name
