"""The server's answers to its Flight process. Every one under the rules of whoever asks.

Lives on the event loop; an answer that waits for the disk is given later. Knows no sockets.
"""

import logging
from collections.abc import Callable
from typing import Final, cast

from penstock.broker.access.access import Action, Principal
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.log.batch.format import Batch
from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Pending, ReadToken, TopicInfo
from penstock.log.partitions.tokens import AppendToken
from penstock.server.flight.link import (
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
    Finish,
    LoggedIn,
    Login,
    Offsets,
    PartitionFacts,
    Question,
    Stage,
    TopicFacts,
    TopicList,
    Topics,
)
from penstock.server.flight.transactions import TransactionCalls

INTERNAL: Final = (Code.INTERNAL, Code.STORAGE_ERROR, Code.CORRUPT_LOG)

Give = Callable[[Answer], None]

logger = logging.getLogger(__name__)


class FlightCalls:
    """`on_failed_login` counts."""

    def __init__(
        self, broker: Broker, engine: EmbeddedEngine, on_failed_login: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._on_failed_login = on_failed_login
        self.transactions = TransactionCalls(broker, engine, failure)

    def answer(self, question: Question, body: bytes, give: Give) -> None:
        """Calls `give` exactly once, now or later."""
        try:
            self._answer(question, body, give)
        except Exception as error:  # whatever it is, the one who asks must hear of it
            give(failure(error))

    def _answer(self, question: Question, body: bytes, give: Give) -> None:
        if isinstance(question, Login):
            self._login(question.key, give)
            return
        self._check_key(question.who)
        if isinstance(question, Append):
            self._append(question, body, give)
        elif isinstance(question, Describe):
            give(self._describe(question))
        elif isinstance(question, Topics):
            give(self._topics(question.who))
        elif isinstance(question, AtTime):
            _AtTime(self._engine, self._readable(question.who, question.topic), question, give)
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

    # --- who -------------------------------------------------------------------------------------

    def _login(self, key: str | None, give: Give) -> None:
        access = self._broker.access
        if key is None:
            give(LoggedIn(access.anonymous))
            return

        def answered(who: Principal | None) -> None:
            if who is None:
                self._on_failed_login()
                give(failure(BrokerError(Code.NOT_AUTHENTICATED, "invalid API key")))
            else:
                give(LoggedIn(who))

        access.login(key, answered)

    def _check_key(self, who: Principal) -> None:
        if not self._broker.access.still_valid(who):
            raise BrokerError(Code.NOT_AUTHENTICATED, "the API key was revoked")

    # --- topics ----------------------------------------------------------------------------------

    def _topics(self, who: Principal) -> TopicList:
        allowed = self._broker.access.allowed
        found = [info for info in self._engine.topics() if allowed(who, "read", info.name)]
        return TopicList(tuple(self._facts(info) for info in found))

    def _describe(self, question: Describe) -> TopicFacts:
        self._broker.require(question.who, cast(Action, question.action), question.topic)
        if question.create:
            return self._facts(self._broker.ensure_topic(question.topic))
        return self._facts(self._info(question.topic))

    def _info(self, topic: str) -> TopicInfo:
        info = self._engine.topic(topic)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {topic!r}")
        return info

    def _readable(self, who: Principal, topic: str) -> TopicInfo:
        self._broker.require(who, "read", topic)
        return self._info(topic)

    def _facts(self, info: TopicInfo) -> TopicFacts:
        partitions = tuple(
            PartitionFacts(one.directory, one.start_offset, one.visible_offset, one.size_bytes())
            for one in self._engine.catalogue.get(info.name).partitions
        )
        return TopicFacts(info.name, info.created_us, info.settings, partitions)

    # --- records ---------------------------------------------------------------------------------

    def _append(self, question: Append, body: bytes, give: Give) -> None:
        now_us = self._broker.clock_us()
        batch = Batch(body, question.count, question.flags, now_us, now_us)
        if question.producer is not None:
            batch.from_producer(*question.producer)
        token = self._broker.append_columns(question.who, question.topic, question.partition, batch)
        token.on_done(lambda done: give(_appended(done)))

    # --- groups ----------------------------------------------------------------------------------

    def _commit(self, question: CommitGroup, give: Give) -> None:
        for topic, partition, _ in question.offsets:
            info = self._readable(question.who, topic)
            if not 0 <= partition < info.partitions:
                text = f"topic {topic!r} has no partition {partition}"
                raise BrokerError(Code.UNKNOWN_PARTITION, text)
        changes = [
            self._engine.commit_offset(question.group, topic, partition, offset)
            for topic, partition, offset in question.offsets
        ]
        left = len(changes)
        if not left:
            give(Done())

        def finished(change: Pending[object]) -> None:
            nonlocal left
            left -= 1
            if not left:
                errors = [one.error for one in changes if one.error is not None]
                give(failure(errors[0]) if errors else Done())

        for change in changes:
            change.add_done_callback(finished)

    def _committed(self, question: Committed) -> Offsets:
        info = self._readable(question.who, question.topic)
        return Offsets(
            tuple(
                self._engine.committed_offset(question.group, question.topic, partition)
                for partition in range(info.partitions)
            )
        )


class _AtTime:
    """Asks one partition after the other; each may wait for the disk."""

    def __init__(
        self, engine: EmbeddedEngine, info: TopicInfo, question: AtTime, give: Give
    ) -> None:
        self._engine = engine
        self._question = question
        self._give = give
        self._found: list[int] = []
        for partition in question.partitions:
            engine.catalogue.partition(info.name, partition)
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

    def _take(self, token: ReadToken[int]) -> None:
        if token.error is not None:
            self._give(failure(token.error))
            return
        self._found.append(token.result())
        self._next()


def _appended(token: AppendToken) -> Answer:
    if token.error is not None:
        return failure(token.error)
    return Appended(token.base_offset, token.repeated)


def failure(error: BaseException) -> Failure:
    """The entry of the table. What is our own trouble is logged, and where it came from if nobody
    foresaw it."""
    found = from_exception(error)
    if found.code in INTERNAL:
        cause = found.__cause__ or found
        unforeseen = cause if found.code is Code.INTERNAL else None
        logger.error("Flight: %s", cause, exc_info=unforeseen)
    return Failure(found.code.number, str(found))
