"""Limits of one principal for transactions: how many are open, and how many bytes are staged.

Staged bytes are on the disk until the transaction is committed, aborted or timed out. The engine knows the
exact sum. An estimate that is never too low is kept here, so that the engine is asked only when a limit
seems to be reached. Called from the threads that stage.
"""

import threading
from collections.abc import Callable

from penstock.broker.errors import BrokerError, Code
from penstock.log.engine import TransactionUsage


class Quotas:
    """`usage` returns what a principal has now. Concurrent calls may exceed a limit slightly."""

    def __init__(
        self, usage: Callable[[str], TransactionUsage], max_open: int, max_staged_bytes: int
    ) -> None:
        self._usage = usage
        self._max_open = max_open
        self._max_staged_bytes = max_staged_bytes
        self._lock = threading.Lock()
        self._staged_bytes: dict[str, int] = {}  # by principal, of which there are as many as keys

    def check_begin(self, owner: str) -> None:
        """Raises LIMIT_REACHED when one more may not be open."""
        count = self._usage(owner).open
        if count >= self._max_open:
            raise BrokerError(
                Code.LIMIT_REACHED,
                f"{owner.strip()} has {count} open transactions, limits.transactions_per_key ="
                f" {self._max_open}; commit or abort some, or raise the limit",
            )

    def take(self, owner: str, size: int) -> None:
        """Counts bytes that are about to be staged. Raises LIMIT_REACHED."""
        with self._lock:
            staged = self._staged_bytes.get(owner)
            if staged is None or staged + size > self._max_staged_bytes:
                staged = self._usage(owner).staged_bytes
            if staged + size > self._max_staged_bytes:
                self._staged_bytes[owner] = staged
                raise BrokerError(
                    Code.LIMIT_REACHED,
                    f"{owner.strip()} has staged {staged} bytes and {size} more are over"
                    f" limits.staged_bytes_per_key = {self._max_staged_bytes};"
                    " commit or abort some, or raise the limit",
                )
            self._staged_bytes[owner] = staged + size
