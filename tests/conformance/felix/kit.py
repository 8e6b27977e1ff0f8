"""What the rows of Felix share: requests, replies, and the frames of event streams."""

from typing import Any

from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.felix.peer import NAMES, TOPIC, b64, exact, frames, publish

from penstock.wire.felix.batches import encode_publish_batch

SETTINGS = {"felix.streams": TOPIC, "felix.caches": "t/n/c"}
OK = exact('{"type":"ok"}')
ACKED = publish(ack="per_message")
BATCH = encode_publish_batch("t", "n", "s", [b"hello", b""])
SCOPE: dict[str, Any] = {"tenant_id": "t", "namespace": "n", "cache": "c"}
SUBSCRIBED = exact('{"type":"subscribed","subscription_id":1}')


def event(value: bytes) -> dict[str, str]:
    return {"type": "event", **NAMES, "payload": b64(value)}


def end(live: LiveServer, topic: str = TOPIC) -> int:
    """The offset behind the last event that can be seen."""
    return live.call(lambda: live.server.broker.offsets(topic, 0))[1]


def reply(wire: Wire, stream: int) -> Any:
    """The next frame: an object, or the bytes of a binary one."""
    head = wire.take(stream, 12)
    return frames(head + wire.take(stream, int.from_bytes(head[8:12], "big")))[0]


class Events:
    """The frames of the event streams of a connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def stream(self, number: int = 0) -> int:
        self._wire.until(lambda: len(self._wire.server_streams(unidirectional=True)) > number)
        return self._wire.server_streams(unidirectional=True)[number]

    def next(self, number: int = 0) -> Any:
        return reply(self._wire, self.stream(number))

    def values(self, count: int, number: int = 0) -> list[str]:
        """The payloads of the next events, however they are put into frames."""
        found: list[str] = []
        while len(found) < count:
            one = self.next(number)
            found += one["payloads"] if one["type"] == "event_batch" else [one["payload"]]
        return found
