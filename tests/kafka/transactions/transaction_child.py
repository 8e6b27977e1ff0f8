"""A gateway that does one transaction, stops at one step of it, tells so, and goes on when it is told to.

transaction_child.py BROKERS SUFFIX KIND STEP
"""

import sys
from collections.abc import Callable
from typing import Any

from kit.kafka_steps import at_once, stage, stage_and_commit
from kit.kafka_transactions import Gateways

from penstock.kafka.transactions.filling import Filling
from penstock.kafka.transactions.journal import Journal
from penstock.kafka.transactions.once import Once
from penstock.kafka.transactions.producers import Lent
from penstock.kafka.transactions.transactions import KafkaTransactions

# Where it stops, each with the method before or behind which that is.
STEPS: dict[str, tuple[type, str, bool]] = {
    "staged": (KafkaTransactions, "commit", False),
    "decided": (Once, "apply", False),
    "claimed": (Journal, "claim", True),
    "middle": (Filling, "add", True),
    "filled": (Lent, "_commit", False),
    "applied": (Lent, "_commit", True),
}


def stop() -> None:
    print("here", flush=True)
    sys.stdin.readline()


def stop_at(owner: type, method: str, behind: bool) -> None:
    """The first time."""
    original: Callable[..., Any] = getattr(owner, method)

    def stopping(self: Any, *arguments: Any) -> Any:
        setattr(owner, method, original)
        if not behind:
            stop()
            return original(self, *arguments)
        result = original(self, *arguments)
        if isinstance(self, Filling):
            self._lent.producer.flush()
        stop()
        return result

    setattr(owner, method, stopping)


if __name__ == "__main__":
    brokers, suffix, kind, step = sys.argv[1:]
    gateways = Gateways(brokers, suffix)
    gateways.know("a", 2)
    gateways.know("b", 1)
    transactions = gateways.open()
    stop_at(*STEPS[step])
    if kind == "staged":
        stage(gateways, transactions)
        stage_and_commit(gateways, transactions)
    else:
        at_once(gateways, transactions)
    print("done", flush=True)
    gateways.opened.close()
