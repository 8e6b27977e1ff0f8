"""kill -9 at every step of a commit, of its recovery, and at random moments, on one data directory.

What this proves: wherever the process dies, a transaction across topics and partitions is there as a
whole or not at all, once, in order of task and number, without what failed tasks staged; one whose
commit was answered is there; and a commit that is repeated by whoever got no answer changes nothing or
finishes it. What it does not prove: anything about power loss, see test_staging.py and
test_process_kill.py.
"""

import multiprocessing
import os
import random
import selectors
import signal
import time
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path

import pytest
from faults.transaction_child import (
    LARGE_FROM,
    PARTITIONS,
    TASKS,
    batches_of,
    name_of,
    run_forked,
    whole,
)
from kit.limits import HANG_S

from penstock.log.batch.format import HEADER_SIZE, parse_header
from penstock.log.embedded import EmbeddedEngine

FORKED = multiprocessing.get_context("forkserver")
SEED = 4
RANDOM_ROUNDS = 12
RECOVERY_ROUNDS = 16
SOAK_ROUNDS = 60
# A commit of large files has about 205 steps: one in so many is met, and all of them in `make soak`.
LARGE_EVERY = 5
# A child lives this long after its first word.
LIFE_S = 0.15


@dataclass
class Heard:
    """What a child said before it died."""

    words: list[tuple[str, int]] = field(default_factory=list)

    def numbers(self, event: str) -> set[int]:
        return {number for word, number in self.words if word == event}


@pytest.fixture(scope="module", autouse=True)
def warm_parent() -> None:
    """Children are forked from a process that has imported everything: their start is most of this test."""
    root = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root / "src"), str(root / "tests")]))
        FORKED.set_forkserver_preload([run_forked.__module__])
        forkserver.ensure_running()


def run_child(
    directory: Path, first: int, step: int, since: str, *, life_s: float = HANG_S, end: str = ""
) -> Heard:
    """Until it kills itself, or `life_s` after its first word, or when it says `end`."""
    reader, writer = FORKED.Pipe(duplex=False)
    words = [str(directory), str(first), str(step), since]
    child = FORKED.Process(target=run_forked, args=(writer, words), daemon=True)
    child.start()
    writer.close()
    with reader, open(reader.fileno(), "rb", buffering=0, closefd=False) as lines:
        try:
            output = listen(reader.fileno(), life_s, end)
        finally:
            child.kill()
        output += lines.read()
    child.join(HANG_S)
    assert child.exitcode == -signal.SIGKILL, "the child ended by itself"
    child.close()
    whole, _, _ = output.rpartition(b"\n")
    pairs = (line.split(" ") for line in whole.decode().splitlines())
    return Heard([(event, int(number)) for event, number in pairs])


def listen(descriptor: int, life_s: float, end: str) -> bytes:
    output = b""
    deadline = time.monotonic() + HANG_S
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            part = os.read(descriptor, 1 << 16)
            if not part or (end and end.encode() in part):
                return output + part
            if not output:
                deadline = time.monotonic() + life_s
            output += part
    assert output, "the child did not come up"
    assert life_s < HANG_S, "the child hangs"
    return output


class Checker:
    """The driver that comes back: looks at what is there, and settles what is open."""

    def __init__(self, directory: Path, *, once: bool = False, first: int = 0) -> None:
        """`once`: the children commit each transaction in one step, and stage nothing before."""
        self.directory = directory
        self.once = once
        self.values: dict[tuple[str, int], list[bytes]] = {key: [] for key in PARTITIONS}
        self.next = first
        self.finished_at_start = 0

    def check(self, heard: Heard) -> None:
        engine = EmbeddedEngine(str(self.directory))
        try:
            if len(engine.topics()) == 2:
                self.settle(engine, heard)
            else:
                assert not heard.words
            staging = self.directory / "transactions"
            left = os.listdir(staging) if self.next and not self.once else []
            assert not self.once or not staging.exists()
            assert not left, "staged files stay behind"
        finally:
            engine.close()

    def settle(self, engine: EmbeddedEngine, heard: Heard) -> None:
        committed = heard.numbers("committed")
        last = max(heard.numbers("begun"), default=self.next - 1)
        for number in range(self.next, last + 1):
            state = engine.transactions.state(name_of(number))
            if number in committed:
                assert state == "committed"
            elif state == "committed":
                self.finished_at_start += 1
            if state == "committed":
                self.add(number)
            else:
                assert state == ("unknown" if self.once else "open")
        self.compare(engine)
        for number in range(self.next, last + 1):
            self.end(engine, number, number in heard.numbers("staged"))
        # The child may have begun one more and not come to say so.
        engine.transactions.abort(name_of(last + 1))
        self.compare(engine)
        self.next = last + 1

    def end(self, engine: EmbeddedEngine, number: int, staged: bool) -> None:
        name = name_of(number)
        if self.once:
            if engine.transactions.state(name) == "unknown":
                self.add(number)
            engine.transactions.commit_at_once(name, whole(number))
            return
        if engine.transactions.state(name) == "committed" or staged:
            if engine.transactions.begin(name, 1) == "open":
                self.add(number)
            for _ in range(2):
                engine.transactions.commit(name, TASKS)
        else:
            engine.transactions.abort(name)

    def add(self, number: int) -> None:
        for task in sorted(TASKS):
            for topic, partition, values in batches_of(number, task):
                self.values[topic, partition] += values

    def compare(self, engine: EmbeddedEngine) -> None:
        for (topic, partition), expected in self.values.items():
            found: list[bytes] = []
            _, end = engine.offsets(topic, partition)
            while len(found) < end:
                result = engine.read(topic, partition, len(found), 1 << 20).result(HANG_S)
                found += [value for view in result.views for value in view.values()]
            assert found == expected, f"{topic}/{partition}: lost, twice, in part or out of order"


