"""Transactions over Flight, on the server's side: begin, stage, commit, abort.

The engine's calls wait for the disk, so they run in threads of their own; access is checked on the event
loop first. A transaction belongs to the principal that began it: names of others are not seen.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.broker.access import Principal
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch import Batch
from penstock.log.embedded import EmbeddedEngine
from penstock.server.flight_link import (
    Answer,
    Begin,
    Done,
    Finish,
    Stage,
    TransactionState,
)

# Stages of several tasks wait for the disk at the same time; commits are applied one by one anyway.
THREADS: Final = 4

Give = Callable[[Answer], None]
Fail = Callable[[BaseException], Answer]


class TransactionCalls:
    def __init__(self, broker: Broker, engine: EmbeddedEngine, fail: Fail) -> None:
        self._broker = broker
        self._engine = engine
        self._fail = fail
        self._threads = ThreadPoolExecutor(THREADS, "penstock-transaction")

    def close(self) -> None:
        """Takes nothing new. What is under way ends with the log: a commit goes on at the next start."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, question: Begin, give: Give) -> None:
        name = _own(question.who, question.name)
        transactions = self._engine.transactions
        timeout_us = question.timeout_us
        self._run(lambda: TransactionState(transactions.begin(name, timeout_us)), give)

    def stage(self, question: Stage, body: bytes, give: Give) -> None:
        self._broker.require(question.who, "write", question.topic)
        if self._broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        now_us = self._broker.clock_us()
        batch = Batch(body, question.count, question.flags, now_us, now_us)
        name = _own(question.who, question.name)

        def work() -> Answer:
            self._engine.transactions.stage(
                name, question.task, question.topic, question.partition, batch
            )
            return Done()

        self._run(work, give)

    def finish(self, question: Finish, give: Give) -> None:
        name = _own(question.who, question.name)

        def work() -> Answer:
            if question.tasks is None:
                self._engine.transactions.abort(name)
            else:
                self._engine.transactions.commit(name, question.tasks)
            return Done()

        self._run(work, give)

    def _run(self, work: Callable[[], Answer], give: Give) -> None:
        def run() -> None:
            try:
                answer = work()
            except Exception as error:  # whatever it is, the one who asks must hear of it
                answer = self._fail(error)
            self._engine.post(lambda: give(answer))

        self._threads.submit(run)


def _own(who: Principal, name: str) -> str:
    return f"{who.name}/{name}"
