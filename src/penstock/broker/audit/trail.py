"""The audit trail: who logged in, who was refused what, and who changed what, as records of `_audit`.

    trail.login(origin, "al", found)                                  # what a login came to
    trail.denied(principal, operation, "orders")                      # a right was missing
    change = trail.when_done(change, principal, TOPIC_DELETED, "t")   # also waits for the event
    trail.changed_aside(principal, USER_CREATED, "al")                # the same from a thread

The broker calls it where the table of rights is asked and where changes happen, so that no door can forget
it. Promise: who is told that an administrative change was made finds it in the trail, also after a crash,
because the answer waits until the event is durable. A change that nobody was told of, because the server
died between the two, may be missing. Logins, refusals and topics that a publish has made are written a
moment later and wait for nobody.

Events of one turn are one append, and only one append is under way: while the disk is slow they gather.
What peers can cause without end is limited in repeats.py. An event that cannot be written is counted and
logged, and stops nothing. Belongs to the event loop, but for `changed_aside`.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.broker.access.principal import NOWHERE, Origin, Principal
from penstock.broker.access.rights import Operation, Scope
from penstock.broker.audit.events import (
    AUDIT_TOPIC,
    DENIED,
    FAILED_LOGIN,
    FAILURE,
    LOGIN,
    OMITTED,
    REFUSED,
    SUCCESS,
    Event,
    encode,
    short,
    time_text,
)
from penstock.broker.audit.repeats import WINDOW_S, Repeats, Same
from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.builder import BatchBuilder
from penstock.log.engine import AppendToken, Engine, Pending
from penstock.log.settings import TopicSettings

T = TypeVar("T")

# Logins and refusals are gathered for so long: unknown peers cause five flushes in a second at most.
GATHER_S: Final = 0.2
# Events that wait for a slow disk: 1 KiB each. Of changes there are no more than requests that wait.
MAX_GATHERED: Final = 10_000
# Of one append.
APPEND_BYTES: Final = 1024 * 1024
# How long a change waits for its event. A commit takes milliseconds; then the disk has a problem, which the
# log tells, and the change is done all the same.
WAIT_S: Final = 10.0
# A line of the log about events that are lost, at most so often.
COMPLAINT_US: Final = 60 * 1_000_000

DAY_MS: Final = 24 * 3600 * 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`retention_bytes` 0: no limit. `encryption`: of a trail that is made from now on."""

    enabled: bool = False
    retention_ms: int = 90 * DAY_MS
    retention_bytes: int = 0
    encryption: bool = False

    def settings(self) -> TopicSettings:
        return TopicSettings(
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            # Retention works in steps of a segment.
            segment_bytes=16 * 1024 * 1024,
            compression="zstd",
            encryption=self.encryption,
        )


class AuditCounters:
    __slots__ = ("events", "lost", "omitted")

    def __init__(self) -> None:
        """`omitted`: repeats and floods, which other events count. `lost`: could not be written."""
        self.events: Counter[str] = Counter()
        self.omitted = 0
        self.lost = 0


