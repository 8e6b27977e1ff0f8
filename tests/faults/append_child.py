"""The child of test_process_kill.py: appends for ever and tells each acknowledgement, until it is killed.

    append_child.py <data directory> <round> <seed>

Standard output, one line per event: `sent <partition> <number>` before an append is handed over, and
`stored <partition> <number> <base offset>` after its acknowledgement. Partition 0 takes plain batches, the
others idempotent ones, some of which are sent twice. Imports little: its start is what a round costs.
"""

import os
import random
import sys

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.partitions.tokens import AppendToken
from penstock.log.settings import TopicSettings

TOPIC = "kill"
PARTITIONS = 3
# Small segments, so that kills also meet rolls, seals, merges and retention's absence.
SETTINGS = TopicSettings(segment_bytes=16 * 1024, retention_ms=0)
# Batches on their way at the same time.
IN_FLIGHT = 8


def values_of(round_: int, partition: int, number: int) -> list[bytes]:
    """What batch `number` of a round holds: its name tells everything, its size varies."""
    name = b"%d/%d/%d/" % (round_, partition, number)
    return [b"%s%d" % (name, n) + b"." * (number * 37 % 400) for n in range(1 + number % 5)]


def tell(line: str) -> None:
    os.write(1, line.encode())


def append(
    engine: EmbeddedEngine, round_: int, partition: int, number: int, twice: bool
) -> list[AppendToken]:
    tell(f"sent {partition} {number}\n")
    tokens = []
    for _ in range(2 if twice else 1):
        batch = encode_values(values_of(round_, partition, number), 1)
        if partition:
            batch.from_producer(100 + partition, round_, number)
        tokens.append(engine.append(TOPIC, partition, batch))
    # The last copy: its acknowledgement stands for the batch.
    tokens[-1].on_done(
        lambda token: (
            tell(f"stored {partition} {number} {token.base_offset}\n")
            if token.error is None
            else tell(f"failed {partition} {number} {token.error}\n")
        )
    )
    return tokens


def main() -> None:
    directory, round_, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    choices = random.Random(seed)
    engine = EmbeddedEngine(directory, EngineOptions(maintenance_interval_s=0.03))
    if not engine.topics():
        engine.create_topic(TOPIC, PARTITIONS, SETTINGS)
    numbers = [0] * PARTITIONS
    waiting: list[AppendToken] = []
    tell("ready\n")
    while True:
        partition = choices.randrange(PARTITIONS)
        twice = partition > 0 and choices.random() < 0.3
        waiting += append(engine, round_, partition, numbers[partition], twice)
        numbers[partition] += 1
        while len(waiting) > IN_FLIGHT:
            waiting.pop(0).result()


if __name__ == "__main__":
    main()
