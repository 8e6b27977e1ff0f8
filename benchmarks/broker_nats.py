"""NATS JetStream load: pipelined PUB with a reply subject, counting the acknowledgements.

A raw client of the text protocol, so that no client library is what is measured. All
acknowledgements of one connection come in order and carry the sequence of the stream.
"""

import json
from collections.abc import Iterator
from itertools import chain, repeat

from benchmarks.broker_load import connect, make_messages
from benchmarks.broker_window import windowed

STREAM = "BENCH"
SUBJECT = "bench"
INBOX = "_INBOX.bench"
# Publishes that wait for their acknowledgement. The server holds 10,000 for a stream at most.
WINDOW = 4_000
# With a flush for each message a window takes long, and on a busy disk longer than anybody waits. The
# speed does not depend on it: the server flushes one message after the other all the same.
ALWAYS_WINDOW = 1_000
GROUP = 100
SEQUENCE = b'"seq":'


class _Acknowledgements:
    """The newest sequence seen, less the one before this run; what is cut off waits for the rest."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._tail = b""
        self._count = 0

    def __call__(self, data: bytes) -> int:
        buffer = self._tail + data
        if b'"error"' in buffer or b"-ERR" in buffer:
            raise ConnectionError(f"NATS refused: {buffer[:300]!r}")
        at = buffer.rfind(SEQUENCE)
        while at >= 0:
            end = at + len(SEQUENCE)
            digits = end
            while digits < len(buffer) and buffer[digits : digits + 1].isdigit():
                digits += 1
            if digits < len(buffer):  # the number is complete
                self._count = int(buffer[end:digits]) - self._first
                break
            at = buffer.rfind(SEQUENCE, 0, at)
        self._tail = buffer[-32:]
        return self._count


class JetStream:
    """One connection to one stream with file storage."""

    def __init__(self, port: int, window: int) -> None:
        self._window = window
        self._connection = connect(port)
        self._lines = b""
        self._receive_until(b"\r\n")  # INFO
        hello = {"verbose": False, "pedantic": False, "lang": "bench", "version": "1"}
        self._connection.sendall(
            b"CONNECT %s\r\nSUB %s 1\r\nPING\r\n" % (json.dumps(hello).encode(), INBOX.encode())
        )
        self._receive_until(b"PONG\r\n")
        self._sequence = 0
        self._create()
        group = [
            b"PUB %s %s %d\r\n%s\r\n" % (SUBJECT.encode(), INBOX.encode(), len(one), one)
            for one in make_messages()
        ]
        self._groups = [
            (b"".join(group[at : at + GROUP]), GROUP) for at in range(0, len(group), GROUP)
        ]

    def close(self) -> None:
        self._connection.close()

    def _receive_until(self, end: bytes) -> bytes:
        while end not in self._lines:
            data = self._connection.recv(65536)
            if not data:
                raise ConnectionError("NATS closed the connection")
            self._lines += data
        found, _, self._lines = self._lines.partition(end)
        return found

    def _create(self) -> None:
        config = {
            "name": STREAM,
            "subjects": [SUBJECT],
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
            "discard": "old",
        }
        raw = json.dumps(config).encode()
        subject = f"$JS.API.STREAM.CREATE.{STREAM}".encode()
        self._connection.sendall(
            b"PUB %s %s %d\r\n%s\r\n" % (subject, INBOX.encode(), len(raw), raw)
        )
        self._receive_until(b"\r\n")  # MSG _INBOX.bench 1 <size>
        answer = self._receive_until(b"\r\n")
        if b'"error"' in answer:
            raise ConnectionError(f"NATS refused the stream: {answer!r}")

    def publish_rate(self, rounds: int, time_limit_s: float) -> float:
        """Acknowledged messages per second."""
        sending: Iterator[tuple[bytes, int]] = chain.from_iterable(repeat(self._groups, rounds))
        count_answers = _Acknowledgements(self._sequence)
        answered, took = windowed(
            self._connection, sending, self._window, count_answers, time_limit_s
        )
        self._sequence += answered
        return answered / took
