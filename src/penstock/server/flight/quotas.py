"""Limits of one principal for transactions: how many are open, and how many bytes are staged.

Staged bytes are on the disk until the transaction is committed, aborted or timed out. The engine knows the
exact sum. An estimate that is never too low is kept here, so that the engine is asked only when a limit
seems to be reached. Called from the threads that stage.
"""

import threading
from collections.abc import Callable

from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.log.engine import TransactionUsage


class Quotas:
    """`usage` returns what a principal has now. Concurrent calls may exceed a limit slightly."""

    def __init__(
        self, usage: Callable[[str], TransactionUsage], options: Callable[[], BrokerOptions]
    ) -> None:
        """`options` returns those of now: a SIGHUP may change the limits."""
        self._usage = usage
        self._options = options
        self._lock = threading.Lock()
        self._staged_bytes: dict[str, int] = {}  # by principal, of which there are as many as keys

    def check_begin(self, owner: str) -> None:
        """Raises LIMIT_REACHED when one more may not be open."""
        count, most = self._usage(owner).open, self._options().max_open_transactions
        if count >= most:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"{owner.strip()} has {count} open transactions, limits.transactions_per_key ="
                f" {most}; commit or abort some, or raise the limit",
            )

    def take(self, owner: str, size: int) -> None:
        """Counts bytes that are about to be staged. Raises LIMIT_REACHED."""
        most = self._options().max_staged_bytes
        with self._lock:
            staged = self._staged_bytes.get(owner)
            if staged is None or staged + size > most:
                staged = self._usage(owner).staged_bytes
            if staged + size > most:
                self._staged_bytes[owner] = staged
                raise BrokerError(
                    Code.LIMIT_REACHED,
                    f"{owner.strip()} has staged {staged} bytes and {size} more are over"
                    f" limits.staged_bytes_per_key = {most};"
                    " commit or abort some, or raise the limit",
                )
            self._staged_bytes[owner] = staged + size
