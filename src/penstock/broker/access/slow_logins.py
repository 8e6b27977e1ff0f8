"""The queue of logins that wait for the slow hash: who is next.

The slow hash takes tens of milliseconds, one after the other. A client that sends wrong keys faster than
that must not keep others out:

* Addresses take turns, so that one address gets no more turns by asking more often.
* An address whose last key was wrong comes after the others, except for every fourth turn.
* So does a login of a user whose last password was wrong, wherever that came from, except from an address
  where this user has logged in before.
* Of one address the newest login is next, and the oldest at every third turn: strictly in order, all would
  wait until they time out; strictly newest first, an old one would never get its turn.
* A login for which there is no token (login_gates.py) is parked until there is one: passwords of one user,
  and of one address, are tried at a fixed rate, however many processors and addresses are there. Nothing is
  compared before that, neither with the slow hash nor with what is remembered.

No faster check is stored beside the hash: anything that separates wrong keys from the right one quickly
would do so for a thief of the file too, and weaken the slow hash by that much. A key that was right once is
remembered in memory (key_ring.py), so each key comes here once after a start.

Thread-safe: filled by the event loop, emptied by the thread that hashes.
"""

import heapq
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.access.login_gates import Gate, Gates
from penstock.broker.access.principal import Principal
from penstock.broker.errors import BrokerError, Code

T = TypeVar("T")

# Addresses with a wrong key, users with a wrong password, and pairs with a right one that are remembered:
# 200 bytes each. With more, the oldest is forgotten.
MAX_SUSPECTS: Final = 10_000
# Every so many turns, addresses with a wrong key come first, and the oldest login of an address.
SUSPECT_TURN: Final = 4
OLDEST_TURN: Final = 3
# With so many parked logins, and with each doubling, those whose peers are gone are dropped.
SWEPT_FROM: Final = 1_000


