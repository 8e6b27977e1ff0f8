"""Transactions over Flight, on the server's side: begin, stage, commit, abort.

The engine's calls wait for the disk, so they run in threads of their own; access is checked on the event
loop first. A transaction belongs to the principal that began it: names of others are not seen.

Batches of one task are staged in the order in which they came: while some are written, those that come
wait, and go along together with one flush.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from penstock.broker.access import Principal
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch import Batch
from penstock.log.embedded import EmbeddedEngine
from penstock.log.errors import TransactionNotOpen
from penstock.server.flight_link import (
    Answer,
    Begin,
    Done,
    Finish,
    Stage,
    TransactionState,
)

# Stages of several tasks wait for the disk at the same time.
THREADS: Final = 4
# Commits are applied one by one, and a large one takes a while: in the threads above they would keep
# the stages of others waiting.
COMMIT_THREADS: Final = 1

Give = Callable[[Answer], None]
Fail = Callable[[BaseException], Answer]


@dataclass(frozen=True, slots=True)
class _Staged:
    """A batch that waits for its turn, and who wants to know."""

    question: Stage
    batch: Batch
    give: Give


class TransactionCalls:
    """Lives on the event loop."""

    def __init__(self, broker: Broker, engine: EmbeddedEngine, fail: Fail) -> None:
        self._broker = broker
        self._engine = engine
        self._fail = fail
        self._threads = ThreadPoolExecutor(THREADS, "penstock-transaction")
        self._committers = ThreadPoolExecutor(COMMIT_THREADS, "penstock-transaction-commit")
        # By name and task, while one group of it is being written: what came since. Bounded by what
        # the link lets through unanswered.
        self._waiting: dict[tuple[str, int], list[_Staged]] = {}

    def close(self) -> None:
        """Takes nothing new. What is under way ends with the log: a commit goes on at the next start."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._committers.shutdown(wait=False, cancel_futures=True)

    def begin(self, question: Begin, give: Give) -> None:
        name = _own(question.who, question.name)
        transactions = self._engine.transactions
        timeout_us = question.timeout_us

        def work() -> Answer:
            return TransactionState(transactions.begin(name, timeout_us))

        self._run(self._threads, question.name, work, give)

    def stage(self, question: Stage, body: bytes, give: Give) -> None:
        self._broker.require(question.who, "write", question.topic)
        if self._broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        now_us = self._broker.clock_us()
        batch = Batch(body, question.count, question.flags, now_us, now_us)
        # Here already: what is wrong with one batch is nothing to those that are written with it.
        self._engine.transactions.check(question.topic, question.partition, batch)
        key = _own(question.who, question.name), question.task
        staged = _Staged(question, batch, give)
        if key in self._waiting:
            self._waiting[key].append(staged)
            return
        self._waiting[key] = []
        self._stage(key, [staged])

    def _stage(self, key: tuple[str, int], group: list[_Staged]) -> None:
        name, task = key
        batches = [(one.question.topic, one.question.partition, one.batch) for one in group]

        def work() -> Answer:
            self._engine.transactions.stage_all(name, task, batches)
            return Done()

        def told(answer: Answer) -> None:
            following = self._waiting.pop(key)
            if following:
                self._waiting[key] = []
                self._stage(key, following)
            for one in group:
                one.give(answer)

        self._run(self._threads, group[0].question.name, work, told)

    def finish(self, question: Finish, give: Give) -> None:
        name = _own(question.who, question.name)
        tasks = question.tasks

        def abort() -> Answer:
            self._engine.transactions.abort(name)
            return Done()

        def commit() -> Answer:
            self._engine.transactions.commit(name, tasks or ())
            return Done()

        if tasks is None:
            self._run(self._threads, question.name, abort, give)
        else:
            self._run(self._committers, question.name, commit, give)

    def _run(
        self, threads: ThreadPoolExecutor, name: str, work: Callable[[], Answer], give: Give
    ) -> None:
        def run() -> None:
            try:
                answer = work()
            except TransactionNotOpen as error:
                answer = self._fail(TransactionNotOpen(name, error.state))  # by the peer's own name
            except Exception as error:  # whatever it is, the one who asks must hear of it
                answer = self._fail(error)
            self._engine.post(lambda: give(answer))

        try:
            threads.submit(run)
        except RuntimeError:  # closed
            give(self._fail(BrokerError(Code.SHUTTING_DOWN)))


def _own(who: Principal, name: str) -> str:
    """No principal has a line break in its name: two of them never mean the same transaction."""
    return f"{who.name}\n{name}"
