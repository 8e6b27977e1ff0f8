"""What every part of the broker stands on: engine, clock, who may do what, and work that is put off.

A door asks `require` before it does anything. The broker itself is in broker.py, which builds on this by
topics.py and group_offsets.py: one object, because every request goes through several of them. Hot:
compiled by mypyc.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.grants import Grants
from penstock.broker.access.principal import Origin
from penstock.broker.access.refusals import Refusals
from penstock.broker.access.rights import Operation, refusal
from penstock.broker.audit.trail import AuditTrail
from penstock.broker.delivery.feed import Schedule
from penstock.broker.errors import BrokerError, Code
from penstock.broker.options import BrokerOptions
from penstock.broker.room import check_room
from penstock.log.engine import Engine, Pending

T = TypeVar("T")
LoginDone = Callable[[Principal | None], None]


class BrokerCore:
    def __init__(
        self,
        engine: Engine,
        access: Access,
        options: BrokerOptions,
        clock_us: Callable[[], int],
        schedule: Schedule,
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        """`run` runs work in a thread."""
        self.engine = engine
        self.access = access
        self.options = options
        self.clock_us = clock_us
        self.stopping = False
        self._schedule = schedule
        self._run = run
        self.audit = AuditTrail(engine, options.audit, clock_us, schedule)
        self.refusals = Refusals(clock_us)
        self._grants = Grants(access)

    # --- principals ------------------------------------------------------------------------------

    def login(self, key: str, done: LoginDone, wanted: Callable[[], bool], origin: Origin) -> None:
        """Every door logs in here, or below. Addresses take turns where logins wait."""
        done = self._recorded(origin, "", done)
        self.access.login(key, done, wanted=wanted, address=origin.address)

    def login_as(
        self,
        name: str,
        password: str,
        done: LoginDone,
        wanted: Callable[[], bool],
        origin: Origin,
        open_to_all: bool = False,
    ) -> None:
        """A user, or a key with its name. `open_to_all`: no login fails there while `login_is_open`."""
        done = self._recorded(origin, name, done, open_to_all)
        self.access.login_as(name, password, done, wanted=wanted, address=origin.address)

    def _recorded(
        self, origin: Origin, name: str, done: LoginDone, open_to_all: bool = False
    ) -> LoginDone:
        """`done` gets the principal with its origin, when the login is in the audit trail."""

        def told(found: Principal | None) -> None:
            if found is not None or not open_to_all or self.access.has_logins:
                self.audit.login(origin, name, found)
            done(None if found is None else self.access.at(found, origin))

        return told

    def has_rights(self, principal: Principal) -> bool:
        """False for a principal that may use no topic at all."""
        return self._grants.has_any(principal) or self.access.has_rights(principal)

    def still_valid(self, principal: Principal) -> bool:
        """False once the key of the principal is revoked, or its user disabled, deleted or given another
        password."""
        return self._grants.has_any(principal) or self.access.still_valid(principal)

    def login_is_open(self) -> bool:
        return self.access.login_is_open()

    def require(
        self,
        principal: Principal,
        operation: Operation,
        name: str = "",
        topics: Sequence[str] = (),
    ) -> None:
        """Every door asks here before it does anything. `name` and `topics` as in Access.permits.

        Raises BrokerError NOT_AUTHORIZED, or NOT_AUTHENTICATED when the principal is no longer valid or the
        key is missing.
        """
        if not topics and self._grants.has(principal, operation, name):
            return
        access = self.access
        version = access.version
        if not access.still_valid(principal):
            reason = access.why_invalid(principal)
            self.audit.denied(principal, operation, name, reason)
            raise BrokerError(Code.NOT_AUTHENTICATED, reason)
        if access.permits(principal, operation, name, topics):
            if not topics:
                self._grants.note(principal, operation, name, version)
            return
        text = refusal(principal.name, operation, name)
        self.refusals.note(principal.name, operation.name, text)
        self.audit.denied(principal, operation, name)
        missing_key = operation.needs_key and principal == access.anonymous
        raise BrokerError(Code.NOT_AUTHENTICATED if missing_key else Code.NOT_AUTHORIZED, text)

    def check_room_for(self, *, topics: int = 0, partitions: int = 0, groups: int = 0) -> None:
        check_room(
            self.engine.sizes(), self.options, topics=topics, partitions=partitions, groups=groups
        )

    # --- later ------------------------------------------------------------------------------------

    def aside(self, make: Callable[[], T]) -> Pending[T]:
        """Runs a function in a thread that would take too long on the event loop."""
        token: Pending[T] = Pending()

        def work() -> None:
            try:
                value, error = make(), None
            except Exception as failure:  # the token must complete for its callbacks
                value, error = None, failure
            self.engine.post(lambda: token.settle(value, error))

        self._run(work)
        return token

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Calls back on the event loop after a delay; 0 means after the current callback."""
        self._schedule(delay_s, work)
