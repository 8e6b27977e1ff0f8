"""The queue of logins that wait for the slow hash: who is next.

The slow hash takes tens of milliseconds, one after the other. A client that sends wrong keys faster than
that must not keep others out:

* Addresses take turns, so that one address gets no more turns by asking more often.
* An address whose last key was wrong comes after the others, except for every fourth turn.
* So does a login of a user whose last password was wrong, wherever that came from, except from an address
  where this user has logged in before.
* Of one address the newest login is next, and the oldest at every third turn: strictly in order, all would
  wait until they time out; strictly newest first, an old one would never get its turn.

No faster check is stored beside the hash: anything that separates wrong keys from the right one quickly
would do so for a thief of the file too, and weaken the slow hash by that much. A key that was right once is
remembered in memory (access.py), so each key comes here once after a start.

Thread-safe: filled by the event loop, emptied by the thread that hashes.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.access.principal import Principal
from penstock.broker.errors import BrokerError, Code

T = TypeVar("T")

# Addresses with a wrong key, users with a wrong password, and pairs with a right one that are remembered:
# 200 bytes each. With more, the oldest is forgotten.
MAX_SUSPECTS: Final = 10_000
# Every so many turns, addresses with a wrong key come first, and the oldest login of an address.
SUSPECT_TURN: Final = 4
OLDEST_TURN: Final = 3


class SlowLogin:
    """A login that waits for the slow hash. Without a repr that could show its key. `user`: the name where
    the key is the password of a user."""

    __slots__ = ("address", "condensed", "done", "key", "user", "wanted")

    def __init__(
        self,
        key: str,
        condensed: bytes,
        done: Callable[[Principal | None], None],
        wanted: Callable[[], bool],
        address: str,
        user: str | None = None,
    ) -> None:
        self.key = key
        self.condensed = condensed
        self.done = done
        self.wanted = wanted
        self.address = address
        self.user = user


class LoginsPerAddress:
    """Logins of one door that are not answered yet, for doors whose peers may have many at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: Counter[str] = Counter()

    def begin(self, address: str) -> None:
        """Raises OVERLOADED; else `end` must follow."""
        if self._waiting[address] >= self._most:
            text = "too many logins of this address wait, try again soon"
            raise BrokerError(Code.OVERLOADED, text)
        self._waiting[address] += 1

    def end(self, address: str) -> None:
        self._waiting[address] -= 1
        if not self._waiting[address]:
            del self._waiting[address]

    def __len__(self) -> int:
        """Addresses that have any."""
        return len(self._waiting)


Ring = OrderedDict[str, deque[SlowLogin]]


class LoginQueue:
    """As many may wait as there are connections: each has one login at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trusted: Ring = OrderedDict()
        self._suspected: Ring = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._suspected_users: OrderedDict[str, None] = OrderedDict()
        self._known_places: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._turn = 0

    def put(self, login: SlowLogin) -> None:
        with self._lock:
            ring = self._suspected if self._is_suspect(login) else self._trusted
            ring.setdefault(login.address, deque()).append(login)

    def take(self) -> SlowLogin | None:
        """The login whose turn it is; None if the queue is empty."""
        with self._lock:
            self._turn += 1
            rings = (self._trusted, self._suspected)
            first, second = reversed(rings) if self._turn % SUSPECT_TURN == 0 else rings
            ring = first or second
            if not ring:
                return None
            address, waiting = ring.popitem(last=False)
            oldest = self._turn % OLDEST_TURN == 0
            login = waiting.popleft() if oldest else waiting.pop()
            if waiting:
                ring[address] = waiting  # behind the other addresses
            return login

    def _is_suspect(self, login: SlowLogin) -> bool:
        if login.user is not None and login.user in self._suspected_users:
            return (login.user, login.address) not in self._known_places
        return login.address in self._suspects

    def tried(self, address: str, *, right: bool, user: str | None = None) -> None:
        """Records the outcome of a login of this address, and of this user."""
        with self._lock:
            if user is not None and right:
                self._suspected_users.pop(user, None)
                _remember(self._known_places, (user, address))
            elif user is not None:
                _remember(self._suspected_users, user)
            if right:
                self._suspects.pop(address, None)
                self._move(address, self._suspected, self._trusted)
                return
            self._suspects[address] = None
            self._suspects.move_to_end(address)
            self._move(address, self._trusted, self._suspected)
            if len(self._suspects) > MAX_SUSPECTS:
                forgiven, _ = self._suspects.popitem(last=False)
                self._move(forgiven, self._suspected, self._trusted)

    def _move(self, address: str, source: Ring, target: Ring) -> None:
        waiting = source.pop(address, None)
        if waiting is not None:
            target.setdefault(address, deque()).extend(waiting)


def _remember(names: OrderedDict[T, None], name: T) -> None:
    names[name] = None
    names.move_to_end(name)
    if len(names) > MAX_SUSPECTS:
        names.popitem(last=False)
