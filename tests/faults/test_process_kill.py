"""kill -9 at random moments, again and again on one data directory, and a check after each.

What this proves: whatever instruction the process dies at, with its threads, its metadata and the real
file system under it, every acknowledged record is there, dense and in order, stored once, and nothing
that was never sent. What it does not prove: anything about power loss. The page cache outlives a killed
process, so a forgotten fdatasync would go unnoticed here. That is proven on the simulated disk, which
loses and tears what was not synced (test_crash_points.py, test_log_machine.py).
"""

import os
import random
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from faults.append_child import PARTITIONS, TOPIC, values_of
from kit.limits import HANG_S

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import SequenceGap
from penstock.log.storage.reader import ReadResult

CHILD = Path(__file__).with_name("append_child.py")
ROUNDS = 50
SEED = 20
# A round lives up to this long after its child is ready, on a slow machine until it has up to so many
# acknowledgements; every fifth is killed before, while it starts.
LIFE_S = 0.12
LEAST_STORED = 50
START_S = 0.35


@dataclass
class Round:
    """What the child said before it died."""

    number: int
    sent: set[tuple[int, int]] = field(default_factory=set)
    # (partition, batch) -> base offset
    stored: dict[tuple[int, int], int] = field(default_factory=dict)

    def hear(self, output: bytes) -> None:
        whole, _, _ = output.rpartition(b"\n")
        for line in whole.decode().splitlines():
            event, *rest = line.split(" ")
            if event == "sent":
                self.sent.add((int(rest[0]), int(rest[1])))
            elif event == "stored":
                self.stored[int(rest[0]), int(rest[1])] = int(rest[2])
            else:
                assert event == "ready", line


def run_and_kill(directory: Path, number: int, choices: random.Random) -> Round:
    command = [sys.executable, str(CHILD), str(directory), str(number), str(choices.random())[2:]]
    source = Path(__file__).parents[2] / "src"
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(source)}
    )
    with child:
        try:
            early = number % 5 == 4
            life_s = choices.uniform(0, START_S if early else LIFE_S)
            least = 0 if early else choices.randrange(LEAST_STORED)
            output = listen(child, life_s, least, from_start=early)
        finally:
            child.kill()
        assert child.stdout is not None
        output += child.stdout.read()
    heard = Round(number)
    heard.hear(output)
    return heard


def listen(
    child: "subprocess.Popen[bytes]", life_s: float, least: int, *, from_start: bool
) -> bytes:
    """Takes what the child says until its time is over and it has told `least` acknowledgements."""
    assert child.stdout is not None
    output = b""
    began_s = time.monotonic()
    end_s = began_s + life_s if from_start else None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            waits = end_s is None or output.count(b"stored") < least
            until_s = began_s + HANG_S if waits or end_s is None else end_s
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                assert not waits, "the child hangs"
                return output
            part = os.read(child.stdout.fileno(), 1 << 16)
            assert part, "the child ended by itself"
            output += part
            if end_s is None:
                end_s = time.monotonic() + life_s


class Checker:
    """Knows what was in the log at the last look, and looks at what came since."""

    def __init__(self) -> None:
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.acknowledged = 0

    def check(self, engine: EmbeddedEngine, heard: Round) -> None:
        for partition in range(PARTITIONS):
            known = self.values[partition]
            whole = heard.number % 10 == 9
            start, _ = engine.offsets(TOPIC, partition)
            assert start == 0
            fresh = read_from(engine, partition, 0 if whole else len(known))
            if whole:
                assert fresh[: len(known)] == known, "what was there has changed"
                fresh = fresh[len(known) :]
            self.check_fresh(partition, fresh, heard)
            known += fresh
            self.send_again(engine, partition, heard)

    def check_fresh(self, partition: int, fresh: list[bytes], heard: Round) -> None:
        """The batches of this round: 0, 1, 2, ... without a gap, each one whole and once."""
        number = 0
        at = 0
        while at < len(fresh):
            values = values_of(heard.number, partition, number)
            assert fresh[at : at + len(values)] == values, "lost, torn, twice or out of order"
            assert (partition, number) in heard.sent, "never sent"
            base = heard.stored.pop((partition, number), None)
            if base is not None:
                assert base == len(self.values[partition]) + at
                self.acknowledged += 1
            at += len(values)
            number += 1
        assert not [batch for batch in heard.stored if batch[0] == partition], "acknowledged, lost"

    def send_again(self, engine: EmbeddedEngine, partition: int, heard: Round) -> None:
        """A producer that lost its answer sends its last batch again, to the new process."""
        numbers = [number for of, number in heard.sent if of == partition]
        if not partition or not numbers:
            return
        last = values_of(heard.number, partition, max(numbers))
        known = self.values[partition]
        stored = known[-len(last) :] == last
        batch = encode_values(last, 1).from_producer(100 + partition, heard.number, max(numbers))
        token = engine.append(TOPIC, partition, batch)
        try:
            base = token.result(HANG_S)
        except SequenceGap:
            assert not stored  # nor was the one before it
            return
        assert token.repeated == stored
        assert base == (len(known) - len(last) if stored else len(known))
        if not stored:
            known += last
        assert engine.offsets(TOPIC, partition) == (0, len(known))


def read_from(engine: EmbeddedEngine, partition: int, offset: int) -> list[bytes]:
    values: list[bytes] = []
    _, end = engine.offsets(TOPIC, partition)
    while offset < end:
        result: ReadResult = engine.read(TOPIC, partition, offset, 1 << 20).result(HANG_S)
        for view in result.views:
            for record in view.records():
                assert record.offset == offset, "offsets are not dense"
                assert record.value is not None
                values.append(record.value)
                offset += 1
    return values


def test_fifty_kills(tmp_path: Path) -> None:
    choices = random.Random(SEED)
    checker = Checker()
    for number in range(ROUNDS):
        heard = run_and_kill(tmp_path, number, choices)
        engine = EmbeddedEngine(str(tmp_path))
        try:
            if engine.topics():
                checker.check(engine, heard)
            else:
                assert not heard.stored
        finally:
            engine.close()
    assert checker.acknowledged > 10 * ROUNDS, "the children did next to nothing"