class AuditTrail:
    """`later` calls back on the event loop. `copy` gets the lines that are written, for a file."""

    def __init__(
        self,
        engine: Engine,
        options: AuditOptions,
        clock_us: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
        run_id: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self.options = options
        self.counters = AuditCounters()
        self.copy: Callable[[list[bytes]], None] | None = None
        self._engine = engine
        self._clock_us = clock_us
        self._later = later
        self._run_id = run_id()
        self._number = 0
        self._repeats = Repeats()
        self._window_is_open = False
        self._gathered: list[tuple[Event, Pending[None] | None]] = []
        self._planned: int | None = None  # microseconds: when the next append begins
        self._appending = False
        self._checked_settings: TopicSettings | None = None
        self._last_complaint_us: int | None = None
        self._loop_thread = threading.get_ident()
        self._closed = False

    # --- what the broker tells --------------------------------------------------------------------

    def login(self, origin: Origin, name: str, found: Principal | None) -> None:
        """`name`: the one that was given; a bare key has none."""
        if not self.options.enabled:
            return
        kind = FAILED_LOGIN if found is None else LOGIN
        user = name if found is None else found.name
        what = "" if found is None else "user" if found.user_id is not None else "key"
        self._note(Same(kind, short(user), origin.address, origin.door, "", "login", what))

    def denied(
        self, principal: Principal, operation: Operation, name: str = "", reason: str = ""
    ) -> None:
        if not self.options.enabled:
            return
        origin = principal.origin
        resource = resource_of(operation, name)
        action = operation.name.lower()
        self._note(
            Same(DENIED, principal.name, origin.address, origin.door, resource, action, reason)
        )

    def changed(
        self,
        principal: Principal,
        kind: str,
        resource: str,
        details: Mapping[str, object] | None = None,
        error: BaseException | None = None,
    ) -> Pending[None] | None:
        """What it gives is done when the event is durable or lost; None where nothing is recorded."""
        if not self.options.enabled:
            return None
        written: Pending[None] = Pending()
        result = SUCCESS if error is None else FAILURE
        told = {name: short(str(value)) for name, value in (details or {}).items()}
        if error is not None:
            told["error"] = short(str(error))
        origin = principal.origin
        self._gather(
            self._event(kind, principal.name, origin, short(resource), result=result, details=told),
            written,
        )
        return written

    def when_done(
        self,
        change: Pending[T],
        principal: Principal,
        kind: str,
        resource: str,
        details: Mapping[str, object] | None = None,
    ) -> Pending[T]:
        """The change, and behind it its event: done when both are. Its outcome is that of the change."""
        if not self.options.enabled:
            return change
        both: Pending[T] = Pending()

        def changed(done: Pending[T]) -> None:
            written = self.changed(principal, kind, resource, details, done.error)
            if written is None:
                both.settle(done.value, done.error)
            else:
                written.on_done(lambda _: both.settle(done.value, done.error))

        change.on_done(changed)
        return both

    def changed_aside(
        self,
        principal: Principal,
        kind: str,
        resource: str,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """From a thread, which waits until the event is durable."""
        if not self.options.enabled:
            return
        if threading.get_ident() == self._loop_thread:
            self.changed(principal, kind, resource, details)
            return
        written: Pending[None] = Pending()

        def record() -> None:
            found = self.changed(principal, kind, resource, details)
            if found is None:
                written.settle(None, None)
            else:
                found.on_done(lambda _: written.settle(None, None))

        try:
            self._engine.post(record)
            written.result(WAIT_S)
        except TimeoutError:
            logger.warning("the audit trail was not written within %g s", WAIT_S)
        except RuntimeError:  # the event loop has ended
            logger.warning("the audit trail lacks %s %s: the server has stopped", kind, resource)

    def protect(self, topic: str) -> None:
        """While it is on, nobody removes or changes it through a door. Raises NOT_AUTHORIZED."""
        if topic == AUDIT_TOPIC and self.options.enabled:
            text = "nobody changes the audit trail; [audit] in the configuration says how long it is kept"
            raise BrokerError(Code.NOT_AUTHORIZED, text)

    def close(self) -> None:
        """Hands over what is gathered; the engine makes it durable when it is closed."""
        self._end_window()
        self._closed = True
        while self._gathered:
            self._appending = False
            self._append()

    # --- events -----------------------------------------------------------------------------------

    def _event(
        self,
        kind: str,
        user: str,
        origin: Origin,
        resource: str,
        *,
        action: str = "",
        result: str = SUCCESS,
        details: dict[str, str] | None = None,
    ) -> Event:
        self._number += 1
        time_us = self._clock_us()
        return Event(
            id=f"{self._run_id}-{self._number}",
            time_us=time_us,
            time=time_text(time_us),
            type=kind,
            user=user,
            address=origin.address,
            door=origin.door,
            resource=resource,
            action=action or kind.rpartition(".")[2],
            result=result,
            details=details or {},
        )

    def _note(self, one: Same) -> None:
        if not self._window_is_open and not self._closed:
            self._window_is_open = True
            self._later(WINDOW_S, self._end_window)
        if self._repeats.is_new(one):
            self._gather(self._event_of(one), None)
        else:
            self.counters.omitted += 1

    def _event_of(self, one: Same, repeats: int = 0) -> Event:
        details = {} if not one.reason else {_REASONS[one.type]: one.reason}
        if repeats:
            details["repeats"] = str(repeats)
        return self._event(
            one.type,
            one.user,
            Origin(one.door, one.address),
            one.resource,
            action=one.action,
            result=_RESULTS[one.type],
            details=details,
        )

    def _end_window(self) -> None:
        self._window_is_open = False
        repeated, omitted = self._repeats.end()
        for one, repeats in repeated:
            self._gather(self._event_of(one, repeats), None)
        if omitted:
            counts = {kind: str(number) for kind, number in omitted.items()}
            self._gather(self._event(OMITTED, "", NOWHERE, "", details=counts), None)

    # --- writing ----------------------------------------------------------------------------------

    def _gather(self, event: Event, written: Pending[None] | None) -> None:
        if written is None and len(self._gathered) >= MAX_GATHERED:
            self.counters.lost += 1
            self._repeats.omit(event.type)
            return
        self._gathered.append((event, written))
        self._plan(0.0 if written is not None else GATHER_S)

    def _plan(self, delay_s: float) -> None:
        """The next append, unless an earlier one is planned, or one is under way that looks then."""
        if self._appending or self._closed:
            return
        due_us = self._clock_us() + int(delay_s * 1_000_000)
        if self._planned is None or due_us < self._planned:
            self._planned = due_us
            self._later(delay_s, lambda: self._planned_append(due_us))

    def _planned_append(self, due_us: int) -> None:
        if self._planned == due_us:
            self._append()

    def _append(self) -> None:
        self._planned = None
        if self._appending or not self._gathered:
            return
        builder = BatchBuilder()
        lines: list[bytes] = []
        for event, _ in self._gathered:
            lines.append(encode(event))
            builder.add(lines[-1], event.time_us, event.type.encode())
            if builder.size() >= APPEND_BYTES:
                break
        some, self._gathered = self._gathered[: len(lines)], self._gathered[len(lines) :]
        if self.copy is not None:
            self.copy(lines)
        self._appending = True
        try:
            self._ensure_topic()
            token = self._engine.append(AUDIT_TOPIC, 0, builder.build())
        except Exception as error:  # the trail must not stop what it records
            self._wrote(some, error)
            return
        token.on_done(lambda done: self._appended(some, done))

    def _appended(self, some: list[tuple[Event, Pending[None] | None]], token: AppendToken) -> None:
        self._wrote(some, token.error)

    def _wrote(
        self, some: list[tuple[Event, Pending[None] | None]], error: BaseException | None
    ) -> None:
        self._appending = False
        if error is None:
            self.counters.events.update(event.type for event, _ in some)
        else:
            self.counters.lost += len(some)
            for event, _ in some:
                self._repeats.omit(event.type)
            self._complain(len(some), error)
        for _, written in some:
            if written is not None:
                written.settle(None, None)
        if self._gathered:
            urgent = any(written is not None for _, written in self._gathered)
            self._plan(0.0 if urgent else GATHER_S)

    def _complain(self, number: int, error: BaseException) -> None:
        now_us = self._clock_us()
        last_us = self._last_complaint_us
        if last_us is None or now_us - last_us >= COMPLAINT_US:
            self._last_complaint_us = now_us
            logger.error("the audit trail lacks %d events: %s", number, error)

    def _ensure_topic(self) -> None:
        """Made with the first event; its settings follow the configuration."""
        wanted = self.options.settings()
        if wanted == self._checked_settings and self._engine.topic(AUDIT_TOPIC) is not None:
            return
        info = self._engine.topic(AUDIT_TOPIC)
        if info is None:
            self._engine.create_topic(AUDIT_TOPIC, 1, wanted)
        elif info.settings != wanted:
            changes: dict[str, object] = {
                "retention_ms": wanted.retention_ms,
                "retention_bytes": wanted.retention_bytes,
            }
            self._engine.change_topic(AUDIT_TOPIC, changes)
        self._checked_settings = wanted


_RESULTS: Final = {LOGIN: SUCCESS, FAILED_LOGIN: FAILURE, DENIED: REFUSED}
# What the reason of each is called in its details.
_REASONS: Final = {LOGIN: "with", FAILED_LOGIN: "with", DENIED: "reason"}


def resource_of(operation: Operation, name: str) -> str:
    return short(name) if operation.scope in (Scope.TOPIC, Scope.GROUP) else ""
