"""RustLog for tests, written from the documents alone: nothing here uses the product's own codec.

`JSON` and `BINARY` are the two dialects: each builds requests and the exact replies that it expects.
`Talker` is a socket that speaks frames. `WAYS` are the ways in which frames may arrive.
"""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import pytest
from kit.live_server import LiveServer, RawPeer

CAP = 10_485_760
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1
I64_MAX = (1 << 63) - 1
PING_B = b"\xff"


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Talker(RawPeer):
    """Payloads in, payloads out."""

    def tell(self, *payloads: bytes) -> None:
        self.send(b"".join(map(framed, payloads)))

    def hear(self) -> bytes:
        """The payload of one reply; a reply never passes the cap."""
        size = int.from_bytes(self.receive(4), "big")
        assert size <= CAP
        return self._receive_much(size)

    def ask(self, payload: bytes) -> bytes:
        self.tell(payload)
        return self.hear()

    def _receive_much(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self.socket.recv_into(view[done:])
            assert count, f"the server closed after {done} of {size} bytes"
            done += count
        return bytes(data)


# ---- the ways in which frames may arrive ---------------------------------------------------------

Way = Callable[[Talker, list[bytes]], list[bytes]]


def one_by_one(peer: Talker, payloads: list[bytes]) -> list[bytes]:
    """Each waits for the answer to the one before."""
    return [peer.ask(payload) for payload in payloads]


def byte_by_byte(peer: Talker, payloads: list[bytes]) -> list[bytes]:
    replies = []
    for payload in payloads:
        for byte in framed(payload):
            peer.send(bytes((byte,)))
        replies.append(peer.hear())
    return replies


def pipelined(peer: Talker, payloads: list[bytes]) -> list[bytes]:
    """All in one write; answers come in order."""
    peer.tell(*payloads)
    return [peer.hear() for _ in payloads]


def with_a_torn_frame_behind(peer: Talker, payloads: list[bytes]) -> list[bytes]:
    """Each write ends in the middle of the frame that follows."""
    data = b"".join(map(framed, payloads)) + framed(PING_B)
    cuts = [0]
    for payload in payloads:
        cuts.append(min(cuts[-1] + 4 + len(payload) + (3 if cuts[-1] == 0 else 0), len(data)))
    cuts.append(len(data))
    for start, end in pairwise(cuts):
        peer.send(data[start:end])
    replies = [peer.hear() for _ in payloads]
    assert peer.hear() == PING_B
    return replies


WAYS: tuple[Way, ...] = (one_by_one, byte_by_byte, pipelined, with_a_torn_frame_behind)


# ---- the dialects --------------------------------------------------------------------------------


class Dialect(Protocol):
    name: str

    def ping(self) -> bytes: ...
    def pong(self) -> bytes: ...
    def produce(self, topic: str, partition: int, records: list[bytes]) -> bytes: ...
    def produced(self, base: int, count: int) -> bytes: ...
    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, group: str | None = None
    ) -> bytes: ...
    def fetched(self, base: int, payloads: list[bytes], next_offset: int) -> bytes: ...
    def commit(self, group: str, topic: str, partition: int, offset: int) -> bytes: ...
    def committed(self) -> bytes: ...
    def offset_fetch(self, group: str, topic: str, partition: int) -> bytes: ...
    def offset(self, offset: int | None) -> bytes: ...
    def create(self, topic: str, partitions: int) -> bytes: ...
    def created(self) -> bytes: ...
    def list_topics(self) -> bytes: ...
    def topics(self, topics: list[tuple[str, int]]) -> bytes: ...
    def error(self, code: int, text: str) -> bytes: ...
    def missing(self, topic: str, partition: int) -> bytes: ...
    def count(self, fetch_reply: bytes) -> int: ...


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class JsonDialect:
    """Keys in the order of the document's schemas, compact."""

    name = "J"

    def ping(self) -> bytes:
        return b'"Ping"'

    def pong(self) -> bytes:
        return b'"Pong"'

    def produce(self, topic: str, partition: int, records: list[bytes]) -> bytes:
        lists = [list(record) for record in records]
        return compact({"Produce": {"topic": topic, "partition": partition, "records": lists}})

    def produced(self, base: int, count: int) -> bytes:
        return compact({"Produce": {"offsets": list(range(base, base + count))}})

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, group: str | None = None
    ) -> bytes:
        fields = {"topic": topic, "partition": partition, "offset": offset, "max_bytes": max_bytes}
        return compact({"Fetch": {**fields, "group_id": group}})

    def fetched(self, base: int, payloads: list[bytes], next_offset: int) -> bytes:
        records = [
            {"offset": base + number, "payload": list(payload)}
            for number, payload in enumerate(payloads)
        ]
        return compact({"Fetch": {"records": records, "next_offset": next_offset}})

    def commit(self, group: str, topic: str, partition: int, offset: int) -> bytes:
        fields = {"topic": topic, "partition": partition, "group_id": group, "offset": offset}
        return compact({"OffsetCommit": fields})

    def committed(self) -> bytes:
        return b'{"OffsetCommit":{"success":true}}'

    def offset_fetch(self, group: str, topic: str, partition: int) -> bytes:
        fields = {"topic": topic, "partition": partition, "group_id": group}
        return compact({"OffsetFetch": fields})

    def offset(self, offset: int | None) -> bytes:
        return compact({"OffsetFetch": {"offset": offset}})

    def create(self, topic: str, partitions: int) -> bytes:
        return compact({"CreateTopic": {"topic": topic, "partition_count": partitions}})

    def created(self) -> bytes:
        return b'{"CreateTopic":{"success":true}}'

    def list_topics(self) -> bytes:
        return b'"ListTopics"'

    def topics(self, topics: list[tuple[str, int]]) -> bytes:
        entries = [{"topic": name, "partition_count": count} for name, count in topics]
        return compact({"ListTopics": {"topics": entries}})

    def error(self, code: int, text: str) -> bytes:
        return compact({"Error": {"message": text}})

    def missing(self, topic: str, partition: int) -> bytes:
        return self.error(0, f"partition not found: topic={topic}, partition={partition}")

    def count(self, fetch_reply: bytes) -> int:
        return len(json.loads(fetch_reply)["Fetch"]["records"])


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


