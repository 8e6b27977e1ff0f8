"""RustLog load, dialect J: pipelined Produce with acknowledgements, and Fetch to the end."""

import re
import socket
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat

from benchmarks.broker_load import (
    RECEIVE_BYTES,
    Watermark,
    connect,
    make_messages,
    receive_frame,
)
from benchmarks.broker_window import windowed
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.json_encode import encode_request

FETCH_BYTES = 256 * 1024
NEXT_OFFSET = re.compile(rb'"next_offset":(\d+)')
# The last part of a Fetch reply that surely holds its next offset.
TAIL_BYTES = 64
# Requests on their way together: with one record each, and with a thousand.
SINGLE_WINDOW = 4_000
BATCH_WINDOW = 16


def create_topic(port: int, topic: str) -> None:
    with connect(port) as connection:
        connection.sendall(encode_request(rustlog.CreateTopic(topic, 1)))
        answer = receive_frame(connection)
        if b"CreateTopic" not in answer:
            raise ConnectionError(f"CreateTopic was refused: {answer!r}")


class _Replies:
    """Counts complete replies, whole frames only; refuses anything that is no Produce reply."""

    def __init__(self) -> None:
        self._left = b""
        self.count = 0

    def __call__(self, data: bytes) -> int:
        buffer = self._left + data
        position = 0
        while len(buffer) - position >= 4:
            end = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
            if end > len(buffer):
                break
            if not buffer.startswith(b'{"Produce"', position + 4):
                raise ConnectionError(f"Produce was refused: {buffer[position + 4 : end]!r}")
            self.count += 1
            position = end
        self._left = buffer[position:]
        return self.count


def produce_requests(topic: str, records: int) -> list[bytes]:
    """All messages once, `records` to a request."""
    messages = make_messages()
    return [
        encode_request(rustlog.Produce(topic, 0, messages[at : at + records]))
        for at in range(0, len(messages), records)
    ]


def produce_rate(
    port: int, requests: list[bytes], records: int, rounds: int, time_limit_s: float
) -> float:
    """Acknowledged records per second: each request is answered when its records are durable."""
    single = records == 1
    window = SINGLE_WINDOW if single else BATCH_WINDOW
    items = _grouped(requests, 100 if single else 1)
    sending: Iterator[tuple[bytes, int]] = chain.from_iterable(repeat(items, rounds))
    with connect(port) as connection:
        answered, took = windowed(connection, sending, window, _Replies(), time_limit_s)
    return answered * records / took


def _grouped(requests: list[bytes], size: int) -> list[tuple[bytes, int]]:
    """Several small requests to one send call."""
    source = iter(requests)
    groups: list[tuple[bytes, int]] = []
    while group := list(islice(source, size)):
        groups.append((b"".join(group), len(group)))
    return groups


def fetch_rate(port: int, topic: str, watermark: Watermark, time_limit_s: float) -> float:
    """Records per second, from the start of the topic to its end, one Fetch after the other."""
    end = watermark.of(topic)
    offset = 0
    with connect(port) as connection:
        begin = time.perf_counter()
        while offset < end and time.perf_counter() - begin < time_limit_s:
            request = rustlog.Fetch(topic, 0, offset, FETCH_BYTES, None)
            connection.sendall(encode_request(request))
            offset = _next_offset(connection)
        return offset / (time.perf_counter() - begin)


def _next_offset(connection: socket.socket) -> int:
    """Takes a Fetch reply and reads only its end."""
    first = connection.recv(RECEIVE_BYTES)
    while len(first) < 4:
        first += connection.recv(RECEIVE_BYTES)
    left = 4 + int.from_bytes(first[:4], "big") - len(first)
    tail = first[-TAIL_BYTES:]
    while left:
        part = connection.recv(min(left, RECEIVE_BYTES))
        if not part:
            raise ConnectionError("the server closed the connection")
        left -= len(part)
        tail = (tail + part)[-TAIL_BYTES:]
    found = NEXT_OFFSET.search(tail)
    if found is None:
        raise ConnectionError(f"no Fetch reply: ...{tail!r}")
    return int(found.group(1))
