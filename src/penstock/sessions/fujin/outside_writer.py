"""The part of a Fujin writer whose messages go to brokers outside.

A transaction belongs to one broker: the one that its first WRITE goes to. `flush` is what BEGIN does with
writes before it that are still under way: where one of them fails, BEGIN fails with it.
"""

from collections.abc import Callable

from penstock.broker.outside import Failures, OutsideRoute, OutsideTransaction
from penstock.errors import PenstockError
from penstock.log.engine import Pending
from penstock.sessions.fujin.conversation import OPERATIONS, Conversation, text_of
from penstock.wire.fujin import commands as wire
from penstock.wire.fujin.writing import WriteRun, encode_written


class OutsideWriter:
    def __init__(self, session: Conversation, id: str) -> None:
        self._session = session
        self._id = id
        self._transaction: OutsideTransaction | None = None
        self._flushing = False
        # Of a write that BEGIN waits for.
        self._lost: str | None = None

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    # --- WRITE ------------------------------------------------------------------------------------

    def write(self, route: OutsideRoute, run: WriteRun) -> None:
        if self._may_write(route, run):
            self._follow(run, route.write(run.values, run.headers, run.size))

    def stage(self, route: OutsideRoute, run: WriteRun) -> None:
        if not self._may_write(route, run):
            return
        failure = None
        if not route.abilities.transactions:
            failure = wire.NOT_SUPPORTED
        elif self._transaction is not None and self._transaction.endpoint != route.endpoint:
            failure = wire.OTHER_ENDPOINT
        if failure is not None:
            self._session.answer(encode_written(run.cids, failure))
            return
        if self._transaction is None:
            self._transaction = route.begin(self._id)
        self._follow(run, self._transaction.write(route, run.values, run.headers, run.size))

    def _may_write(self, route: OutsideRoute, run: WriteRun) -> bool:
        session = self._session
        try:
            session.port.require(session.principal, OPERATIONS[wire.WRITE], route.name)
        except PenstockError as error:
            session.answer(encode_written(run.cids, text_of(error)))
            return False
        return True

    def _follow(self, run: WriteRun, writing: Pending[Failures]) -> None:
        session = self._session
        slot = session.hold(run.size)

        def written(done: Pending[Failures]) -> None:
            if done.error is not None:
                text = text_of(done.error)
                self._lose(text)
                session.settle(slot, encode_written(run.cids, text))
            elif done.value:
                self._lose(next(iter(done.value.values())))
                session.settle(slot, _encode_each(run, done.value))
            else:
                session.settle(slot, encode_written(run.cids))

        writing.on_done(session.guarded(written))

    # --- transactions -----------------------------------------------------------------------------

    def flush(self) -> None:
        """A command waits for the writes before it."""
        self._flushing = True

    def _lose(self, text: str) -> None:
        if self._flushing and self._lost is None:
            self._lost = text

    def flushed(self) -> str | None:
        """They are answered. What was wrong with one of them."""
        lost, self._lost, self._flushing = self._lost, None, False
        return lost

    def end(self, done: Callable[[str | None], None], *, commit: bool) -> None:
        """Calls back with what was wrong. A commit that fails leaves the transaction as it is."""
        transaction = self._transaction
        assert transaction is not None

        def ended(outcome: Pending[None]) -> None:
            if outcome.error is None or not commit:
                self._transaction = None
            done(None if outcome.error is None else text_of(outcome.error))

        change = transaction.commit() if commit else transaction.roll_back()
        change.on_done(self._session.guarded(ended))

    def leave(self) -> None:
        """An open transaction ends with its session."""
        if self._transaction is not None:
            self._transaction.roll_back()
            self._transaction = None


def _encode_each(run: WriteRun, failures: Failures) -> bytes:
    """The results of a run whose messages have different outcomes."""
    cids = run.cids
    return b"".join(
        encode_written(cids[4 * row : 4 * row + 4], failures.get(row))
        for row in range(len(run.values))
    )
