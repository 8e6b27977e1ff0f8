"""The writer of a Fujin stream: WRITE, and transactions.

    state   BEGIN            COMMIT           ROLLBACK         WRITE
    plain   -> open          refused          refused          published
    open    refused          -> plain, or     -> plain         staged; the broker's transaction begins with
                             open if it fails                  the first one

A transaction is one of the log or one of a broker outside (outside_writer.py): the first WRITE decides.
Results are in the order of the commands. Does not read.
"""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.errors import Code, RecordTooLarge, from_exception
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.errors import PenstockError
from penstock.log.batch.view import Headers
from penstock.log.engine import AppendToken, Pending
from penstock.sessions.base import Slot
from penstock.sessions.fujin.conversation import OPERATIONS, Conversation, text_of
from penstock.sessions.fujin.options import Route
from penstock.sessions.fujin.outside_writer import OutsideWriter
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.writing import Refused, Transaction, WriteRun, encode_written

PLAIN: Final = 0
OPEN: Final = 1

RESULTS: Final = {
    wire.BEGIN: wire.BEGIN_RESULT,
    wire.COMMIT: wire.COMMIT_RESULT,
    wire.ROLLBACK: wire.ROLLBACK_RESULT,
}


class Writer:
    def __init__(self, session: Conversation, id: str = "") -> None:
        """`id`: of its transactions at brokers that want one."""
        self._session = session
        self._state = PLAIN
        # Of the broker; None until the first WRITE of a transaction.
        self._transaction: str | None = None
        self._outside = OutsideWriter(session, id)

    @property
    def _principal(self) -> Principal:
        return self._session.principal

    def refused(self, write: Refused) -> None:
        """A WRITE that the splitter refused."""
        session = self._session
        session.counters.frames_in += 1
        session.counters.refused[write.text.partition(",")[0]] += 1
        session.answer(wire.encode_result(wire.WRITE_RESULT, write.cid, write.text))

    def leave(self) -> None:
        """An open transaction ends with its session."""
        self._outside.leave()
        id, self._transaction = self._transaction, None
        self._state = PLAIN
        if id is None:
            return
        transactions = self._session.port.transactions
        try:
            transactions.roll_back(self._principal, self._session, id)
        except PenstockError:  # who began it has lost the right to: it ends all the same
            transactions.roll_back_any(ITSELF, id)

    # --- WRITE ------------------------------------------------------------------------------------

    def write(self, run: WriteRun) -> bool:
        """False while it has to wait: for room on its way to a broker outside."""
        session = self._session
        outside = session.options.outside.get(run.topic_name)
        if outside is not None and not outside.has_room():
            outside.when_room(session.go_on)
            return False
        session.counters.frames_in += len(run.values)
        if outside is not None:
            session.counters.messages_in += len(run.values)
            if self._state == PLAIN:
                self._outside.write(outside, run)
            elif self._transaction is not None:
                session.answer(encode_written(run.cids, wire.OTHER_ENDPOINT))
            else:
                self._outside.stage(outside, run)
            return True
        self._write_to_log(run)
        return True

    def _write_to_log(self, run: WriteRun) -> None:
        session = self._session
        route = session.options.route(run.topic_name)
        if route is None or not self._may_make(route):
            session.answer(encode_written(run.cids, wire.WRITER_NOT_FOUND))
            return
        session.counters.messages_in += len(run.values)
        if self._outside.in_transaction:
            session.answer(encode_written(run.cids, wire.OTHER_ENDPOINT))
        elif self._state == OPEN:
            self._stage(run, route)
        else:
            _Writes(session, run, route).begin()

    def _may_make(self, route: Route) -> bool:
        port = self._session.port
        return self._session.options.auto_create or port.topic(route.topic) is not None

    def _stage(self, run: WriteRun, route: Route) -> None:
        session = self._session
        transactions = session.port.transactions
        try:
            if self._transaction is None:
                self._transaction = transactions.begin(self._principal, session)
            moving = self._stage_or_divert(self._transaction, run, route.topic)
        except PenstockError as error:
            if len(run.values) > 1 and isinstance(error, RecordTooLarge | SchemaViolation):
                for row in range(len(run.values)):
                    self._stage(run.single(row), route)
                return
            session.answer(encode_written(run.cids, text_of(error)))
            return
        if moving is None:
            session.answer(encode_written(run.cids))
            return
        slot = session.hold(run.size)
        moving.on_done(session.guarded(lambda done: self._staged(slot, run, done)))

    def _stage_or_divert(self, id: str, run: WriteRun, topic: str) -> Pending[object] | None:
        """One message that the schema of its topic refuses may become a dead letter of the commit."""
        session = self._session
        transactions = session.port.transactions
        try:
            return transactions.stage(self._principal, session, id, topic, run.values, run.headers)
        except SchemaViolation as violation:
            if len(run.values) > 1 or not violation.diverts:
                raise
            headers = None if run.headers is None else run.headers[0]
            return transactions.stage_letter(
                self._principal,
                session,
                id,
                topic,
                run.values[0],
                violation,
                session.protocol,
                headers,
            )

    def _staged(self, slot: Slot, run: WriteRun, done: Pending[object]) -> None:
        failure = None if done.error is None else text_of(done.error)
        self._session.settle(slot, encode_written(run.cids, failure))

    # --- transactions -----------------------------------------------------------------------------

    def transaction(self, command: Transaction) -> bool:
        """False while it has to wait: the results of all writes before it come first."""
        session = self._session
        if session.answers_are_open():
            self._outside.flush()
            return False
        session.counters.frames_in += 1
        lost = self._outside.flushed()
        if (command.opcode == wire.BEGIN) == (self._state == OPEN):
            self._result(command, wire.INVALID_TX_STATE)
        elif command.opcode == wire.BEGIN and lost is not None:
            self._result(command, lost)
        elif command.opcode == wire.BEGIN:
            self._begin(command)
        elif self._outside.in_transaction:
            self._end_outside(command)
        elif self._transaction is None:  # nothing was written in it
            self._state = PLAIN
            self._result(command, None)
        elif command.opcode == wire.COMMIT:
            self._commit(command, self._transaction)
        else:
            self._roll_back(command, self._transaction)
        return True

    def _result(self, command: Transaction, failure: str | None) -> None:
        reply = wire.encode_result(RESULTS[command.opcode], command.cid, failure)
        self._session.answer(reply)

    def _begin(self, command: Transaction) -> None:
        """Nothing is begun at the broker yet, but who may not is told now."""
        session = self._session
        try:
            session.port.require(self._principal, OPERATIONS[command.opcode], "")
        except PenstockError as error:
            self._result(command, text_of(error))
            return
        self._state = OPEN
        self._result(command, None)

    def _end_outside(self, command: Transaction) -> None:
        """A commit that fails leaves the transaction open, a rollback that fails does not."""

        def ended(failure: str | None) -> None:
            if failure is None or command.opcode == wire.ROLLBACK:
                self._state = PLAIN
            self._session.settle(
                slot, wire.encode_result(RESULTS[command.opcode], command.cid, failure)
            )

        slot = self._session.hold(0)
        self._outside.end(ended, commit=command.opcode == wire.COMMIT)

    def _commit(self, command: Transaction, id: str) -> None:
        session = self._session
        try:
            change = session.port.transactions.commit(self._principal, session, id)
        except PenstockError as error:
            self._result(command, text_of(error))
            return
        slot = session.hold(0)

        def committed(done: Pending[object]) -> None:
            error = done.error
            # Decided: it is the broker's, whether all of it can be seen already or not.
            if error is None or from_exception(error).code is Code.COMMIT_UNFINISHED:
                self._state, self._transaction = PLAIN, None
            failure = None if error is None else text_of(error)
            session.settle(slot, wire.encode_result(wire.COMMIT_RESULT, command.cid, failure))

        change.on_done(session.guarded(committed))

    def _roll_back(self, command: Transaction, id: str) -> None:
        session = self._session
        self._state, self._transaction = PLAIN, None
        try:
            change = session.port.transactions.roll_back(self._principal, session, id)
        except PenstockError as error:
            self._result(command, text_of(error))
            return
        if change is None:  # its time was over: nothing of it is left either
            self._result(command, None)
            return
        slot = session.hold(0)

        def rolled_back(done: Pending[object]) -> None:
            failure = None if done.error is None else text_of(done.error)
            session.settle(slot, wire.encode_result(wire.ROLLBACK_RESULT, command.cid, failure))

        change.on_done(session.guarded(rolled_back))


