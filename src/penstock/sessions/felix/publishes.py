"""Publishes of Felix: a run of them is one append; each that wants an answer gets its own.

An answer comes when the messages are durable and visible. A publish that wants none gets none, whatever
happens: it is counted.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.counters import ProtocolCounters
from penstock.broker.errors import BrokerError, Code, RecordTooLarge, from_exception
from penstock.broker.port import Port
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.broker.tenants.names import joined
from penstock.errors import PenstockError
from penstock.log.engine import AppendToken
from penstock.sessions.base import PendingBytes, Slot
from penstock.sessions.felix.options import FelixOptions
from penstock.wire.felix.messages import encode_publish_refused, encode_published
from penstock.wire.felix.split import PublishRun

UNAUTHORIZED: Final = "unauthorized"
REFUSALS: Final = frozenset({Code.NOT_AUTHENTICATED, Code.NOT_AUTHORIZED})


Done = TypeVar("Done")


class Conversation(Protocol):
    """The session, as its publishes see it."""

    port: Port
    options: FelixOptions
    counters: ProtocolCounters
    pending: PendingBytes
    protocol: str

    @property
    def principal(self) -> Principal: ...
    def hold(self, size: int) -> Slot: ...
    def settle(self, slot: Slot, reply: bytes) -> None: ...
    def answer(self, reply: bytes) -> None: ...
    def run_is_done(self) -> None: ...
    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]: ...


def words(error: BaseException) -> str:
    """For a client: "unauthorized" is the document's word."""
    refusal = from_exception(error)
    if refusal.code is Code.NOT_AUTHENTICATED:
        return UNAUTHORIZED
    if refusal.code is Code.NOT_AUTHORIZED:
        return f"{UNAUTHORIZED}: {refusal}"
    return str(refusal)


def refusal_of(port: Port, principal: Principal, error: BaseException) -> str:
    """A peer that has not logged in where it should is told that and no more."""
    code = from_exception(error).code
    if code is Code.NOT_AUTHORIZED and not port.has_rights(principal):
        return UNAUTHORIZED
    return words(error)


def stream_not_found(tenant: str, namespace: str, stream: str) -> str:
    return f"stream not found: tenant={tenant} namespace={namespace} stream={stream}"


class StreamNotFound(BrokerError):
    """The same text whether tenant, namespace or stream is missing."""

    def __init__(self, tenant: str, namespace: str, stream: str) -> None:
        super().__init__(Code.UNKNOWN_TOPIC, stream_not_found(tenant, namespace, stream))


def find_topic(session: Conversation, tenant: str, namespace: str, stream: str) -> str:
    """The topic of a stream that exists or may be made. Raises StreamNotFound."""
    topic = joined(tenant, namespace, stream)
    if topic is None:
        raise StreamNotFound(tenant, namespace, stream)
    if session.port.topic(topic) is None and not session.options.auto_create:
        raise StreamNotFound(tenant, namespace, stream)
    return topic


class Publishes:
    """One run on its way to the log."""

    __slots__ = ("_left", "_replies", "_run", "_session", "_slot")

    def __init__(self, session: Conversation, run: PublishRun) -> None:
        self._session = session
        self._run = run
        self._left = 0
        self._replies: list[bytes] = []
        self._slot: Slot | None = None
        # Only what is answered has a place among the answers; the rest counts as pending all the same.
        if any(run.acked):
            self._slot = session.hold(run.size)
        else:
            session.pending.add(run.size)

    def begin(self) -> None:
        run = self._run
        self._replies = [b""] * len(run.ends)
        self._left = 1
        try:
            topic = find_topic(self._session, run.tenant, run.namespace, run.stream)
            self._append(topic, run, list(range(len(run.ends))))
        except PenstockError as error:
            self._refuse(list(range(len(run.ends))), error)
        self._part_done()

    def _append(self, topic: str, run: PublishRun, numbers: list[int]) -> None:
        """`numbers`: which publishes of the whole run these are."""
        session = self._session
        if not run.values:  # batches of nothing
            session.port.require(session.principal, Operation.PUBLISH, topic)
            self._accept(numbers)
            return
        records = Records(run.values)
        try:
            self._follow(session.port.publish(session.principal, topic, None, records), numbers)
        except RecordTooLarge as error:
            if len(numbers) == 1:
                raise
            self._append_singly(topic, run, numbers, error)
        except SchemaViolation as violation:
            if len(numbers) > 1:
                self._append_singly(topic, run, numbers, violation)
            elif violation.diverts:
                self._divert(topic, records, violation, numbers)
            else:
                raise

    def _append_singly(
        self, topic: str, run: PublishRun, numbers: list[int], _: PenstockError
    ) -> None:
        """Perhaps only one publish is refused: the others are stored."""
        for position, number in enumerate(numbers):
            try:
                self._append(topic, run.single(position), [number])
            except PenstockError as error:
                self._refuse([number], error)

    def _divert(
        self, topic: str, records: Records, violation: SchemaViolation, numbers: list[int]
    ) -> None:
        """What does not fit the schema becomes dead letters, and the rest is published."""
        session = self._session
        self._follow(session.port.divert(topic, records, violation, session.protocol), numbers)
        refused = set(violation.refused())
        kept = [row for row in range(len(records.values)) if row not in refused]
        if kept:
            rest = records.some(kept)
            rest.checked = True
            self._follow(session.port.publish(session.principal, topic, None, rest), numbers)

    def _follow(self, token: AppendToken, numbers: list[int]) -> None:
        self._left += 1

        def written(done: AppendToken) -> None:
            if done.error is None:
                self._accept(numbers)
            else:
                self._refuse(numbers, done.error)
            self._part_done()

        token.on_done(self._session.guarded(written))

    def _accept(self, numbers: list[int]) -> None:
        for number in numbers:
            if self._run.acked[number] and not self._replies[number]:
                self._replies[number] = encode_published(self._run.ids[number])

    def _refuse(self, numbers: list[int], error: BaseException) -> None:
        session = self._session
        text = refusal_of(session.port, session.principal, error)
        for number in numbers:
            if self._run.acked[number]:
                self._replies[number] = encode_publish_refused(self._run.ids[number], text)
            else:
                session.counters.refused[f"publish: {from_exception(error).code.name.lower()}"] += 1

    def _part_done(self) -> None:
        self._left -= 1
        if self._left:
            return
        session = self._session
        if self._slot is not None:
            session.counters.frames_out += sum(map(bool, self._replies))
            session.settle(self._slot, b"".join(self._replies))
        else:
            session.pending.done(self._run.size)
            session.run_is_done()
