"""Transactions over Flight, on the server's side: begin, stage, commit, abort.

The engine's calls wait for the disk, so they run in threads of their own; access is checked on the event
loop first. A transaction belongs to the principal that began it; other principals cannot see its name.

Batches of one task are staged in the order of their arrival: while a group is written, later batches wait,
and are then written together with one flush. After a lost connection the same batches may arrive a second
time while the first ones are still being written: only batches with consecutive numbers form a group.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.broker.schemas.binding import dead_letter_place, fitting
from penstock.broker.schemas.violations import SchemaViolation
from penstock.log.batch.format import Batch
from penstock.log.batch.origin import origin_flags
from penstock.log.engine import Engine, Target
from penstock.log.errors import TransactionNotOpen
from penstock.server.flight.describing import flight_servers
from penstock.server.flight.fences import Fences
from penstock.server.flight.link import (
    Answer,
    Begin,
    Done,
    Failure,
    Fence,
    Finish,
    Stage,
    Staged,
    TransactionState,
)
from penstock.server.flight.quotas import Quotas
from penstock.server.flight.validation import Validation

# Stages of several tasks wait for the disk at the same time.
THREADS: Final = 4
# Commits are applied one by one, and a large one takes a while: in the threads above they would keep
# the stages of others waiting.
COMMIT_THREADS: Final = 1

Give = Callable[[Answer], None]
Fail = Callable[[BaseException], Answer]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that waits to be staged, and its callback."""

    question: Stage
    batches: list[Target]
    give: Give


class TransactionCalls:
    """Lives on the event loop."""

    def __init__(self, broker: Broker, engine: Engine, fail: Fail, validation: Validation) -> None:
        self._validation = validation
        self._broker = broker
        self._engine = engine
        self._fail = fail
        self._fences = Fences(engine.metadata, engine.clock_us)
        self._quotas = Quotas(engine.transactions.usage, lambda: broker.options)
        self._threads = ThreadPoolExecutor(THREADS, "penstock-transaction")
        self._committers = ThreadPoolExecutor(COMMIT_THREADS, "penstock-transaction-commit")
        # By name and task, while one group of it is being written: what came since. Bounded by what
        # the link lets through unanswered.
        self._waiting: dict[tuple[str, int], list[_Waiting]] = {}

    def close(self) -> None:
        """Accepts nothing new. Running calls end with the log: a commit is finished at the next start."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._committers.shutdown(wait=False, cancel_futures=True)
        self._fences.close()

    def begin(self, question: Begin, give: Give) -> None:
        self._broker.require(question.who, Operation.USE_TRANSACTIONS)
        name = _own(question.who, question.name)
        transactions = self._engine.transactions
        timeout_us = question.timeout_us

        def work() -> Answer:
            self._check_fence(question.who, question.fence)
            if transactions.state(name) == "unknown":
                self._quotas.check_begin(_owner(question.who))
            state = transactions.begin(name, timeout_us)
            rows = transactions.rows_of(name) if state == "committed" else None
            servers = flight_servers(self._engine.cluster(), question.who)
            return TransactionState(state, rows, servers)

        self._run(self._threads, question.name, work, give)

    def _check_fence(self, who: Principal, fence: Fence | None) -> None:
        if fence is not None:
            self._fences.pass_or_refuse(_owner(who), fence.series, fence.run)

    def stage(self, question: Stage, body: bytes, give: Give) -> None:
        if self._broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        # Checked here, so that an invalid batch does not fail those that are written with it.
        batches = self._checked(question, body)
        self._validation.run(
            [(topic, Records([], batch=batch)) for topic, _, batch in batches],
            lambda found: self._enqueue(question, self._divided(batches, found), give),
            lambda error: give(self._fail(error)),
        )

    def _divided(
        self, batches: list[Target], found: Sequence[SchemaViolation | None]
    ) -> list[Target]:
        """What a schema refuses fails the request, or is staged as dead letters in the same transaction."""
        targets: list[Target] = []
        for target, violation in zip(batches, found, strict=True):
            if violation is None:
                targets.append(target)
                continue
            if not violation.diverts:
                raise violation
            topic, partition, batch = target
            records = Records([], batch=batch)
            self._broker.dead_letters.ensure_topic(topic)
            letters = self._broker.schemas.letters(topic, records, violation, "flight").batch
            rest = fitting(records, violation, self._broker.clock_us())
            if rest is not None and rest.batch is not None:
                targets.append((topic, partition, rest.batch))
            if letters is not None:
                targets.append((*dead_letter_place(topic), letters))
        return targets

    def _enqueue(self, question: Stage, batches: list[Target], give: Give) -> None:
        key = _own(question.who, question.name), question.task
        waiting = _Waiting(question, batches, give)
        if key in self._waiting:
            self._waiting[key].append(waiting)
            return
        self._waiting[key] = []
        self._stage(key, [waiting])

    def _checked(self, question: Stage, body: bytes) -> list[Target]:
        now_us = self._broker.clock_us()
        batches: list[Target] = []
        start = 0
        for part in question.parts:
            self._broker.require(question.who, Operation.STAGE_RECORDS, part.topic)
            end = start + part.length
            content = body if part.length == len(body) else body[start:end]
            flags = part.flags | origin_flags(question.who.origin.door)
            batch = Batch(content, part.count, flags, now_us, now_us)
            self._engine.transactions.check(part.topic, part.partition, batch)
            batches.append((part.topic, part.partition, batch))
            start = end
        return batches

    def _stage(self, key: tuple[str, int], group: list[_Waiting]) -> None:
        name, task = key
        groups = [one.batches for one in group]
        first = group[0].question
        repeated = 0

        size = sum(batch.size() for batches in groups for _, _, batch in batches)

        def work() -> Answer:
            nonlocal repeated
            self._quotas.take(_owner(first.who), size)
            repeated = self._engine.transactions.stage_groups(name, task, groups, first.sequence)
            return Done()

        def told(answer: Answer) -> None:
            waiting = self._waiting.pop(key)
            if waiting:
                following = _together(waiting)
                self._waiting[key] = waiting[len(following) :]
                self._stage(key, following)
            for place, one in enumerate(group):
                one.give(answer if isinstance(answer, Failure) else Staged(place < repeated))

        self._run(self._threads, first.name, work, told)

    def finish(self, question: Finish, give: Give) -> None:
        self._broker.require(question.who, Operation.USE_TRANSACTIONS)
        name = _own(question.who, question.name)
        tasks = question.tasks

        def abort() -> Answer:
            self._engine.transactions.abort(name)
            return Done()

        def commit() -> Answer:
            self._check_fence(question.who, question.fence)
            self._engine.transactions.commit(name, dict(tasks or ()), question.rows)
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
            except Exception as error:  # the caller must get an answer, whatever the error is
                answer = self._fail(error)
            self._engine.post(lambda: give(answer))

        try:
            threads.submit(run)
        except RuntimeError:  # closed
            give(self._fail(BrokerError(Code.SHUTTING_DOWN)))


def _together(waiting: list[_Waiting]) -> list[_Waiting]:
    """The first of them, as many as one call can stage."""
    sequence = waiting[0].question.sequence
    for place, one in enumerate(waiting):
        expected = None if sequence is None else sequence + place
        if one.question.sequence != expected:
            return waiting[:place]
    return waiting


def _own(who: Principal, name: str) -> str:
    """The name in the log. It is that of the key and not its id: a key that is revoked and created again
    goes on with its transactions, and what it repeats is not stored twice."""
    return _owner(who) + name


def _owner(who: Principal) -> str:
    """No principal has a line break in its name: two of them never mean the same transaction."""
    return f"{who.name}\n"