class _Writes:
    """A run that is being published: one append, or one for each message where some are refused."""

    def __init__(self, session: Conversation, run: WriteRun, route: Route) -> None:
        self._session = session
        self._run = run
        self._topic = route.topic
        self._slot = session.hold(run.size)
        self._left = 0
        # By message, where the run is published one by one.
        self._replies: list[bytes] = []

    def begin(self) -> None:
        run = self._run
        try:
            token = self._publish(run.values, run.headers)
        except (RecordTooLarge, SchemaViolation):
            # Perhaps only one of them is refused: the others are stored.
            self._publish_singly()
        except PenstockError as error:
            self._session.settle(self._slot, encode_written(run.cids, text_of(error)))
        else:
            token.on_done(self._session.guarded(self._written))

    def _publish(self, values: list[bytes], headers: list[Headers] | None) -> AppendToken:
        session = self._session
        return session.port.publish(
            session.principal, self._topic, None, Records(values, None, headers)
        )

    def _written(self, token: AppendToken) -> None:
        failure = None if token.error is None else text_of(token.error)
        self._session.settle(self._slot, encode_written(self._run.cids, failure))

    def _publish_singly(self) -> None:
        count = len(self._run.values)
        self._replies = [b""] * count
        # One more than there are: none of them may be the last before all are begun.
        self._left = count + 1
        for row in range(count):
            self._publish_one(row)
        self._done()

    def _publish_one(self, row: int) -> None:
        session = self._session
        alone = self._run.single(row)
        try:
            token = self._publish_or_divert(alone)
        except PenstockError as error:
            self._replies[row] = encode_written(alone.cids, text_of(error))
            self._done()
            return

        def written(done: AppendToken) -> None:
            failure = None if done.error is None else text_of(done.error)
            self._replies[row] = encode_written(alone.cids, failure)
            self._done()

        token.on_done(session.guarded(written))

    def _publish_or_divert(self, alone: WriteRun) -> AppendToken:
        session = self._session
        try:
            return self._publish(alone.values, alone.headers)
        except SchemaViolation as violation:
            if not violation.diverts:
                raise
            records = Records(alone.values, None, alone.headers)
            return session.port.divert(self._topic, records, violation, session.protocol)

    def _done(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._session.settle(self._slot, b"".join(self._replies))
