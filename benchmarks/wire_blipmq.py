"""How fast BlipMQ frames are split and written, without a socket.

    python benchmarks/wire_blipmq.py [seconds per row]

Messages of 50 to 150 bytes (seeded), 250 KB per call, like a full read buffer. The control row cuts
the same messages out of the same buffer at positions known beforehand, in plain Python: what the
machine gives at this moment. Each row prints its ratio to it.
"""

import random
import sys
import time
from array import array
from collections.abc import Callable
from itertools import accumulate

from librt.strings import BytesWriter

from penstock.server.memory import settle_allocator
from penstock.wire.blipmq import batch as blipmq_batch
from penstock.wire.blipmq import split as blipmq_split

MESSAGES = 2000
TOPIC = b"orders.created"
IDS = blipmq_batch.pack_consecutive(1, MESSAGES)


def rate(call: Callable[[], object], seconds: float) -> float:
    """Messages per second, the best of five stretches."""
    best = 0.0
    for _ in range(5):
        calls = 0
        begin = time.perf_counter()
        end = begin
        while end - begin < seconds / 5:
            call()
            calls += 1
            end = time.perf_counter()
        best = max(best, calls * MESSAGES / (end - begin))
    return best


def rows() -> dict[str, Callable[[], object]]:
    chance = random.Random(7)
    values = [chance.randbytes(chance.randint(50, 150)) for _ in range(MESSAGES)]
    one_topic = blipmq_batch.encode_messages(TOPIC, 1, values, IDS)
    alternating = b"".join(
        blipmq_batch.encode_messages(b"topic-%d" % (number % 3), 1, [value], bytes(8))
        for number, value in enumerate(values)
    )
    ends = list(accumulate(len(value) + 16 + len(TOPIC) for value in values))
    spans = [(end - len(value), end) for value, end in zip(values, ends, strict=True)]
    offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
    batch = offsets + b"".join(values)
    values_at = len(offsets)
    polls = blipmq_batch.encode_polls(5, 1, MESSAGES)
    acks = blipmq_batch.encode_acks(5, IDS)

    def split(frames: bytes) -> Callable[[], object]:
        return lambda: blipmq_split.split_requests(frames, 0, len(frames))

    def deliveries() -> bytes:
        writer = BytesWriter()
        blipmq_batch.write_deliveries(writer, TOPIC, batch, 0, values_at, 0, MESSAGES, 1)
        return writer.getvalue()

    def poll_answers() -> bytes:
        writer = BytesWriter()
        blipmq_batch.write_poll_answers(writer, TOPIC, batch, 0, values_at, 0, MESSAGES, IDS, 0)
        return writer.getvalue()

    return {
        "control: cut at known positions": lambda: [one_topic[a:b] for a, b in spans],
        "split PUBLISH, one topic": split(one_topic),
        "split PUBLISH, three topics in turn": split(alternating),
        "split POLL": split(polls),
        "split ACK": split(acks),
        "split deliveries (client)": lambda: blipmq_split.split_replies(
            one_topic, 0, len(one_topic)
        ),
        "write QoS1 deliveries from a batch": deliveries,
        "write QoS0 deliveries from a batch": poll_answers,
        "write PUBLISH from a list": lambda: blipmq_batch.encode_messages(TOPIC, 1, values, IDS),
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    settle_allocator()
    kind = "pure" if str(blipmq_split.__file__).endswith(".py") else "compiled"
    print(f"BlipMQ wire, {kind}, messages of 50 to 150 bytes")
    control = 0.0
    for name, call in rows().items():
        speed = rate(call, seconds)
        control = control or speed
        print(f"  {name:38} {speed / 1e6:7.2f} M msg/s   {speed / control:5.2f} of control")


if __name__ == "__main__":
    main()
