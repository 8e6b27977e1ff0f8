"""The child of test_transaction_crashes.py: stages and commits, until it is killed or kills itself.

    run_forked(output, [<data directory>, <first transaction>, <step>, <from>])

Transactions from LARGE_FROM on stage files that become segments of topic x; those before it may, by chance.
Kills itself (SIGKILL) at this step: a call of the file layer, a commit of the metadata, or work for the
event loop, counted from the `start` of the process, from its first `stage` or its first `commit`. Step 0
never comes. With `stage` the batches are numbered, as by a client that does not know how far it came. With
`once` nothing is staged: the whole transaction is committed in one step.
Output, one line per event: `begun <n>`, `staged <n>`, `steps <count>` and `committed <n>`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from kit.faulty_files import CallKind, FaultyFiles

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.engine import Target
from penstock.log.metadata.store import MetadataStore
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles

# Small segments, so that kills also meet rolls and seals. The second topic is not flushed by itself.
TOPICS = {
    "x": (2, TopicSettings(segment_bytes=4096)),
    "y": (1, TopicSettings(durability="none")),
}
PARTITIONS = (("x", 0), ("x", 1), ("y", 0))
# As Spark numbers them: partition and attempt. The failed attempt is staged and not committed.
TASKS = (1 << 32, 3, 2 << 32 | 1)
FAILED_TASK = 2 << 32
BATCHES = 4
# Of a segment of 4,096 bytes 512 are enough.
LARGE_FROM = 1000
LARGE_BYTES = 600
TIMEOUT_US = 3600 * 1_000_000

Batches = list[tuple[str, int, list[bytes]]]


def name_of(number: int) -> str:
    return f"query/{number}"


def batches_of(number: int, task: int) -> Batches:
    """What a task stages: the values tell where they come from, their sizes vary."""
    found = []
    for index in range(BATCHES):
        topic, partition = PARTITIONS[(number + task + index) % len(PARTITIONS)]
        name = b"%d/%d/%d/" % (number, task, index)
        more = LARGE_BYTES if number >= LARGE_FROM else number * 37 % 300
        values = [name + b"%d" % row + b"." * more for row in range(1 + index)]
        found.append((topic, partition, values))
    return found


class Fuse:
    def __init__(self, step: int) -> None:
        self._left = step
        self._lock = threading.Lock()
        self.burning = False
        self.steps = 0

    def step(self) -> None:
        with self._lock:
            if self.burning:
                self.steps += 1
                if self.steps == self._left:
                    os.kill(os.getpid(), signal.SIGKILL)


class FusedFiles(FaultyFiles):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__(RealFiles())
        self._fuse = fuse

    def _call(self, kind: CallKind, *paths: str) -> Any:
        self._fuse.step()
        return super()._call(kind, *paths)


class FusedMetadata(MetadataStore):
    fuse: Fuse

    def _commit_group(self, group: Any) -> Any:
        self.fuse.step()
        result = super()._commit_group(group)
        self.fuse.step()
        return result


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def open_engine(directory: str, fuse: Fuse) -> EmbeddedEngine:
    def post(work: Callable[[], None]) -> None:
        fuse.step()
        work()

    # The engine makes its own store: the one with the fuse takes its place.
    FusedMetadata.fuse = fuse
    sys.modules["penstock.log.embedded"].__dict__["MetadataStore"] = FusedMetadata
    engine = EmbeddedEngine(directory, EngineOptions(), post=post, files=FusedFiles(fuse))
    for name, (partitions, settings) in TOPICS.items():
        if engine.topic(name) is None:
            engine.create_topic(name, partitions, settings)
    return engine


def stage(engine: EmbeddedEngine, number: int, task: int, numbered: bool) -> None:
    """In groups of two."""
    found = [
        (topic, at, encode_values(values, 1)) for topic, at, values in batches_of(number, task)
    ]
    for place in range(0, len(found), 2):
        sequence = place // 2 if numbered else None
        group = found[place : place + 2]
        engine.transactions.stage_groups(name_of(number), task, [group], sequence)


def whole(number: int) -> list[Target]:
    """All that counts of a transaction, in its order, as its owner keeps it in memory."""
    return [
        (topic, at, encode_values(values, 1))
        for task in sorted(TASKS)
        for topic, at, values in batches_of(number, task)
    ]


def run_once(engine: EmbeddedEngine, number: int, fuse: Fuse) -> None:
    tell(f"begun {number}")
    fuse.burning = True
    engine.transactions.commit_at_once(name_of(number), whole(number))
    tell(f"steps {fuse.steps}")
    tell(f"committed {number}")
    if number % 2:
        engine.transactions.commit_at_once(name_of(number), whole(number))


def run(engine: EmbeddedEngine, number: int, fuse: Fuse, since: str) -> None:
    transactions, name = engine.transactions, name_of(number)
    state = transactions.begin(name, TIMEOUT_US)
    tell(f"begun {number}")
    if state == "committed":  # killed after the decision
        tell(f"committed {number}")
        return
    fuse.burning |= since == "stage"
    for task in (FAILED_TASK, *TASKS):
        stage(engine, number, task, since == "stage")
    tell(f"staged {number}")
    fuse.burning = True
    transactions.commit(name, TASKS)
    tell(f"steps {fuse.steps}")
    tell(f"committed {number}")
    if number % 2:
        transactions.commit(name, TASKS)


def run_forked(output: Connection, words: Sequence[str]) -> None:
    os.dup2(output.fileno(), 1)
    output.close()
    directory, number, step, since = words[0], int(words[1]), int(words[2]), words[3]
    fuse = Fuse(step)
    fuse.burning = since == "start"
    engine = open_engine(directory, fuse)
    while True:
        if since == "once":
            run_once(engine, number, fuse)
        else:
            run(engine, number, fuse, since)
        number += 1
