"""What all load generators of the broker suite share: the messages, sockets, waiting for the disk.

A generator encodes everything before the clock starts and counts bytes, not messages: it must not be
what is measured.
"""

import random
import socket
import time
from bisect import bisect_right
from itertools import accumulate

from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request
from penstock.wire.rustlog.binary_reply import decode_reply

# Different messages; a run sends them over and over.
DISTINCT = 20_000
# Nothing here takes this long unless something is wrong.
TIMEOUT_S = 30.0
RECEIVE_BYTES = 1024 * 1024
# Between two questions how far the log has come.
ASK_EVERY_S = 0.0005


def make_messages(count: int = DISTINCT) -> list[bytes]:
    """Random bytes, 50 to 150 of them: 100 on average."""
    chance = random.Random(11)
    return [chance.randbytes(chance.randint(50, 150)) for _ in range(count)]


def connect(port: int, source: str | None = None) -> socket.socket:
    address = (source, 0) if source else None
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, RECEIVE_BYTES))
        if not part:
            raise ConnectionError("the server closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_frame(connection: socket.socket) -> bytes:
    """The payload of one RustLog frame."""
    size = int.from_bytes(receive_exactly(connection, 4), "big")
    return receive_exactly(connection, size)


class Sizes:
    """How many messages a number of delivered bytes is, when the same messages come in turns."""

    def __init__(self, messages: list[bytes], overhead: int) -> None:
        self._ends = list(accumulate(len(message) + overhead for message in messages))

    def bytes_of(self, first: int, count: int) -> int:
        return self._before(first + count) - self._before(first)

    def _before(self, count: int) -> int:
        rounds, rest = divmod(count, len(self._ends))
        return rounds * self._ends[-1] + (self._ends[rest - 1] if rest else 0)

    def count_of(self, size: int) -> int:
        """Complete messages in the first `size` bytes."""
        rounds, rest = divmod(size, self._ends[-1])
        return rounds * len(self._ends) + bisect_right(self._ends, rest)


class Watermark:
    """Asks over RustLog how far a topic is durable (partition 0)."""

    def __init__(self, port: int) -> None:
        self._connection = connect(port)

    def close(self) -> None:
        self._connection.close()

    def of(self, topic: str) -> int:
        self._connection.sendall(encode_request(rustlog.DescribePartition(topic, 0)))
        payload = receive_frame(self._connection)
        reply = decode_reply(payload, 0, len(payload))
        return reply.high_watermark if isinstance(reply, rustlog.DescribePartitionReply) else 0

    def wait(self, topic: str, offset: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while (found := self.of(topic)) < offset:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: {found} of {offset} records durable")
            time.sleep(ASK_EVERY_S)
