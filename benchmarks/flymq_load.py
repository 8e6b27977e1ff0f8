"""FlyMQ load: pipelined PRODUCE of one record each with their answers, and FETCH to the end.

Requests are made before the clock runs. Answers to PRODUCE on one topic all have one size: they are counted
by it, and every one is checked to be no ERROR.
"""

import socket
import struct
import time
from collections.abc import Iterator
from itertools import chain, repeat

from benchmarks.broker_load import Watermark, connect, make_messages, receive_exactly
from benchmarks.broker_window import windowed
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import HEADER_BYTES
from penstock.wire.flymq.opcodes import FETCH, FETCH_BINARY, encode_request
from penstock.wire.flymq.produce import PRODUCE

# Requests on their way together, and in one send call.
WINDOW = 4_000
SENT_TOGETHER = 100
FETCHED = 1_000
# Of the answer to PRODUCE, beside the topic.
REPLY_BYTES = HEADER_BYTES + 2 + 28


class Replies:
    """Counts complete answers, whole frames only; refuses anything that is no answer to PRODUCE."""

    def __init__(self, topic: str, opcode: int = PRODUCE) -> None:
        self._size = REPLY_BYTES + len(topic)
        self._opcode = opcode
        self._left = b""
        self.count = 0

    def __call__(self, data: bytes) -> int:
        buffer = self._left + data
        whole = len(buffer) // self._size
        if buffer[2 : whole * self._size : self._size] != bytes((self._opcode,)) * whole:
            raise ConnectionError(f"PRODUCE was refused: {buffer[: 3 * self._size]!r}")
        self.count += whole
        self._left = buffer[whole * self._size :]
        return self.count


def produce_requests(topic: str, messages: list[bytes] | None = None) -> list[tuple[bytes, int]]:
    """All messages once, one to a request, several requests to a send call."""
    chosen = make_messages() if messages is None else messages
    return in_parts([encode_request(PRODUCE, m.Produce(topic, b"", one)) for one in chosen])


def in_parts(frames: list[bytes]) -> list[tuple[bytes, int]]:
    return [
        (b"".join(frames[at : at + SENT_TOGETHER]), len(frames[at : at + SENT_TOGETHER]))
        for at in range(0, len(frames), SENT_TOGETHER)
    ]


def produce_rate(
    port: int,
    topic: str,
    requests: list[tuple[bytes, int]],
    rounds: int,
    time_limit_s: float,
    opcode: int = PRODUCE,
) -> float:
    """Acknowledged records per second: each request is answered when its record is durable."""
    sending: Iterator[tuple[bytes, int]] = chain.from_iterable(repeat(requests, rounds))
    with connect(port) as connection:
        answered, took = windowed(connection, sending, WINDOW, Replies(topic, opcode), time_limit_s)
    return answered / took


def fetch_rate(
    port: int, topic: str, watermark: Watermark, time_limit_s: float, *, binary: bool
) -> float:
    """Records per second, from the start of the topic to its end, one request after the other."""
    end = watermark.of(topic)
    offset = 0
    with connect(port) as connection:
        begin = time.perf_counter()
        while offset < end and time.perf_counter() - begin < time_limit_s:
            request = m.Fetch(topic, 0, offset, FETCHED)
            connection.sendall(encode_request(FETCH_BINARY if binary else FETCH, request))
            offset = _next_offset(connection, binary)
        return offset / (time.perf_counter() - begin)


def _next_offset(connection: socket.socket, binary: bool) -> int:
    head = receive_exactly(connection, HEADER_BYTES)
    payload = receive_exactly(connection, int.from_bytes(head[4:], "big"))
    if head[2] not in (FETCH, FETCH_BINARY):
        raise ConnectionError(f"FETCH was refused: {payload!r}")
    found: int = struct.unpack(">Q", payload[4:12] if binary else payload[-8:])[0]
    return found