class BinaryDialect:
    """Section 1.1 of the table."""

    name = "B"

    def ping(self) -> bytes:
        return PING_B

    def pong(self) -> bytes:
        return PING_B

    def produce(self, topic: str, partition: int, records: list[bytes]) -> bytes:
        head = b"\x01" + text(topic) + struct.pack(">II", partition, len(records))
        return head + b"".join(map(framed, records))

    def produced(self, base: int, count: int) -> bytes:
        return struct.pack(">BQI", 1, base, count)

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, group: str | None = None
    ) -> bytes:
        place = struct.pack(">IQI", partition, offset, max_bytes)
        return b"\x02" + text(group or "") + text(topic) + place

    def fetched(self, base: int, payloads: list[bytes], next_offset: int) -> bytes:
        head = struct.pack(">BI", 2, len(payloads))
        return head + b"".join(map(framed, payloads)) + struct.pack(">Q", next_offset)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> bytes:
        return b"\x03" + text(group) + text(topic) + struct.pack(">IQ", partition, offset)

    def committed(self) -> bytes:
        return b"\x03\x01"

    def offset_fetch(self, group: str, topic: str, partition: int) -> bytes:
        return b"\x04" + text(group) + text(topic) + struct.pack(">I", partition)

    def offset(self, offset: int | None) -> bytes:
        return b"\x04\x00" if offset is None else struct.pack(">BBQ", 4, 1, offset)

    def create(self, topic: str, partitions: int) -> bytes:
        return b"\x05" + text(topic) + struct.pack(">I", partitions)

    def created(self) -> bytes:
        return b"\x05\x01"

    def list_topics(self) -> bytes:
        return b"\x06"

    def topics(self, topics: list[tuple[str, int]]) -> bytes:
        entries = b"".join(text(name) + struct.pack(">I", count) for name, count in topics)
        return struct.pack(">BI", 6, len(topics)) + entries

    def error(self, code: int, words: str) -> bytes:
        return struct.pack(">BH", 0xFE, code) + text(words)

    def missing(self, topic: str, partition: int) -> bytes:
        words = f"Topic or partition does not exist: topic={topic}, partition={partition}"
        return self.error(10, words)

    def count(self, fetch_reply: bytes) -> int:
        assert fetch_reply[0] == 2
        return int.from_bytes(fetch_reply[1:5], "big")


JSON = JsonDialect()
BINARY = BinaryDialect()
DIALECTS: tuple[Dialect, ...] = (JSON, BINARY)


def parse_error(reply: bytes) -> str:
    """The message of an Error reply of J, which has no other field."""
    message = json.loads(reply)["Error"]["message"]
    assert reply == JSON.error(0, message)
    assert isinstance(message, str)
    return message


def dialect_name(value: object) -> str | None:
    """For the names of parametrised tests."""
    return getattr(value, "name", None) or getattr(value, "__name__", None)


both = pytest.mark.parametrize("dialect", DIALECTS, ids=dialect_name)
every_way = pytest.mark.parametrize("way", WAYS, ids=dialect_name)


# ---- places --------------------------------------------------------------------------------------


class Topics:
    """Gives every test topics of its own on a server that many tests share."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._made = 0

    def new(self, partitions: int = 1) -> str:
        self._made += 1
        name = f"t{self._made}"
        with Talker(self._server.port()) as peer:
            assert peer.ask(BINARY.create(name, partitions)) == BINARY.created()
        return name

    def holding(self, *records: bytes) -> str:
        """A topic of one partition with these records."""
        name = self.new()
        with Talker(self._server.port()) as peer:
            reply = peer.ask(BINARY.produce(name, 0, list(records)))
        assert reply == BINARY.produced(0, len(records))
        return name


@contextmanager
def live(data: Path, **settings: str) -> Iterator[LiveServer]:
    """Settings with `__` for the point: `limits__login_time="1 s"`."""
    with LiveServer(data, {key.replace("__", "."): value for key, value in settings.items()}) as it:
        yield it
