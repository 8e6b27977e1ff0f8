"""FlyMQ for tests, written from the documents alone: nothing here uses the product's own codec.

`FlyMQPeer` is a socket that speaks frames. Payloads are built from `text`, `blob` and struct formats; `raw`
turns the hex of the documents into bytes.
"""

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from kit.live_server import LiveServer, RawPeer

CAP = 33_554_432
U64_MAX = (1 << 64) - 1
OK = b"\x01\x00\x02OK"
SPEC = "spec"
SDK = "sdk"

both = pytest.mark.parametrize("dialect", [SPEC, SDK])


def raw(written: str) -> bytes:
    """Of hex with blanks and "text"."""
    parts = re.split(r'"([^"]*)"', written)
    return b"".join(
        part.encode() if number % 2 else bytes.fromhex(part) for number, part in enumerate(parts)
    )


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def names(*values: str) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(map(text, values))


def frame(opcode: int, payload: bytes = b"", flags: int = 1) -> bytes:
    return struct.pack(">BBBBI", 0xAF, 1, opcode, flags, len(payload)) + payload


class Reply(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def error(self) -> str:
        """Of an ERROR in the dialect of the document."""
        assert self.opcode == 0xFF and self.payload[:1] == b"\x00", self
        assert self.payload[1:3] == struct.pack(">H", len(self.payload) - 3)
        return self.payload[3:].decode()

    @property
    def sdk_error(self) -> tuple[int, str]:
        """As an SDK reads it: a code, of which the low byte is ours, and a text."""
        assert self.opcode == 0xFF, self
        code, size = struct.unpack_from(">IH", self.payload)
        assert len(self.payload) == 6 + size
        return code & 0xFF, self.payload[6:].decode()


class FlyMQPeer(RawPeer):
    def hear(self) -> Reply:
        magic, version, opcode, flags, size = struct.unpack(">BBBBI", self.receive(8))
        assert (magic, version, flags) == (0xAF, 1, 1)
        assert size <= CAP
        return Reply(opcode, self.receive(size))

    def hear_frame(self) -> bytes:
        head = self.receive(8)
        return head + self.receive(int.from_bytes(head[4:], "big"))

    def ask(self, opcode: int, payload: bytes = b"", flags: int = 1) -> Reply:
        self.send(frame(opcode, payload, flags))
        return self.hear()

    def want(self, opcode: int, payload: bytes = b"") -> bytes:
        """The payload of an answer that is no error."""
        reply = self.ask(opcode, payload)
        assert reply.opcode == opcode, reply
        return reply.payload

    # --- requests that many tests need ------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self.want(0x03, text(topic) + struct.pack(">i", partitions)) == OK

    def produce(
        self, topic: str, value: bytes, key: bytes = b"", partition: int = -1
    ) -> tuple[int, int]:
        """Where it went: partition and offset."""
        return placed(self.want(0x01, produce(topic, value, key, partition)))

    def fetch(
        self, topic: str, offset: int = 0, most: int = 1_000, partition: int = 0
    ) -> tuple[list[tuple[int, bytes, bytes]], int]:
        """(offset, key, value) of each, and where to go on. As FETCH_BINARY, which has one layout."""
        return fetched(self.want(0x0B, fetch(topic, offset, most, partition)))


def produce(topic: str, value: bytes, key: bytes = b"", partition: int = -1) -> bytes:
    return text(topic) + blob(key) + blob(value) + struct.pack(">i", partition)


def placed(metadata: bytes) -> tuple[int, int]:
    size = int.from_bytes(metadata[:2], "big")
    partition, offset = struct.unpack_from(">iQ", metadata, 2 + size)
    return partition, offset


def fetch(
    topic: str, offset: int, most: int, partition: int = 0, filtered: str | None = None
) -> bytes:
    payload = text(topic) + struct.pack(">iQi", partition, offset, most)
    return payload if filtered is None else payload + text(filtered)


def fetched(payload: bytes) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """In the order of the SDKs."""
    count, next_offset = struct.unpack_from(">IQ", payload)
    at = 12
    found = []
    for _ in range(count):
        (offset,) = struct.unpack_from(">Q", payload, at)
        key, at = _blob_at(payload, at + 8)
        value, at = _blob_at(payload, at)
        found.append((offset, key, value))
    assert at == len(payload)
    return found, next_offset


def fetched_by_spec(payload: bytes) -> tuple[list[tuple[int, bytes, bytes]], int]:
    (count,) = struct.unpack_from(">I", payload)
    at = 4
    found = []
    for _ in range(count):
        key, at = _blob_at(payload, at)
        value, at = _blob_at(payload, at)
        (offset,) = struct.unpack_from(">Q", payload, at)
        at += 8
        found.append((offset, key, value))
    assert at + 8 == len(payload)
    return found, struct.unpack_from(">Q", payload, at)[0]


def _blob_at(payload: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">I", payload, at)
    return payload[at + 4 : at + 4 + size], at + 4 + size


def group_row(topic: str, group: str, members: int, offsets: dict[int, int]) -> bytes:
    rows = b"".join(struct.pack(">iQ", *one) for one in offsets.items())
    return text(topic) + text(group) + struct.pack(">II", members, len(offsets)) + rows


# ---- the ways in which frames may arrive ---------------------------------------------------------

Way = Callable[[FlyMQPeer, list[bytes]], list[bytes]]


def one_by_one(peer: FlyMQPeer, frames: list[bytes]) -> list[bytes]:
    replies = []
    for one in frames:
        peer.send(one)
        replies.append(peer.hear_frame())
    return replies


def byte_by_byte(peer: FlyMQPeer, frames: list[bytes]) -> list[bytes]:
    for byte in b"".join(frames):
        peer.send(bytes((byte,)))
    return [peer.hear_frame() for _ in frames]


def pipelined(peer: FlyMQPeer, frames: list[bytes]) -> list[bytes]:
    peer.send(b"".join(frames))
    return [peer.hear_frame() for _ in frames]


every_way = pytest.mark.parametrize("way", [one_by_one, byte_by_byte, pipelined])


@contextmanager
def live(data: Path, **settings: str) -> Iterator[LiveServer]:
    """Settings with `__` for the point: `flymq__dialect="sdk"`."""
    with LiveServer(data, {key.replace("__", "."): value for key, value in settings.items()}) as it:
        yield it
