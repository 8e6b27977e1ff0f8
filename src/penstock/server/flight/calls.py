"""The server's answers to its Flight process, each with the rights of the principal of the call.

Lives on the event loop; an answer that needs the disk is given later. Knows no sockets.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.access.access import Principal
from penstock.broker.access.principal import Origin
from penstock.broker.access.rights import Operation
from penstock.broker.access.slow_logins import LoginsPerAddress
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.shown_groups import EXPIRE_EVERY_S, ShownGroups
from penstock.log.batch.format import FLAG_ZSTD, Batch
from penstock.log.engine import AppendToken, Engine, Pending, ReadResult, TopicInfo
from penstock.server.flight.describing import Describing
from penstock.server.flight.link import (
    ANSWER_TIME_S,
    Answer,
    Append,
    Appended,
    AtTime,
    Begin,
    CommitGroup,
    Committed,
    Describe,
    Done,
    Failure,
    Fetch,
    Fetched,
    FetchedRows,
    Finish,
    GetSchema,
    LoggedIn,
    Login,
    Offsets,
    Question,
    SchemaFacts,
    Stage,
    Topics,
)
from penstock.server.flight.transactions import TransactionCalls
from penstock.server.flight.validation import Validation

INTERNAL: Final = (Code.INTERNAL, Code.STORAGE_ERROR)

# The principal of calls without a key.
FLIGHT: Final = "flight"
# Logins that wait for the slow hash of a key: the tasks that one host of Spark begins at once. When the
# first one is through, the others need no hash.
MAX_LOGINS_PER_ADDRESS: Final = 256

Give = Callable[[Answer], None]

logger = logging.getLogger(__name__)


class FlightCalls:
    """`on_failed_login` counts."""

    def __init__(
        self, broker: Broker, engine: Engine, on_failed_login: Callable[[str, str], None]
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._on_failed_login = on_failed_login
        self.logins = LoginsPerAddress(MAX_LOGINS_PER_ADDRESS)
        self._describing = Describing(broker, engine, failure)
        self._validation = Validation(broker)
        self.transactions = TransactionCalls(broker, engine, failure, self._validation)
        self._shown = ShownGroups(engine, engine.clock_us)
        self._closed = False
        self._plan_expiry()

    def close(self) -> None:
        self._closed = True
        self._validation.close()
        self.transactions.close()

    def _plan_expiry(self) -> None:
        self._broker.later(EXPIRE_EVERY_S, self._expire)

    def _expire(self) -> None:
        if not self._closed:
            self._broker.aside(self._shown.expire).on_done(self._expired)

    def _expired(self, done: Pending[list[str]]) -> None:
        if done.error is not None:
            logger.warning("groups that only show progress are kept for now: %s", done.error)
        elif done.result():
            logger.info("%d groups of queries that are over are forgotten", len(done.result()))
        self._plan_expiry()

    def answer(self, question: Question, body: bytes, give: Give) -> None:
        """Calls `give` exactly once, now or later."""
        try:
            self._answer(question, body, give)
        except Exception as error:  # the caller must get an answer, whatever the error is
            give(failure(error))

    def _answer(self, question: Question, body: bytes, give: Give) -> None:
        if isinstance(question, Login):
            self._login(question, give)
            return
        if isinstance(question, Append):
            self._append(question, body, give)
        elif isinstance(question, Describe):
            self._describing.describe(question, give)
        elif isinstance(question, Topics):
            self._broker.require(question.who, Operation.LIST_TOPICS)
            self._describing.aside(lambda: self._describing.list_all(question.who), give)
        elif isinstance(question, AtTime):
            info = self._permitted(question.who, Operation.DESCRIBE_TOPIC, question.topic)
            _AtTime(self._engine, info, question, give)
        elif isinstance(question, GetSchema):
            self._broker.require(question.who, Operation.READ_SCHEMAS)
            # The text of a Protobuf schema is compiled at its first use.
            self._describing.aside(lambda: self._schema(question.name, question.version), give)
        elif isinstance(question, Fetch):
            self._fetch(question, give)
        elif isinstance(question, CommitGroup):
            self._commit(question, give)
        elif isinstance(question, Begin):
            self.transactions.begin(question, give)
        elif isinstance(question, Stage):
            self.transactions.stage(question, body, give)
        elif isinstance(question, Finish):
            self.transactions.finish(question, give)
        else:
            give(self._committed(question))

    # --- principals ------------------------------------------------------------------------------

    def _login(self, question: Login, give: Give) -> None:
        access, address = self._broker.access, question.address
        origin = Origin(FLIGHT, address)
        if question.key is None:
            give(LoggedIn(access.at(access.without_login(FLIGHT), origin)))
            return
        self.logins.begin(address)
        waits = True

        def end(answer: Answer) -> None:
            nonlocal waits
            if waits:
                waits = False
                self.logins.end(address)
                give(answer)

        def answered(who: Principal | None) -> None:
            if who is not None:
                end(LoggedIn(who))
                return
            if waits:
                self._on_failed_login(address, f"{address} (Flight)")
            end(failure(BrokerError(Code.NOT_AUTHENTICATED, "invalid API key")))

        self._broker.login(question.key, answered, lambda: waits, origin)
        if waits:
            # The peer does not wait longer than this.
            late = failure(BrokerError(Code.OVERLOADED, "the login took too long, try again"))
            self._broker.later(ANSWER_TIME_S, lambda: end(late))

    # --- topics ----------------------------------------------------------------------------------

    def _permitted(self, who: Principal, operation: Operation, topic: str) -> TopicInfo:
        self._broker.require(who, operation, topic)
        return self._describing.info(topic)

    def _schema(self, name: str, version: int) -> SchemaFacts:
        registry = self._broker.schemas.registry
        found = registry.get(name, version)
        versions = tuple((one.version, one.created_us) for one in registry.schemas(name))
        compiled = registry.validator(name, found.version) if found.kind == "protobuf" else None
        descriptors = getattr(compiled, "descriptors", b"")
        return SchemaFacts(name, found.version, found.kind, found.definition, versions, descriptors)

    # --- records ---------------------------------------------------------------------------------

    def _fetch(self, question: Fetch, give: Give) -> None:
        token = self._broker.read(
            question.who, question.topic, question.partition, question.offset, question.max_bytes
        )
        token.on_done(lambda done: give(_fetched(done)))

    def _append(self, question: Append, body: bytes, give: Give) -> None:
        now_us = self._broker.clock_us()
        batch = Batch(body, question.count, question.flags, now_us, now_us)
        if question.producer is not None:
            batch.from_producer(*question.producer)
        records = Records([], batch=batch)
        self._broker.require(question.who, Operation.PUBLISH, question.topic)
        self._validation.run(
            [(question.topic, records)],
            lambda found: self._publish(question, records, found[0], give),
            lambda error: give(failure(error)),
        )

    def _publish(
        self, question: Append, records: Records, violation: SchemaViolation | None, give: Give
    ) -> None:
        who, topic, partition = question.who, question.topic, question.partition
        if violation is None:
            records.checked = True
            token = self._broker.publish(who, topic, partition, records)
        elif violation.diverts and (question.producer is None or violation.others()):
            token = self._broker.publish_rest(who, topic, partition, records, violation, FLIGHT)
        else:
            # Also a numbered batch of which nothing is left: its number would be missing in the log.
            raise violation
        token.on_done(lambda done: give(_appended(done)))

    # --- groups ----------------------------------------------------------------------------------

    def _commit(self, question: CommitGroup, give: Give) -> None:
        for topic, partition, _ in question.offsets:  # all are checked before one is changed
            info = self._permitted(question.who, Operation.COMMIT_OFFSETS, topic)
            if not 0 <= partition < info.partitions:
                text = f"topic {topic!r} has no partition {partition}"
                raise BrokerError(Code.UNKNOWN_PARTITION, text)
        changes: list[Pending[Any]] = []
        for topic, partition, offset in question.offsets:
            change = self._broker.commit_offset(
                question.who, question.group, topic, partition, offset
            )
            assert change is not None, "the partition was looked up above"
            changes.append(change)
        noted = (
            None if question.keep_s is None else self._shown.note(question.group, question.keep_s)
        )
        if noted is not None and changes:
            changes.append(noted)
        left = len(changes)
        if not left:
            give(Done())

        def finished(change: Pending[Any]) -> None:
            nonlocal left
            left -= 1
            if not left:
                errors = [one.error for one in changes if one.error is not None]
                give(failure(errors[0]) if errors else Done())

        for change in changes:
            change.on_done(finished)

    def _committed(self, question: Committed) -> Offsets:
        info = self._permitted(question.who, Operation.READ_OFFSETS, question.topic)
        return Offsets(
            tuple(
                self._engine.committed_offset(question.group, question.topic, partition)
                for partition in range(info.partitions)
            )
        )


class _AtTime:
    """Looks up one partition after the other; each may need the disk."""

    def __init__(self, engine: Engine, info: TopicInfo, question: AtTime, give: Give) -> None:
        self._engine = engine
        self._question = question
        self._give = give
        self._found: list[int] = []
        for partition in question.partitions:
            engine.offsets(info.name, partition)  # raises where there is no such partition
        self._next()

    def _next(self) -> None:
        question = self._question
        if len(self._found) == len(question.partitions):
            self._give(Offsets(tuple(self._found)))
            return
        partition = question.partitions[len(self._found)]
        try:
            token = self._engine.offset_at_time(question.topic, partition, question.time_us)
        except Exception as error:  # the topic may be gone by now
            self._give(failure(error))
            return
        token.on_done(self._take)

    def _take(self, token: Pending[int]) -> None:
        if token.error is not None:
            self._give(failure(token.error))
            return
        self._found.append(token.result())
        self._next()


def _fetched(token: Pending[ReadResult]) -> Answer:
    if token.error is not None:
        return failure(token.error)
    found = token.result()
    rows: list[FetchedRows] = []
    for view in found.views:
        # What has expired splits a batch into many views: its body goes once.
        if not rows or rows[-1].base_offset != view.base_offset:
            rows.append(
                FetchedRows(
                    view.base_offset,
                    view.count,
                    view.flags & ~FLAG_ZSTD,
                    view.header.first_time_us,
                    view.header.max_time_us,
                    [],
                    view.buffer[view.body_at : view.body_end],
                )
            )
        rows[-1].ranges.append((view.first_row, view.last_row))
    return Fetched(tuple(rows), found.next_offset, found.end_offset)


def _appended(token: AppendToken) -> Answer:
    if token.error is not None:
        return failure(token.error)
    return Appended(token.base_offset, token.repeated)


def failure(error: BaseException) -> Failure:
    """The entry of the error table. Errors of the server are logged, unexpected ones with a traceback."""
    found = from_exception(error)
    if found.code in INTERNAL:
        cause = found.__cause__ or found
        unforeseen = cause if found.code is Code.INTERNAL else None
        logger.error("Flight: %s", cause, exc_info=unforeseen)
    return Failure(found.code.number, str(found))
