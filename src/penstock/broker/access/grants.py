"""Answers of the table of rights that were yes, kept until a key changes: a publish asks twice.

Decides nothing by itself (access.py does). Belongs to the event loop.
"""

from typing import Final

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.rights import Operation
from penstock.names import MAX_NAME_BYTES

# 100 bytes each and the name of a topic: 8 MiB at most. All are dropped when there are more.
MAX_GRANTS: Final = 16_384


class Grants:
    """`has` is true for what was noted while the keys were as they are now."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._version = access.version
        # By identity, which is cheap to compare: a principal object never changes. The principals are kept,
        # so that no other object gets the identity of one of them.
        self._granted: set[tuple[int, int, str]] = set()
        self._principals: dict[int, Principal] = {}

    def has(self, principal: Principal, operation: Operation, name: str) -> bool:
        if self._access.version != self._version:
            self._forget()
            return False
        return (id(principal), id(operation), name) in self._granted

    def has_any(self, principal: Principal) -> bool:
        """Whether something was granted to it."""
        return self._access.version == self._version and id(principal) in self._principals

    def note(self, principal: Principal, operation: Operation, name: str, version: int) -> None:
        """`version`: that of the access before it was asked. What every peer may do is not noted."""
        if version != self._version or len(name) > MAX_NAME_BYTES:
            return
        if operation.right in ("none", "login"):
            return
        if len(self._granted) >= MAX_GRANTS:
            self._forget()
        self._principals[id(principal)] = principal
        self._granted.add((id(principal), id(operation), name))

    def _forget(self) -> None:
        self._granted = set()
        self._principals = {}
        self._version = self._access.version