class SlowLogin:
    """A login that waits for its turn. Without a repr that could show its key. `user`: the name where
    the key is the password of a user. `gates`: those that it has passed, once it has."""

    __slots__ = ("address", "condensed", "done", "gates", "key", "user", "wanted")

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
        self.gates: tuple[Gate, ...] = ()


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

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._trusted: Ring = OrderedDict()
        self._suspected: Ring = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._suspected_users: OrderedDict[str, None] = OrderedDict()
        self._known_places: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._turn = 0
        self._gates = Gates()
        # Users and addresses with a login that was admitted and has no outcome yet.
        self._admitted: set[tuple[str, str]] = set()
        # By the gate that has no token, and when each of them is looked at again.
        self._parked: dict[Gate, Ring] = {}
        self._parked_logins = 0
        self._swept_at = SWEPT_FROM
        self._openings: list[tuple[float, Gate]] = []
        self._opens_at: dict[Gate, float] = {}
        self._closed = False

    # --- coming -----------------------------------------------------------------------------------

    def admit(self, login: SlowLogin) -> bool:
        """Whether its password may be looked at now; else it has to be put here. One at a time of a user at
        an address: a storm from there must not take all tokens before others come to their turn."""
        place = login.user or "", login.address
        with self._lock:
            if place in self._admitted or self._admit(login, self._clock_s()) is not None:
                return False
            self._admitted.add(place)
            return True

    def put(self, login: SlowLogin) -> None:
        with self._lock:
            self._ring(login).setdefault(login.address, deque()).append(login)
            self._news.notify()

    def close(self) -> None:
        """Wakes who waits in `take`, for nothing."""
        with self._lock:
            self._closed = True
            self._news.notify_all()

    @property
    def parked(self) -> int:
        return self._parked_logins

    # --- whose turn it is -------------------------------------------------------------------------

    def take(self) -> SlowLogin | None:
        """The login whose turn it is; waits while there are only parked ones. None if there are none."""
        with self._lock:
            while not self._closed:
                login = self.next_login()
                if login is not None or not self._parked_logins:
                    return login
                self._news.wait(max(self._openings[0][0] - self._clock_s(), 0.0))
            return None

    def next_login(self) -> SlowLogin | None:
        """One whose turn it is now. Under the lock."""
        now_s = self._clock_s()
        self._release(now_s)
        while True:
            self._turn += 1
            rings = (self._trusted, self._suspected)
            first, second = reversed(rings) if self._turn % SUSPECT_TURN == 0 else rings
            ring = first or second
            if not ring:
                return None
            login = self._pop(ring)
            if login.gates or not login.wanted():
                return login
            closed = self._admit(login, now_s)
            if closed is None:
                return login
            self._park(closed, login, now_s)

    def _pop(self, ring: Ring) -> SlowLogin:
        address, waiting = ring.popitem(last=False)
        oldest = self._turn % OLDEST_TURN == 0
        login = waiting.popleft() if oldest else waiting.pop()
        if waiting:
            ring[address] = waiting  # behind the other addresses
        return login

    def _ring(self, login: SlowLogin) -> Ring:
        return self._suspected if self._is_suspect(login) else self._trusted

    def _is_known(self, login: SlowLogin) -> bool:
        return login.user is not None and (login.user, login.address) in self._known_places

    def _is_suspect(self, login: SlowLogin) -> bool:
        if self._is_known(login):
            return False
        return login.user in self._suspected_users or login.address in self._suspects

    # --- tokens -----------------------------------------------------------------------------------

    def _admit(self, login: SlowLogin, now_s: float) -> Gate | None:
        """The gate that is closed, if one is."""
        gates: tuple[Gate, ...] = (("address", "", login.address),)
        if login.user is not None:
            if self._is_known(login):
                gates = (("place", login.user, login.address),)
            else:
                gates = (("user", login.user, ""), *gates)
        closed = self._gates.admit(gates, now_s)
        if closed is None:
            login.gates = gates
        return closed

    def _park(self, gate: Gate, login: SlowLogin, now_s: float) -> None:
        if gate not in self._parked:
            self._parked[gate] = OrderedDict()
            self._look_again(gate, self._gates.open_at_s(gate, now_s))
        self._parked[gate].setdefault(login.address, deque()).append(login)
        self._parked_logins += 1
        if self._parked_logins >= self._swept_at:
            self._sweep()

    def _look_again(self, gate: Gate, at_s: float) -> None:
        """An opening of this gate that was noted before does not count any more."""
        self._opens_at[gate] = at_s
        heapq.heappush(self._openings, (at_s, gate))

    def _release(self, now_s: float) -> None:
        """Logins go back to their rings when there are tokens for them."""
        while self._openings and self._openings[0][0] <= now_s:
            at_s, gate = heapq.heappop(self._openings)
            if self._opens_at.get(gate) != at_s:
                continue
            ring = self._parked.get(gate)
            if ring is None:
                del self._opens_at[gate]
                continue
            opens_s = self._gates.open_at_s(gate, now_s)
            if opens_s > now_s:
                self._look_again(gate, opens_s)
                continue
            login = self._pop(ring)
            self._parked_logins -= 1
            if ring:
                self._look_again(gate, now_s)
            else:
                del self._parked[gate], self._opens_at[gate]
            if login.wanted():
                closed = self._admit(login, now_s)
                if closed is not None:  # another one of its gates
                    self._park(closed, login, now_s)
                    continue
            self._ring(login).setdefault(login.address, deque()).append(login)

    def _sweep(self) -> None:
        """Drops those whose peers are gone."""
        kept = 0
        for gate, ring in list(self._parked.items()):
            for address, waiting in list(ring.items()):
                wanted = deque(login for login in waiting if login.wanted())
                kept += len(wanted)
                if wanted:
                    ring[address] = wanted
                else:
                    del ring[address]
            if not ring:
                del self._parked[gate]
        self._parked_logins = kept
        self._swept_at = max(SWEPT_FROM, 2 * kept)

    # --- outcomes ---------------------------------------------------------------------------------

    def tried(self, login: SlowLogin, *, right: bool, guessed: bool = True) -> None:
        """Records the outcome. `guessed`: False when nothing new was tried, so that no token is spent."""
        with self._lock:
            self._admitted.discard((login.user or "", login.address))
            if right or not guessed:
                self._give_back(login)
            if guessed or right:
                self._note(login.address, login.user, right)

    def dropped(self, login: SlowLogin) -> None:
        """Its peer is gone. What it has spent stays spent: it may have been a guess."""
        with self._lock:
            self._admitted.discard((login.user or "", login.address))

    def _give_back(self, login: SlowLogin) -> None:
        now_s = self._clock_s()
        self._gates.give_back(login.gates, now_s)
        for gate in login.gates:
            if gate in self._parked:
                self._look_again(gate, now_s)
                self._news.notify()

    def _note(self, address: str, user: str | None, right: bool) -> None:
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