@pytest.fixture
def checker(tmp_path: Path) -> Checker:
    """With a first transaction, so that topics are there."""
    checker = Checker(tmp_path)
    checker.check(run_child(tmp_path, 0, 0, "commit", end="committed 0"))
    assert checker.next >= 1
    return checker


@pytest.fixture
def large_checker(tmp_path: Path) -> Checker:
    """Of transactions whose files become segments."""
    checker = Checker(tmp_path, first=LARGE_FROM)
    end = f"committed {LARGE_FROM}"
    checker.check(run_child(tmp_path, LARGE_FROM, 0, "commit", end=end))
    assert checker.next > LARGE_FROM
    return checker


def adopted_segments(directory: Path) -> int:
    """Their batches say that all of the file was durable when it got its name."""
    count = 0
    for path in (directory / "topics" / "x").rglob("*.log"):
        head = path.read_bytes()[:HEADER_SIZE]
        if len(head) == HEADER_SIZE:
            header = parse_header(head, 0)
            count += header.durable_offset > header.base_offset
    return count


def kill_at_steps(checker: Checker, every: int = 1) -> None:
    heard = run_child(checker.directory, checker.next, 0, "commit", end="committed")
    steps = min(heard.numbers("steps"))
    checker.check(heard)
    assert steps > 30, "the fuse does not see the steps"
    tried = killed = 0
    for step in range(1, steps + 1, every):
        heard = run_child(checker.directory, checker.next, step, "commit")
        tried += 1
        # Threads write in groups of their own choice: the last steps may fall into the next one.
        killed += not heard.numbers("committed")
        checker.check(heard)
    assert killed > tried // 2
    assert checker.finished_at_start > tried // 4


def test_every_step_of_a_commit(checker: Checker) -> None:
    kill_at_steps(checker)


def test_every_few_steps_of_a_commit_of_large_files(large_checker: Checker) -> None:
    kill_at_steps(large_checker, LARGE_EVERY)
    assert adopted_segments(large_checker.directory) > 10


@pytest.mark.soak
def test_every_step_of_a_commit_of_large_files(large_checker: Checker) -> None:
    kill_at_steps(large_checker)
    assert adopted_segments(large_checker.directory) > 30


def test_every_few_steps_of_the_recovery_of_large_files(large_checker: Checker) -> None:
    test_every_few_steps_of_the_recovery(large_checker)
    assert adopted_segments(large_checker.directory) > 4


@pytest.fixture
def once_checker(tmp_path: Path) -> Checker:
    checker = Checker(tmp_path, once=True)
    checker.check(run_child(tmp_path, 0, 0, "once", end="committed 0"))
    return checker


def test_every_step_of_a_commit_at_once(once_checker: Checker) -> None:
    """The transactions of FlyMQ's connections: in memory until their commit."""
    checker = once_checker
    heard = run_child(checker.directory, checker.next, 0, "once", end="committed")
    steps = min(heard.numbers("steps"))
    checker.check(heard)
    assert steps > 12, "the fuse does not see the steps"
    killed = 0
    for step in range(1, steps + 1):
        heard = run_child(checker.directory, checker.next, step, "once")
        killed += not heard.numbers("committed")
        checker.check(heard)
    assert killed > steps // 2
    assert checker.finished_at_start > steps // 4


@pytest.mark.soak
def test_many_random_moments_of_commits_at_once(once_checker: Checker) -> None:
    checker = once_checker
    choices = random.Random(SEED)
    for _ in range(SOAK_ROUNDS):
        life_s = choices.uniform(0, LIFE_S)
        heard = run_child(checker.directory, checker.next, 0, "once", life_s=life_s)
        checker.check(heard)
    assert checker.next > SOAK_ROUNDS


def test_staging_goes_on_where_it_was(checker: Checker) -> None:
    """Killed again and again while it stages the same batches, each time a little later."""
    number = checker.next
    heard = Heard()
    kills = 0
    while number not in heard.numbers("committed"):
        kills += 1
        assert kills < 40, "it does not get on"
        heard.words += run_child(checker.directory, number, 2 * kills, "stage").words
    assert kills > 5
    checker.check(heard)


def test_every_few_steps_of_the_recovery(checker: Checker) -> None:
    """The process that finishes a commit is killed too, again and again, until one comes through."""
    choices = random.Random(SEED)
    for _ in range(RECOVERY_ROUNDS // 4):
        heard = run_child(checker.directory, checker.next, choices.randint(20, 30), "commit")
        for step in choices.sample(range(1, 120), 3):
            first = max(heard.numbers("begun")) + 1
            heard.words += run_child(checker.directory, first, step, "start").words
        checker.check(heard)


def test_random_moments(checker: Checker) -> None:
    choices = random.Random(SEED)
    for _ in range(RANDOM_ROUNDS):
        life_s = choices.uniform(0, LIFE_S)
        heard = run_child(checker.directory, checker.next, 0, "commit", life_s=life_s)
        checker.check(heard)
    assert checker.next > RANDOM_ROUNDS
