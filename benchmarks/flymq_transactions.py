"""What a FlyMQ transaction costs: the same messages to four topics with PRODUCE, and in a transaction.

Each round does one after the other on one connection, everything pipelined; the clock runs until the last
answer: all records are durable then, and visible.
"""

import time
from dataclasses import dataclass
from statistics import median

from benchmarks.broker_load import connect, make_messages, receive_exactly
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import ERROR, HEADER_BYTES
from penstock.wire.flymq.opcodes import encode_request, read_reply
from penstock.wire.flymq.produce import PRODUCE, TXN_PRODUCE

TXN_BEGIN, TXN_COMMIT = 0x40, 0x41
MESSAGES = 1_000
# A transaction may take so much longer than the same messages without one.
MOST_MORE_MS = 5.0
TOPICS = tuple(f"part{number}" for number in range(4))


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians of the rounds, in milliseconds."""

    plain_ms: float
    transaction_ms: float

    @property
    def more_ms(self) -> float:
        return self.transaction_ms - self.plain_ms


def measure(port: int, rounds: int) -> Costs:
    values = make_messages()[: MESSAGES // len(TOPICS)]
    plain = b"".join(
        encode_request(PRODUCE, m.Produce(topic, b"", value))
        for topic in TOPICS
        for value in values
    )
    found: list[tuple[float, float]] = []
    with connect(port) as connection:

        def answers(count: int) -> bytes:
            payload = b""
            for _ in range(count):
                head = receive_exactly(connection, HEADER_BYTES)
                payload = receive_exactly(connection, int.from_bytes(head[4:], "big"))
                if head[2] == ERROR:
                    raise ConnectionError(f"refused: {payload!r}")
            return payload

        for _ in range(rounds + 1):  # the first one makes topics and files
            start = time.perf_counter()
            connection.sendall(plain)
            answers(len(TOPICS) * len(values))
            middle = time.perf_counter()
            connection.sendall(encode_request(TXN_BEGIN, m.Nothing()))
            begun = read_reply(a.TransactionDone, answers(1)).id
            began = time.perf_counter()
            staged = b"".join(
                encode_request(TXN_PRODUCE, a.TransactionProduce(begun, topic, value))
                for topic in TOPICS
                for value in values
            )
            staged += encode_request(TXN_COMMIT, a.Transaction(begun))
            made = time.perf_counter()
            connection.sendall(staged)
            answers(len(TOPICS) * len(values) + 1)
            end = time.perf_counter()
            found.append((middle - start, (began - middle) + (end - made)))
    plain_s, transaction_s = zip(*found[1:], strict=True)
    return Costs(median(plain_s) * 1_000, median(transaction_s) * 1_000)
