"""The client of the request suite: one thread that never sleeps.

It spins on non-blocking sockets. A client that blocks pays for being woken with every answer, which
makes the echo four times as long and hides what the server costs. All requests of a run are the same bytes
and all answers have the same length, so that counting bytes is counting answers.
"""

import os
import select
import socket
import time
from pathlib import Path

from benchmarks.broker_load import RECEIVE_BYTES, TIMEOUT_S
from benchmarks.request_spoken import Spoken


def receive(connection: socket.socket) -> bytes:
    """What is there, or nothing. Raises when the server has closed."""
    try:
        data = connection.recv(RECEIVE_BYTES)
    except BlockingIOError:
        return b""
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def ask(connection: socket.socket, request: bytes, answer: bytes, count: int) -> list[float]:
    """Seconds of each of `count` requests, the next sent when the answer is there.

    `answer` is what every answer begins with, filled up to its length: one refusal would be an error.
    """
    connection.setblocking(False)
    times = []
    size, head = len(answer), answer[:ANSWER_HEAD_BYTES]
    for _ in range(count):
        begin = time.perf_counter()
        connection.send(request)
        got = receive(connection)
        while len(got) < size:
            got += receive(connection)
            if time.perf_counter() - begin > TIMEOUT_S:
                raise TimeoutError(f"{len(got)} of {size} bytes answered")
        times.append(time.perf_counter() - begin)
        if len(got) != size or not got.startswith(head):
            raise ConnectionError(f"the server answered {got!r}")
    return times


# Length and type, or magic, version, opcode and flags: after them come offsets, which differ.
ANSWER_HEAD_BYTES = 5
# Of a BlipMQ frame: its type stands behind its length.
FRAME_TYPE_AT = 4


def ask_on_many(
    connections: list[socket.socket], request: bytes, answer_bytes: int, time_limit_s: float
) -> float:
    """Answers a second over all connections, each with one request under way."""
    missing = {}
    answered = 0
    with select.epoll() as poll:
        by_number = {}
        for connection in connections:
            connection.setblocking(False)
            poll.register(connection, select.EPOLLIN)
            by_number[connection.fileno()] = connection
            missing[connection.fileno()] = answer_bytes
        begin = time.perf_counter()
        for connection in connections:
            connection.send(request)
        while (took := time.perf_counter() - begin) < time_limit_s:
            for number, _ in poll.poll(0):
                connection = by_number[number]
                left = missing[number] - len(receive(connection))
                if left:
                    missing[number] = left
                    continue
                answered += 1
                connection.send(request)
                missing[number] = answer_bytes
        _drain(connections, missing)
    return answered / took


def _drain(connections: list[socket.socket], missing: dict[int, int]) -> None:
    """Takes the answers that are still under way."""
    for connection in connections:
        connection.settimeout(TIMEOUT_S)
        left = missing[connection.fileno()]
        while left:
            data = connection.recv(left)
            if not data:
                raise ConnectionError("the server closed the connection")
            left -= len(data)


def ask_ahead(connection: socket.socket, spoken: Spoken, window: int, time_limit_s: float) -> float:
    """Answers a second on one connection with up to `window` requests under way."""
    request, answer = spoken.produce, spoken.produced
    connection.setblocking(False)
    requests = request * window
    size = len(request)
    sent = answered = 0
    unsent = b""
    got = b""
    begin = time.perf_counter()
    while True:
        took = time.perf_counter() - begin
        if took < time_limit_s and not unsent and sent - answered < window:
            room = window - (sent - answered)
            unsent = requests[: room * size]
            sent += room
        if unsent:
            unsent = send(connection, unsent)
        elif took >= time_limit_s and answered == sent:
            return answered / took
        elif took > time_limit_s + TIMEOUT_S:
            raise TimeoutError(f"{answered} of {sent} requests answered")
        got += receive(connection)
        count = len(got) // len(answer)
        if count:
            _check(got[: count * len(answer)], answer, spoken.kind_at)
            got = got[count * len(answer) :]
            answered += count


def send(connection: socket.socket, data: bytes) -> bytes:
    """What the kernel did not take."""
    try:
        return data[connection.send(data) :]
    except BlockingIOError:
        return data


def _check(answers: bytes, answer: bytes, kind_at: int) -> None:
    """Every answer has the type of the expected one."""
    kinds = answers[kind_at :: len(answer)]
    if kinds.count(answer[kind_at : kind_at + 1]) != len(kinds):
        raise ConnectionError(f"a request was refused: {answers[:100]!r}")


def ask_in_blocks(
    connection: socket.socket, block: bytes, answer: bytes, time_limit_s: float
) -> float:
    """Blocks a second, sent as fast as the server takes them; each has one answer."""
    connection.setblocking(False)
    sent = answered = 0
    unsent = got = b""
    begin = time.perf_counter()
    while (took := time.perf_counter() - begin) < time_limit_s or answered < sent:
        if took > time_limit_s + TIMEOUT_S:
            raise TimeoutError(f"{answered} of {sent} blocks answered")
        if not unsent and took < time_limit_s:
            unsent = block
            sent += 1
        if unsent:
            unsent = send(connection, unsent)
        got += receive(connection)
        count = len(got) // len(answer)
        if count:
            _check(got[: count * len(answer)], answer, FRAME_TYPE_AT)
            got = got[count * len(answer) :]
            answered += count
    return answered / took


def flush_times(path: Path, size: int, count: int, pause_s: float = 0.0) -> list[float]:
    """Seconds of each fdatasync behind a write of so many bytes at the end of a file, with pauses."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        data = bytes(size)
        times = []
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            os.write(descriptor, data)
            begin = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - begin)
        return times
    finally:
        os.close(descriptor)
