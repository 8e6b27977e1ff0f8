"""Sends encoded requests over one connection while at most so many of them wait for their answers.

One thread, non-blocking: sends what the window allows, receives what is there. What an answer looks like
is told by the caller.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator

from benchmarks.broker_load import RECEIVE_BYTES, TIMEOUT_S

# No answer at all for this long: the server hangs, it is not just slow.
SILENCE_S = 2 * TIMEOUT_S

# Given all that was received since the last call, how many requests have been answered in all.
CountAnswers = Callable[[bytes], int]


def windowed(
    connection: socket.socket,
    requests: Iterator[tuple[bytes, int]],
    window: int,
    count_answers: CountAnswers,
    time_limit_s: float,
) -> tuple[int, float]:
    """Sends until the requests or the time are over, then waits for the answers: count and seconds.

    Each item is encoded bytes and how many requests they are.
    """
    connection.setblocking(False)
    sent = answered = 0
    left = b""
    more = True
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        begin = time.perf_counter()
        while True:
            if not left and more and sent - answered < window:
                item = next(requests, None)
                more = item is not None and time.perf_counter() - begin < time_limit_s
                if more and item is not None:
                    left, count = item
                    sent += count
            if left:
                left = _send(connection, left)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
            selector.modify(connection, wanted)
            if not more and not left and answered == sent:
                break  # the time was over just when the last answer had come
            may_send = more and not left and sent - answered < window
            ready = selector.select(0 if may_send else SILENCE_S)
            if not ready and not may_send:
                raise TimeoutError(f"{answered} of {sent} requests answered")
            if any(events & selectors.EVENT_READ for _, events in ready):
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed the connection")
                answered = count_answers(data)
        took = time.perf_counter() - begin
    connection.settimeout(TIMEOUT_S)
    return answered, took


def _send(connection: socket.socket, data: bytes) -> bytes:
    """What the kernel did not take."""
    try:
        return data[connection.send(data) :]
    except BlockingIOError:
        return data
