"""Named transactions, which the engine keeps: those that many tasks stage over Flight, as people see them.

Lists and rolls back. Begin, stage and commit are Flight's (server/flight/transactions.py). The large ones
of connections are in the engine too, under names of their own; transactions.py shows them while their
connection is there.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import OpenTransactionInfo, Pending

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


@dataclass(frozen=True, slots=True)
class NamedTransaction:
    owner: str
    id: str
    found: OpenTransactionInfo


class NamedTransactions:
    """Called on the event loop; what asks the disk runs in a thread."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def visible(self, who: Principal) -> Pending[list[NamedTransaction]]:
        """One's own; for administrators of the server those of all."""
        self._broker.require(who, Operation.OPEN_TRANSACTION)
        everything = self._broker.access.permits(who, Operation.END_ANY_TRANSACTION)
        shown_elsewhere = {one.name for one in self._broker.transactions}
        transactions = self._broker.engine.transactions

        def look() -> list[NamedTransaction]:
            found = []
            for one in transactions.unfinished_ones():
                owner, _, name = one.name.partition("\n")
                if one.name not in shown_elsewhere and (everything or owner == who.name):
                    # Of a user it begins with "user" and a tab.
                    found.append(NamedTransaction(owner.rpartition("\t")[2], name, one))
            return found

        return self._broker.aside(look)

    def roll_back(self, who: Principal, one: NamedTransaction) -> Pending[object]:
        """Nothing of it will be seen. Fails with TRANSACTION_NOT_OPEN when it is decided by then."""
        own = one.owner == who.name
        operation = Operation.END_TRANSACTION if own else Operation.END_ANY_TRANSACTION
        self._broker.require(who, operation)
        if one.found.state != "open":
            raise BrokerError(Code.TRANSACTION_NOT_OPEN, f"transaction {one.id!r} is committing")
        transactions, trail = self._broker.engine.transactions, self._broker.audit

        def abort() -> object:
            transactions.abort(one.found.name)
            return None

        done = self._broker.aside(abort)
        if own:
            return done
        details = {"owner": one.owner}
        return trail.when_done(done, who, events.TRANSACTION_ABORTED, one.id, details)
