"""What the tests of FlyMQ's promises share: requests and what their answers say."""

import struct

from conformance.flymq.peer import FlyMQPeer, blob, text

from penstock.broker.access.access import Principal

ADMIN = Principal("test", "admin")
HOUR_MS = 3_600_000


def delayed(topic: str, value: bytes, delay_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", delay_ms)


def join(topic: str, member: str = "", timeout_ms: int = 30_000) -> bytes:
    return text(topic) + text("g") + text(member) + struct.pack(">I", timeout_ms)


def joined(payload: bytes) -> tuple[str, list[int]]:
    size = int.from_bytes(payload[:2], "big")
    (count,) = struct.unpack_from(">I", payload, 6 + size)
    return payload[2 : 2 + size].decode(), list(
        struct.unpack_from(f">{count}i", payload, 10 + size)
    )


def begin(peer: FlyMQPeer) -> str:
    reply = peer.want(0x40)
    return reply[2 : 2 + int.from_bytes(reply[:2], "big")].decode()


def values(peer: FlyMQPeer, topic: str) -> list[bytes]:
    return [value for _, _, value in peer.fetch(topic)[0]]
