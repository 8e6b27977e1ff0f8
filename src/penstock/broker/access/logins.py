"""Logging in: with an API key, as a user, or with a key by its name.

Whoever needs the slow hash waits for it in a thread, in the order of slow_logins.py; passwords of users are
tried at the rate of login_gates.py. Decides who it is, and nothing about rights (access.py). Does not count
failed logins and does not close connections: sessions and the server do that.

Belongs to the event loop.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.access import keys
from penstock.broker.access.key_info import MAX_NAME_CHARS
from penstock.broker.access.key_ring import KeyRing
from penstock.broker.access.principal import Principal
from penstock.broker.access.slow_logins import LoginQueue, SlowLogin
from penstock.broker.access.users import Users

Done = Callable[[Principal | None], None]

_logger = logging.getLogger(__name__)


class Logins:
    """`post` runs a function on the event loop, from another thread."""

    def __init__(
        self, ring: KeyRing, users: Users, post: Callable[[Callable[[], None]], object]
    ) -> None:
        self._ring = ring
        self._users = users
        self._post = post
        self._worker: ThreadPoolExecutor | None = None
        self._queue = LoginQueue()

    @property
    def parked(self) -> int:
        """Logins that wait because too many passwords of their user or address were wrong."""
        return self._queue.parked

    def close(self) -> None:
        """Stop the thread of the slow hashes; logins that still wait for it get no answer."""
        self._queue.close()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def login(self, key: str, done: Done, wanted: Callable[[], bool], address: str) -> None:
        """See Access.login."""
        condensed = keys.condense(key)
        found = self._ring.find(condensed)
        if found is not None or not self._ring.needs_slow_hash(condensed) or _is_too_long(key):
            done(found)
            return
        self._wait_in_turn(SlowLogin(key, condensed, done, wanted, address))

    def login_as(
        self, name: str, password: str, done: Done, wanted: Callable[[], bool], address: str
    ) -> None:
        """See Access.login_as."""
        found = self._ring.find(keys.condense(password))
        if found is not None and name in ("", found.name):
            done(found)
            return

        def named(who: Principal | None) -> None:
            done(who if who is not None and name in ("", who.name) else None)

        if self._ring.has_slow(name) or not self._users:
            self.login(password, named, wanted, address)
            return
        if len(name) > MAX_NAME_CHARS or _is_too_long(password):
            # Nobody has this name or password, and they may be 64 KiB long: too much to remember.
            done(None)
            return
        login = SlowLogin(password, b"", done, wanted, address, name)
        # Before the first look at the password: what is remembered of the right one would tell a guess
        # from a wrong one at once, however many come.
        if not self._queue.admit(login):
            self._wait_in_turn(login)
            return
        known, found = self._users.find(name, password)
        if known:
            self._queue.tried(login, right=found is not None, guessed=False)
            done(found)
        else:
            self._wait_in_turn(login)

    def _wait_in_turn(self, login: SlowLogin) -> None:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "penstock-login")
        self._queue.put(login)
        self._worker.submit(self._login_slowly)

    def _login_slowly(self) -> None:
        """Called once for each login in the queue."""
        login = self._queue.take()
        if login is None:
            return
        if not login.wanted():
            self._queue.dropped(login)
            return
        # It may have been tried while this login waited for its turn.
        known, found = self._known_by_now(login)
        if not known:
            try:
                found = self._try_slowly(login)
            except keys.SlowHashFailed as error:
                # Not remembered as wrong: the hash could not be computed.
                _logger.error("a login was refused: %s", error)
        self._queue.tried(login, right=found is not None, guessed=not known)
        try:
            self._post(lambda: login.done(found))
        except RuntimeError:
            _logger.debug("a login was answered after the event loop had ended")

    def _known_by_now(self, login: SlowLogin) -> tuple[bool, Principal | None]:
        if login.user is not None:
            return self._users.find(login.user, login.key)
        found = self._ring.find(login.condensed)
        return found is not None or not self._ring.needs_slow_hash(login.condensed), found

    def _try_slowly(self, login: SlowLogin) -> Principal | None:
        if login.user is not None:
            return self._users.find_slowly(login.user, login.key)
        return self._ring.find_slowly(login.key, login.condensed)


def _is_too_long(key: str) -> bool:
    """No slow hash was ever made of so many bytes."""
    return len(key.encode("utf-8", "surrogatepass")) > keys.MAX_SLOW_KEY_BYTES
