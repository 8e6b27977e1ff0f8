"""Delayed messages: how fast they are taken, how late they come, and what millions of them cost.

Lateness goes by the clock of this machine: a message carries the time at which it is due, and one thread
sends, fetches and looks at that clock, so half a round trip is in it.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.broker_load import connect, make_messages, receive_exactly
from benchmarks.broker_servers import Process
from benchmarks.broker_window import windowed
from benchmarks.flymq_load import WINDOW, Replies, in_parts
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import ERROR, HEADER_BYTES
from penstock.wire.flymq.opcodes import FETCH_BINARY, encode_request
from penstock.wire.flymq.produce import PRODUCE, PRODUCE_DELAYED

HOUR_MS = 3_600_000
# The pending ones are due between one and twenty hours after the start.
FIRST_MS, LAST_MS = HOUR_MS, 20 * HOUR_MS
# The load beside the delayed messages whose lateness is measured, and their delays.
STEP_S = 0.002
DELAYED_PER_S = 20_000
ORDINARY_PER_S = 100_000
SHORTEST_MS, LONGEST_MS = 200, 3_000
FETCHED = 1_000
STAMP = struct.Struct(">d")


def requests(topic: str, delays_ms: Iterator[int]) -> list[tuple[bytes, int]]:
    """All messages once, with these delays, several requests to a send call."""
    return in_parts(
        [
            encode_request(PRODUCE_DELAYED, a.ProduceDelayed(topic, message, next(delays_ms)))
            for message in make_messages()
        ]
    )


def any_delays(seed: int = 7) -> Iterator[int]:
    chance = random.Random(seed)
    while True:
        yield chance.randint(FIRST_MS, LAST_MS)


def produce_rate(
    port: int, topic: str, sent: list[tuple[bytes, int]], count: int, time_limit_s: float
) -> float:
    """Acknowledged messages per second, up to `count` of them."""

    def some() -> Iterator[tuple[bytes, int]]:
        left = count
        while left > 0:
            for data, number in sent:
                yield data, number
                left -= number
                if left <= 0:
                    return

    with connect(port) as connection:
        replies = Replies(topic, PRODUCE_DELAYED)
        answered, took = windowed(connection, some(), WINDOW, replies, time_limit_s)
    return answered / took


@dataclass(frozen=True, slots=True)
class Lateness:
    """In milliseconds."""

    p50_ms: float
    p99_ms: float
    greatest_ms: float
    count: int


class LateWatch:
    """Sends delayed and ordinary messages by the clock, and fetches what is delivered."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._sending = connect(port)
        self._fetching = connect(port)
        self._chance = random.Random(3)
        self._offset = 0
        self._asked = False
        self._answers = b""
        self._late_ms: list[float] = []
        ordinary = [m.Produce(f"{topic}.load", b"", one) for one in make_messages(2_000)]
        self._ordinary = [encode_request(PRODUCE, one) for one in ordinary]

    def run(self, seconds: float) -> Lateness:
        """The first second is not counted: topics and files are made in it."""
        begin = time.perf_counter()
        sent = 0
        steps = int(seconds / STEP_S)
        for step in range(steps):
            sent += self._send()
            self._look(
                0.0
            )  # also where sending is behind its time: what was delivered must not wait
            while time.perf_counter() < begin + (step + 1) * STEP_S:
                self._look(0.0005)
        deadline = time.perf_counter() + 30
        while len(self._late_ms) < sent and time.perf_counter() < deadline:
            self._look(0.001)
        if len(self._late_ms) != sent:
            raise TimeoutError(f"{len(self._late_ms)} of {sent} delayed messages came")
        self._sending.close()
        self._fetching.close()
        found = sorted(self._late_ms[DELAYED_PER_S:])
        return Lateness(median(found), found[int(len(found) * 0.99)], found[-1], len(found))

    def _send(self) -> int:
        now_s = time.time()
        count = int(DELAYED_PER_S * STEP_S)
        frames = []
        for _ in range(count):
            delay_ms = self._chance.randint(SHORTEST_MS, LONGEST_MS)
            value = STAMP.pack(now_s + delay_ms / 1_000) + bytes(92)
            frames.append(
                encode_request(PRODUCE_DELAYED, a.ProduceDelayed(self._topic, value, delay_ms))
            )
        first = self._chance.randrange(len(self._ordinary) // 2)
        frames += self._ordinary[first : first + int(ORDINARY_PER_S * STEP_S)]
        self._sending.sendall(b"".join(frames))
        return count

    def _look(self, wait_s: float) -> None:
        """Takes the answers to what was sent, and delivered messages."""
        self._sending.settimeout(0.0)
        try:
            data = self._answers + self._sending.recv(1 << 20)
            at = 0
            while len(data) - at >= HEADER_BYTES:
                if data[at + 2] == ERROR:
                    raise ConnectionError(f"refused: {data[at : at + 200]!r}")
                size = HEADER_BYTES + int.from_bytes(data[at + 4 : at + 8], "big")
                if len(data) - at < size:
                    break
                at += size
            self._answers = data[at:]
        except BlockingIOError:
            pass
        self._sending.settimeout(30)
        if not self._asked:
            request = m.Fetch(self._topic, 0, self._offset, FETCHED)
            self._fetching.sendall(encode_request(FETCH_BINARY, request))
        self._asked = True
        self._fetching.settimeout(wait_s)
        try:
            head = self._fetching.recv(HEADER_BYTES)
        except (TimeoutError, BlockingIOError):
            return
        self._fetching.settimeout(30)
        head += receive_exactly(self._fetching, HEADER_BYTES - len(head))
        payload = receive_exactly(self._fetching, int.from_bytes(head[4:], "big"))
        self._asked = False
        if not self._note(payload):
            time.sleep(wait_s)

    def _note(self, payload: bytes) -> int:
        now_s = time.time()
        count, self._offset = struct.unpack_from(">IQ", payload)
        at = 12
        for _ in range(count):
            (key_size,) = struct.unpack_from(">I", payload, at + 8)
            at += 12 + key_size
            (value_size,) = struct.unpack_from(">I", payload, at)
            (due_s,) = STAMP.unpack_from(payload, at + 4)
            self._late_ms.append((now_s - due_s) * 1_000)
            at += 4 + value_size
        return int(count)


def resident_growth(server: Process, before_bytes: int) -> float:
    """In MiB."""
    return (server.resident_bytes() - before_bytes) / (1024 * 1024)


def is_there(connection: socket.socket, topic: str) -> None:
    """Makes the topic, so that a FETCH of it is no error."""
    connection.sendall(encode_request(0x03, m.CreateTopic(topic, 1)))
    head = receive_exactly(connection, HEADER_BYTES)
    receive_exactly(connection, int.from_bytes(head[4:], "big"))
