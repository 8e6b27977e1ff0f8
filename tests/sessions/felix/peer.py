"""The client's end of a Felix connection without a socket, and the frames that it sends and expects."""

import base64
import json
from typing import Any

from broker.bench import ANYBODY, Bench
from sessions.quic_kit import ConnectionRecorder, StreamRecorder

from penstock.broker.access.access import Principal
from penstock.sessions.felix.connection import FelixConnection
from penstock.sessions.felix.options import FelixOptions
from penstock.sessions.stream import SessionLimits
from penstock.sessions.streams import StreamSession
from penstock.wire.felix.frames import framed

NAMES = {"tenant_id": "t", "namespace": "n", "stream": "s"}
TOPIC = "t/n/s"
NOT_FOUND = "stream not found: tenant=t namespace=n stream=none"


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def message(type: str, **fields: object) -> bytes:
    return framed(json.dumps({"type": type, **fields}).encode())


def publish(value: bytes = b"x", **fields: object) -> bytes:
    return message("publish", **{**NAMES, "payload": b64(value), **fields})


def subscribe(**fields: object) -> bytes:
    return message("subscribe", **{**NAMES, **fields})


def frames(data: bytes) -> list[Any]:
    """What is in the frames: JSON as objects, binary ones as bytes."""
    found: list[Any] = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        assert data[:6] == b"FLX1\x00\x01" and len(data) >= size
        flags, payload = int.from_bytes(data[6:8], "big"), data[12:size]
        found.append(payload if flags else json.loads(payload))
        data = data[size:]
    return found


def exact(text: str) -> bytes:
    return framed(text.encode())


class Stream:
    """One stream that the client opened."""

    def __init__(self, bench: Bench, recorder: StreamRecorder, session: StreamSession) -> None:
        self.bench = bench
        self.recorder = recorder
        self.session = session

    def ask(self, data: bytes) -> bytes:
        self.session.receive(data)
        return self.answers()

    def answers(self) -> bytes:
        self.bench.settle()
        found = bytes(self.recorder.written)
        self.recorder.written.clear()
        return found


class Client:
    def __init__(
        self,
        bench: Bench,
        options: FelixOptions | None = None,
        principal: Principal = ANYBODY,
        allowed: int = 100,
        limits: SessionLimits | None = None,
    ) -> None:
        self.bench = bench
        self.connection = ConnectionRecorder(None, allowed)
        self.session = FelixConnection(
            bench.broker,
            self.connection,
            limits or SessionLimits(),
            principal,
            options or FelixOptions(),
        )

    def open(self, *, unidirectional: bool = False, room: int | None = None) -> Stream:
        recorder, session = self.connection.peer_opens(
            self.session, unidirectional=unidirectional, room=room
        )
        assert session is not None
        return Stream(self.bench, recorder, session)

    def events(self, number: int = 0) -> list[Any]:
        """The frames of an event stream since the last time; those that are being gathered too."""
        self.bench.settle()
        self.bench.advance(1)
        self.bench.settle()
        recorder, _ = self.connection.opened[number]
        found = frames(bytes(recorder.written))
        recorder.written.clear()
        return found
